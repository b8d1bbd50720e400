"""Choose train queries: a few of them at random, or those that suit one of several rankings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import read_table, write_table
from storage.settings import Seed, Settings
from storage.tables import Passages, Positives, Queries, Run
from tasks.evaluation.max_passage import fold, graded, numbered
from tasks.stage import stage


class FewShot(Settings):
    """Which few queries (CPDAE, table 3)."""

    queries: int = Field(gt=0)
    """How many, of those that have a positive."""
    sample: int = Field(ge=0)
    """Which draw; every system that is trained on it sees the same."""
    seed: Seed


class Suited(Settings):
    """Which queries suit a ranking (CAME, section 5.3: Suit-Independent)."""

    names: list[str] = Field(min_length=2)
    """What the runs are called, in their order."""
    expert: str
    """The one of them whose queries are kept."""
    cutoff: int = Field(gt=0)
    """Of the reciprocal rank by which they are compared."""


@stage(version=1, table=Queries)
def sample_queries(out: Path, queries: Artifact[Queries], positives: Artifact[Positives], *, settings: FewShot) -> None:
    """Write so many queries, drawn by seed and sample, in the order of the table."""
    rows = with_positive(queries, positives)
    if len(rows) < settings.queries:
        raise UserError(
            f"{queries.reference}: expected {settings.queries} queries with a positive or more, found {len(rows)}"
        )
    random = np.random.default_rng((settings.seed, settings.sample))
    write_table(out, Queries, rows.take(np.sort(random.permutation(len(rows))[: settings.queries])))


@stage(version=1, table=Queries)
def suited_queries(
    out: Path,
    queries: Artifact[Queries],
    runs: Sequence[Artifact[Run]],
    positives: Artifact[Positives],
    passages: Artifact[Passages],
    *,
    settings: Suited,
) -> None:
    """Write the queries on which the expert's reciprocal rank is the best, or as good as any other's.

    A query that no run answers within the cutoff suits none of them more than another, and is every expert's.
    """
    if settings.expert not in settings.names or len(settings.names) != len(runs):
        raise UserError(f"queries.view: expected one of {', '.join(settings.names)} for {len(runs)} runs")
    labels = read_table(positives, Positives)
    ids = read_table(passages, Passages, ["passage_id", "doc_id"])
    ranks_RQ = np.stack([reciprocal_ranks(run, labels, ids, settings.cutoff) for run in runs])
    suits = ranks_RQ[settings.names.index(settings.expert)] >= ranks_RQ.max(0)
    kept = labels["query_id"].combine_chunks().unique().filter(pa.array(suits))
    rows = with_positive(queries, positives)
    rows = rows.filter(pc.is_in(rows["query_id"], value_set=kept))
    if not len(rows):
        raise UserError(f"{queries.reference}: none of its queries suits {settings.expert}; nothing can be trained")
    write_table(out, Queries, rows)


def reciprocal_ranks(run: Artifact[Run], labels: pa.Table, passages: pa.Table, cutoff: int) -> NDArray[np.float64]:
    """[Q], for each query of the labels 1 over the rank of its first relevant document, or 0 below the cutoff."""
    qrels = labels.select(["query_id", "doc_id"]).append_column("grade", pa.array(np.ones(len(labels), np.int32)))
    known = numbered(qrels["query_id"], passages, qrels["doc_id"])
    documents = fold(read_table(run, Run, ["query_id", "passage_id", "score"]), known, cutoff)[:, :, 0]
    relevant = graded(qrels, known)[:, :, 0]
    found = (documents[:, :, None] == relevant[:, None, :]) & (documents[:, :, None] >= 0)
    hits = found.any(2)
    return np.where(hits.any(1), 1 / (hits.argmax(1) + 1), 0.0)


def with_positive(queries: Artifact[Queries], positives: Artifact[Positives]) -> pa.Table:
    """The queries that have a positive."""
    rows = read_table(queries, Queries)
    return rows.filter(pc.is_in(rows["query_id"], value_set=read_table(positives, Positives)["query_id"].unique()))
