"""Mine hard negatives: what a run ranks high for a query and is no positive of it.

First every passage of every relevant document leaves the list, then the list is cut to the depth, then a
sample is kept: so a query with many positives has as many negatives as any other.
"""

from __future__ import annotations

import random
from collections.abc import Container, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from storage.artifact import Artifact
from storage.rows import num_rows, read_rows, read_table, write_rows
from storage.settings import Settings
from storage.tables import Negatives, Passages, Positives, Run
from tasks.progress import progress
from tasks.stage import stage

Row = dict[str, Any]


class Mining(Settings):
    """Which part of each list may become negatives, and how many do."""

    depth: int = Field(gt=0)
    """Passages of a list that are left after its positives are removed."""
    negatives: int | None = Field(gt=0)
    """How many of these are drawn for a query; null keeps all."""
    seed: int


@stage(version=1, table=Negatives)
def mine(
    out: Path, run: Artifact[Run], positives: Artifact[Positives], passages: Artifact[Passages], *, settings: Mining
) -> None:
    """Write each query's negatives in the order of their rank; a query without a positive has none."""
    relevant = relevant_passages(
        read_table(positives, Positives), read_table(passages, Passages, ["passage_id", "doc_id"])
    )
    rows = progress(read_rows(run, Run), total=num_rows(run.path), what="mining", unit="passages")
    write_rows(out, Negatives, _mined(rows, relevant, settings))


def relevant_passages(positives: pa.Table, passages: pa.Table) -> dict[str, set[str]]:
    """For each query that has a positive, all passages of all its positives' documents."""
    passages = passages.filter(pc.is_in(passages["doc_id"], value_set=positives["doc_id"].combine_chunks()))
    of_document: dict[str, list[str]] = {}
    for row in passages.to_pylist():
        of_document.setdefault(row["doc_id"], []).append(row["passage_id"])
    found: dict[str, set[str]] = {}
    for row in positives.to_pylist():
        found.setdefault(row["query_id"], set()).update(of_document.get(row["doc_id"], ()))
    return found


def negatives(
    ranked: Sequence[Row], positives: Container[str], *, depth: int, keep: int | None, seed: str
) -> list[Row]:
    """Those of the first `depth` passages that are no positive, or `keep` of them drawn, in the order of rank."""
    left = [row for row in ranked if row["passage_id"] not in positives][:depth]
    if keep is None or len(left) <= keep:
        return left
    return [left[place] for place in sorted(random.Random(seed).sample(range(len(left)), keep))]


def _mined(rows: Iterator[Row], relevant: dict[str, set[str]], settings: Mining) -> Iterator[Row]:
    for query_id, ranked in groupby(rows, key=lambda row: row["query_id"]):
        if query_id not in relevant:
            continue
        seed, keep = f"{settings.seed} {query_id}", settings.negatives
        drawn = negatives(list(ranked), relevant[query_id], depth=settings.depth, keep=keep, seed=seed)
        yield from ({name: row[name] for name in ("query_id", "passage_id", "rank", "score")} for row in drawn)
