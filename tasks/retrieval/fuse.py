"""Fuse the lists of several runs into one (CAME, sections 3.4 and 5.3).

Each run scores the passages that it retrieved. A passage that only other runs retrieved gets the score of the run's
last passage for that query, which is an upper bound of its score. So a constant that a run adds to all scores of a
query does not change the fused order. The other kinds of table 4 are normalised scores, reciprocal ranks and a learned
linear layer.

Letters of shapes: Q queries of a block, N rows of a run's lists, U pairs in the union of all runs, R runs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import write_table
from storage.settings import Settings
from storage.tables import Run, Weights
from tasks.retrieval.ranking import ranges
from tasks.retrieval.run_lists import ListUnion, Rows, RunLists, unions
from tasks.runtime.shard import Shard, ShardJob, ShardTask, load_once, part, row_shards
from tasks.runtime.shards import run_shards
from tasks.stage import stage

VIEW = "fused"
SCHEMA = Run.schema
QUERIES_PER_SHARD = 1024  # a finished shard is not fused again after an interruption


class Fusion(Settings):
    """The kind of fusion (CAME, table 4), and its depth."""

    kind: Literal["sum", "norm_sum", "norm_max", "sum_rr", "max_rr", "linear"]
    """sum: of scores; a passage that a run lacks has the run's last score for the query. linear: the same, with a
    learned weight for each run. norm_sum, norm_max: of scores scaled to [0, 1] within a list (1 for all if they are
    equal). sum_rr, max_rr: of 1 / rank. In the last four kinds a passage that a run lacks counts 0."""
    depth: int | None = Field(gt=0)
    """The number of passages read from each list, and written; null for all."""


@stage(version=1, table=Run)
def fuse(out: Path, runs: Sequence[Artifact[Run]], weights: Artifact[Weights] | None, *, settings: Fusion) -> None:
    """Write the union of each query's lists, ranked by fused score, which is computed in double precision.

    Queries are in the order of the first run, followed by those that only later runs have. A run without a row for a
    query adds nothing to its scores.
    """
    _factors(weights, settings.kind, len(runs))  # a wrong combination is refused here, before a process is started
    _, query_ids = load_once(open_runs, tuple(runs))
    shards = row_shards(len(query_ids), QUERIES_PER_SHARD) or [Shard(0, 0, [f"{part(0)}.parquet"], [0, 0])]
    run_shards(ShardJob(fuse_part, out, (runs, weights), settings, f"fusing {len(runs)} runs", "queries"), shards)


def fuse_part(
    task: ShardTask, runs: Sequence[Artifact[Run]], weights: Artifact[Weights] | None, *, settings: Fusion
) -> None:
    """Write the fused lists of a shard's queries."""
    factors, (first, last) = _factors(weights, settings.kind, len(runs)), task.shard.of
    lists, query_ids = load_once(open_runs, tuple(runs))
    blocks = []
    for union in unions(lists, query_ids[first:last], settings.depth):
        blocks.append(fused_rows(union, factors, settings))
        task.done(len(union.query_ids))
    write_table(task.out, Run, pa.concat_tables([SCHEMA.empty_table(), *blocks]), part(task.shard.number))


def open_runs(runs: Sequence[Artifact[Run]]) -> tuple[list[RunLists], pa.Array]:
    """Return the lists of the runs, and the queries of all, in the order of the first run that has them."""
    lists = [RunLists(run) for run in runs]
    return lists, pa.concat_arrays([run.query_ids for run in lists]).unique()


def fused_rows(union: ListUnion, factors: Sequence[float], settings: Fusion) -> pa.Table:
    """Return the fused lists of a block of queries as rows of a Run."""
    scores_U = fused_scores(union, factors, settings.kind).astype(np.float32)
    queries_U, passages_U = union.queries, union.passages
    id_ranks = np.empty(len(union.passage_ids), np.int64)
    id_ranks[pc.sort_indices(union.passage_ids).to_numpy()] = np.arange(len(id_ranks))
    order = np.lexsort((-id_ranks[passages_U], -scores_U, queries_U))
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


def fused_scores(union: ListUnion, factors: Sequence[float], kind: str) -> NDArray[np.float64]:
    """Return the fused score of each pair, [U]."""
    total_U = np.zeros(len(union.keys))
    for run, rows in enumerate(union.lists):
        if kind in ("sum", "linear"):
            total_U += factors[run] * imputed_scores(union, run)
            continue
        values_U = union.spread(run, normalised(rows) if kind.startswith("norm") else 1 / rows.ranks)
        total_U = np.maximum(total_U, values_U) if kind in ("norm_max", "max_rr") else total_U + values_U
    return total_U


def imputed_scores(union: ListUnion, run: int) -> NDArray[np.float64]:
    """Return a run's scores, [U]; a pair that it lacks has its last score for the query, or 0 if it has none."""
    rows = union.lists[run]
    last_Q = np.zeros(len(union.query_ids))
    last_Q[rows.queries] = rows.scores  # ranks ascend, so the last score of a list is written last
    return union.spread(run, rows.scores, last_Q[union.queries])


def normalised(rows: Rows) -> NDArray[np.float64]:
    """Return a run's scores, [N], scaled linearly to [0, 1] within each list; 1 where a list's are all equal."""
    first_Q, last_Q = np.zeros((2, rows.queries.max(initial=-1) + 1))
    last_Q[rows.queries] = rows.scores
    first_Q[rows.queries[::-1]] = rows.scores[::-1]
    above_N, range_N = rows.scores - last_Q[rows.queries], (first_Q - last_Q)[rows.queries]
    shares_N: NDArray[np.float64] = np.divide(above_N, range_N, out=np.ones_like(above_N), where=range_N > 0)
    return shares_N


def _factors(weights: Artifact[Weights] | None, kind: str, num_runs: int) -> list[float]:
    if (kind == "linear") != (weights is not None):
        raise UserError(f"fusion kind {kind}: expected learned weights with linear and with no other kind")
    if weights is None:
        return [1.0] * num_runs
    factors = [
        float(weight) for weight in json.loads((weights.path / "weights.json").read_text(encoding="utf-8"))["weights"]
    ]
    if len(factors) != num_runs:
        raise UserError(
            f"{weights.path}: {len(factors)} weights for {num_runs} runs; learn the weights from the same runs"
        )
    return factors
