"""Fuse the lists of several runs into one (CAME, sections 3.4 and 5.3).

Each run scores the passages that it found. One that only other runs found is given the score of the run's last
passage for that query: it cannot have a greater one. So what a run adds to all of a query's scores changes
nothing. Table 4's other ways are normalised scores, reciprocal ranks and a learned linear layer.

Letters of shapes: Q queries of a block, N rows of a run's lists, U passages of the union of all, R runs, P positives.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import write_table
from storage.settings import Settings
from storage.tables import Run, Weights
from tasks.retrieval.ranking import ranges
from tasks.retrieval.run_lists import Lists, Rows, Union, Values, unions
from tasks.runtime.leftovers import record, unfinished
from tasks.runtime.progress import bar
from tasks.stage import stage

VIEW = "fused"
SCHEMA = Run.schema
QUERIES_PER_SHARD = 1024  # a finished shard is never made again


class Fusion(Settings):
    """How several lists become one (CAME, table 4)."""

    kind: Literal["sum", "norm_sum", "norm_max", "sum_rr", "max_rr", "linear"]
    """sum: of scores; a passage that a run lacks has the score of its last one for the query. linear: the same, each
    run times its learned weight. norm_sum, norm_max: of scores moved to 0 for a list's least and 1 for its greatest
    (1 for all where they are equal). sum_rr, max_rr: of 1 / rank. In the last four what a run lacks counts 0."""
    depth: int | None = Field(gt=0)
    """How many passages of each list take part, and how many come out; null for all."""


@stage(version=1, table=Run)
def fuse(out: Path, runs: Sequence[Artifact[Run]], weights: Artifact[Weights] | None, *, settings: Fusion) -> None:
    """Write the best of the union of each query's lists, by fused score (added up in double precision).

    Queries are in the order of the first run, then of those that only later ones have. A run without a row for a
    query adds nothing to it.
    """
    factors = _factors(weights, settings.kind, len(runs))
    lists = [Lists(run) for run in runs]
    query_ids = pa.concat_arrays([each.query_ids for each in lists]).unique()
    with bar(what=f"fusing {len(runs)} runs", unit="queries", total=len(query_ids)) as counter:
        for start in range(0, max(1, len(query_ids)), QUERIES_PER_SHARD):
            shard, name = query_ids[start : start + QUERIES_PER_SHARD], f"part-{start // QUERIES_PER_SHARD:05d}"
            if unfinished(out, [f"{name}.parquet"]):
                blocks = [ranked(union, factors, settings) for union in unions(lists, shard, settings.depth)]
                write_table(out, Run, pa.concat_tables([SCHEMA.empty_table(), *blocks]), name)
                record(out, f"{name}.parquet")
            counter.update(len(shard))


def ranked(union: Union, factors: Sequence[float], settings: Fusion) -> pa.Table:
    """The rows of a Run that a union makes."""
    scores_U = fused(union, factors, settings.kind).astype(np.float32)
    queries_U, passages_U = union.queries, union.passages
    by_id = np.empty(len(union.passage_ids), np.int64)
    by_id[pc.sort_indices(union.passage_ids).to_numpy()] = np.arange(len(by_id))
    order = np.lexsort((-by_id[passages_U], -scores_U, queries_U))
    counts_Q = np.bincount(queries_U, minlength=len(union.query_ids))
    ranks = ranges(np.ones_like(counts_Q), counts_Q)
    if settings.depth is not None:
        order, ranks = order[ranks <= settings.depth], ranks[ranks <= settings.depth]
    return pa.table(
        {
            "query_id": union.query_ids.take(pa.array(queries_U[order])),
            "passage_id": union.passage_ids.take(pa.array(passages_U[order])),
            "view": pa.repeat(pa.scalar(VIEW), len(order)),
            "rank": ranks,
            "score": scores_U[order],
        }
    ).cast(SCHEMA)


def fused(union: Union, factors: Sequence[float], kind: str) -> Values:
    """What each passage of the union scores [U]."""
    total_U = np.zeros(len(union.keys))
    for run, rows in enumerate(union.lists):
        if kind in ("sum", "linear"):
            total_U += factors[run] * filled(union, run)
            continue
        values_U = union.spread(run, normalised(rows) if kind.startswith("norm") else 1 / rows.ranks)
        total_U = np.maximum(total_U, values_U) if kind in ("norm_max", "max_rr") else total_U + values_U
    return total_U


def filled(union: Union, run: int) -> Values:
    """A run's scores [U]; of a passage that it lacks, that of its last one for the query, or 0 if it has none."""
    rows = union.lists[run]
    last_Q = np.zeros(len(union.query_ids))
    last_Q[rows.queries] = rows.scores  # rank by rank: a list's last stays
    return union.spread(run, rows.scores, last_Q[union.queries])


def normalised(rows: Rows) -> Values:
    """A run's scores [N] on the line from each list's least (0) to its greatest (1); 1 where these are equal."""
    first_Q, last_Q = np.zeros((2, rows.queries.max(initial=-1) + 1))
    last_Q[rows.queries] = rows.scores
    first_Q[rows.queries[::-1]] = rows.scores[::-1]
    above_N, range_N = rows.scores - last_Q[rows.queries], (first_Q - last_Q)[rows.queries]
    shares_N: Values = np.divide(above_N, range_N, out=np.ones_like(above_N), where=range_N > 0)
    return shares_N


def _factors(weights: Artifact[Weights] | None, kind: str, num_runs: int) -> list[float]:
    if (kind == "linear") != (weights is not None):
        raise UserError(f"fusion kind {kind}: expected learned weights with linear and with no other kind")
    if weights is None:
        return [1.0] * num_runs
    factors = [float(each) for each in json.loads((weights.path / "weights.json").read_text())["weights"]]
    if len(factors) != num_runs:
        raise UserError(f"{weights.path}: {len(factors)} weights for {num_runs} runs; learn them from the same runs")
    return factors
