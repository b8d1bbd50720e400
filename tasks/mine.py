"""Mine hard negatives: what runs rank high for a query and is no positive of it.

First every passage of every relevant document leaves the lists, then each list is cut to the depth, then a miner
(`tasks/miners/<miner>.py`) chooses, then a sample is kept: so a query with many positives has as many negatives as any
other.

A miner's module has its settings and `Choice(settings, scores)`, called with what there is of one query.
"""

from __future__ import annotations

import importlib
import logging
import random
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field

from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import num_rows, parts, read_rows, read_table, write_rows
from storage.settings import Settings
from storage.tables import Negatives, Passages, Positives, Run, TeacherScores
from tasks.progress import progress
from tasks.stage import stage

log = logging.getLogger(__name__)

Row = dict[str, Any]


class MiningSettings(Settings):
    """Which part of each list may become negatives, and how many do."""

    miner: str
    depth: int = Field(gt=0)
    """Passages of a list that are left after its positives are removed."""
    negatives: int | None = Field(gt=0)
    """How many of these are drawn for a query; null keeps all."""
    seed: int


@dataclass(frozen=True)
class Asked:
    """What there is of one query."""

    query_id: str
    positives: Sequence[str]
    """The passages that are trained on as positives, in the table's order."""
    ranked: Sequence[Sequence[Row]]
    """The whole list of each run."""
    left: Sequence[Sequence[Row]]
    """The same without the passages of relevant documents, cut to the depth."""


class Choice(Protocol):
    """What a miner's module makes of its settings."""

    def __call__(self, asked: Asked) -> list[Row]:
        """Which of what is left may be drawn, in an order of its own."""
        ...


@stage(version=2, table=Negatives)
def mine(
    out: Path,
    runs: Sequence[Artifact[Run]],
    positives: Artifact[Positives],
    passages: Artifact[Passages],
    scores: Artifact[TeacherScores] | None,
    *,
    settings: MiningSettings,
) -> None:
    """Write each query's negatives; a query without a positive has none."""
    labels = read_table(positives, Positives)
    relevant = relevant_passages(labels, read_table(passages, Passages, ["passage_id", "doc_id"]))
    choose = miner(settings, len(runs), scores)
    known = by_query(labels)
    write_rows(out, Negatives, _mined(lists(runs), relevant, known, choose, settings))


def miner(settings: MiningSettings, runs: int, scores: Artifact[TeacherScores] | None) -> Choice:
    """What chooses: of so many runs, with a teacher's scores where it reads them."""
    module = importlib.import_module(f"tasks.miners.{settings.miner}")
    if runs != 1 and not (runs and module.SEVERAL_RUNS):
        raise UserError(f"mine.miner: {settings.miner} reads one ranking, found {runs}; only `union` reads several")
    if (scores is None) == module.READS_SCORES:
        raise UserError(
            f"mine.miner: {settings.miner} {'reads' if module.READS_SCORES else 'does not read'} a teacher's scores"
        )
    made: Choice = module.Choice(settings, scores)
    return made


def lists(runs: Sequence[Artifact[Run]]) -> Iterator[tuple[str, list[list[Row]]]]:
    """Query by query its list in each run, in the runs' order, on which they must agree; a run may lack queries."""
    order = _common_order(runs)
    streams = [groupby(_rows(run), key=lambda row: row["query_id"]) for run in runs]
    heads = [next(stream, None) for stream in streams]
    for query_id in order:
        found: list[list[Row]] = []
        for number, head in enumerate(heads):
            if head is not None and head[0] == query_id:
                found.append(list(head[1]))
                heads[number] = next(streams[number], None)
            else:
                found.append([])
        yield query_id, found


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


def by_query(positives: pa.Table) -> dict[str, list[str]]:
    """Each query's positives, in the order of the table."""
    found: dict[str, list[str]] = {}
    for query, passage in zip(positives["query_id"].to_pylist(), positives["passage_id"].to_pylist(), strict=True):
        found.setdefault(query, []).append(passage)
    return found


def without(ranked: Sequence[Row], positives: Container[str], depth: int) -> list[Row]:
    """The first `depth` passages of a list that are no positive."""
    return [row for row in ranked if row["passage_id"] not in positives][:depth]


def drawn(rows: list[Row], keep: int | None, seed: str) -> list[Row]:
    """All, or `keep` of them at random, in their order."""
    if keep is None or len(rows) <= keep:
        return rows
    return [rows[place] for place in sorted(random.Random(seed).sample(range(len(rows)), keep))]


def _mined(
    found: Iterator[tuple[str, list[list[Row]]]], relevant: Mapping[str, set[str]], known: Mapping[str, list[str]],
    choose: Choice, settings: MiningSettings,
) -> Iterator[Row]:  # fmt: skip
    possible = kept = 0
    for query_id, ranked in found:
        if query_id not in relevant:
            continue
        left = [without(each, relevant[query_id], settings.depth) for each in ranked]
        chosen = choose(Asked(query_id, known[query_id], ranked, left))
        possible, kept = possible + len({row["passage_id"] for each in left for row in each}), kept + len(chosen)
        for row in drawn(chosen, settings.negatives, f"{settings.seed} {query_id}"):
            yield {name: row[name] for name in ("query_id", "passage_id", "rank", "score")}
    log.info("%s: %d of %d passages may be negatives", settings.miner, kept, possible)


def _rows(run: Artifact[Run]) -> Iterator[Row]:
    return progress(read_rows(run, Run), total=num_rows(run.path), what="mining", unit="passages")


def _common_order(runs: Sequence[Artifact[Run]]) -> list[str]:
    """The queries of all runs, in an order that agrees with each of them."""
    order: TopologicalSorter[str] = TopologicalSorter()
    for run in runs:
        queries = [query for query, _ in groupby(_query_ids(run))]
        for query in queries[:1]:
            order.add(query)
        for earlier, query in pairwise(queries):
            order.add(query, earlier)
    try:
        return list(order.static_order())
    except CycleError as error:
        named = ", ".join(run.reference for run in runs)
        raise UserError(
            f"{named}: the queries do not come in one order, each with its rows together (see {error.args[1][0]!r}); "
            "search again, all with the same queries"
        ) from None


def _query_ids(run: Artifact[Run]) -> Iterator[str]:
    """The query of each row, with most repetitions left out."""
    for path in parts(run.path):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=["query_id"]):
                yield from pc.run_end_encode(batch.column(0)).values.to_pylist()
