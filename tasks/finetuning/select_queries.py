"""Select train queries: a random sample, or those that one of several rankings answers best."""

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
from storage.row_index import PassageIndex, RowIndex
from storage.rows import read_table, write_table
from storage.settings import Seed, Settings
from storage.tables import Passages, Positives, Queries, Run
from tasks.evaluation.max_passage import fold_blocks, graded
from tasks.retrieval.run_lists import query_blocks
from tasks.retrieval.shared_passages import share_passages
from tasks.stage import stage
from tasks.training.seeds import random_generator


class FewShot(Settings):
    """The size and the number of a sample of queries (CPDAE, table 3)."""

    queries: int = Field(gt=0)
    """The number of queries, of those that have a positive."""
    sample: int = Field(ge=0)
    """The number of the sample; all systems trained on it have the same queries."""
    seed: Seed


class RecallSample(Settings):
    """The size of a sample of queries by which an approximate index is compared with exact search."""

    queries: int = Field(gt=0)
    """The number of queries; all if there are fewer."""
    seed: Seed


class ExpertSelection(Settings):
    """Selects the queries that a ranking answers best (CAME, section 5.3: Suit-Independent)."""

    names: list[str] = Field(min_length=2)
    """The names of the runs, in their order."""
    expert: str
    """The run whose queries are kept."""
    cutoff: int = Field(gt=0)
    """The cutoff of the reciprocal rank by which the runs are compared."""


@stage(version=1, table=Queries)
def sample_queries(out: Path, queries: Artifact[Queries], positives: Artifact[Positives], *, settings: FewShot) -> None:
    """Write a random sample of queries, determined by seed and sample number, in the order of the table."""
    rows = with_positive(queries, positives)
    if len(rows) < settings.queries:
        raise UserError(
            f"{queries.reference}: expected at least {settings.queries} queries with a positive, found {len(rows)}"
        )
    random = random_generator(settings.seed, settings.sample)
    write_table(out, Queries, rows.take(np.sort(random.permutation(len(rows))[: settings.queries])))


@stage(version=1, table=Queries)
def sample_for_recall(out: Path, queries: Artifact[Queries], *, settings: RecallSample) -> None:
    """Write a random sample of the queries, in the order of the table."""
    rows = read_table(queries, Queries)
    random = np.random.default_rng(settings.seed)
    write_table(out, Queries, rows.take(np.sort(random.permutation(len(rows))[: settings.queries])))


@stage(version=1, table=Queries)
def suited_queries(
    out: Path,
    queries: Artifact[Queries],
    runs: Sequence[Artifact[Run]],
    positives: Artifact[Positives],
    passages: Artifact[Passages],
    *,
    settings: ExpertSelection,
) -> None:
    """Write the queries on which no other run has a better reciprocal rank than the expert.

    A query that no run answers within the cutoff is selected for every expert.
    """
    if settings.expert not in settings.names or len(settings.names) != len(runs):
        raise UserError(f"queries.view: expected one of {', '.join(settings.names)} for {len(runs)} runs")
    labels = read_table(positives, Positives)
    index = share_passages(out, passages, ordered=False)
    ranks_RQ = np.stack([reciprocal_ranks(run, labels, index, settings.cutoff) for run in runs])
    suits = ranks_RQ[settings.names.index(settings.expert)] >= ranks_RQ.max(0)
    kept = labels["query_id"].combine_chunks().unique().filter(pa.array(suits))
    rows = with_positive(queries, positives)
    rows = rows.filter(pc.is_in(rows["query_id"], value_set=kept))
    if not len(rows):
        raise UserError(
            f"{queries.reference}: {settings.expert} is best on none of its queries; there is nothing to train on"
        )
    write_table(out, Queries, rows)


def reciprocal_ranks(run: Artifact[Run], labels: pa.Table, passages: PassageIndex, cutoff: int) -> NDArray[np.float64]:
    """Return the reciprocal rank of each labelled query's first relevant document, 0 below the cutoff. [Q]"""
    qrels = labels.select(["query_id", "doc_id"]).append_column("grade", pa.array(np.ones(len(labels), np.int32)))
    queries = RowIndex(qrels["query_id"].unique())
    relevant, ranks = graded(qrels, queries, passages)[:, :, 0], np.zeros(len(queries))
    for rows, matrix in fold_blocks(query_blocks(run), queries, passages, cutoff):
        documents = matrix[:, :, 0]
        hits = ((documents[:, :, None] == relevant[rows][:, None, :]) & (documents[:, :, None] >= 0)).any(2)
        ranks[rows] = np.where(hits.any(1), 1 / (hits.argmax(1) + 1), 0.0)
    return ranks


def with_positive(queries: Artifact[Queries], positives: Artifact[Positives]) -> pa.Table:
    """Return the queries that have a positive."""
    rows = read_table(queries, Queries)
    return rows.filter(pc.is_in(rows["query_id"], value_set=read_table(positives, Positives)["query_id"].unique()))
