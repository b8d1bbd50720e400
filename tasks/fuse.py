"""Fuse the lists of several runs into one (CAME, sections 3.4 and 5.3).

Each run scores the passages that it found. One that only other runs found is given the score of the run's last
passage for that query: it cannot have a greater one. So what a run adds to all of a query's scores changes
nothing. Table 4's other ways are normalised scores, reciprocal ranks and a learned linear layer.

Letters of shapes: Q queries of a block, N rows of a run's lists, U passages of the union of all, R runs, P positives.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from pydantic import Field

from storage.artifact import Artifact
from storage.errors import UserError
from storage.files import write_atomically, writing
from storage.rows import read_table, write_table
from storage.settings import Settings
from storage.tables import Passages, Positives, Run, Weights
from tasks.mine import relevant_passages
from tasks.overlap import Lists, Places, Rows, Union, ranges, unions
from tasks.progress import bar
from tasks.stage import stage

log = logging.getLogger(__name__)

Scores = NDArray[np.float64]

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


class LearnFusion(Settings):
    """How the weights of a linear fusion are learned."""

    depth: int | None = Field(gt=0)
    """How many passages of each list take part; null for all."""
    steps: int = Field(gt=0)
    """At most so many steps of L-BFGS. The problem is convex, with one unknown a run: tens are enough."""


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
            if not (out / f"{name}.parquet").exists():
                blocks = [ranked(union, factors, settings) for union in unions(lists, shard, settings.depth)]
                write_table(out, Run, pa.concat_tables([SCHEMA.empty_table(), *blocks]), name)
            counter.update(len(shard))


@stage(version=1, table=Weights)
def learn_fusion(
    out: Path,
    runs: Sequence[Artifact[Run]],
    positives: Artifact[Positives],
    passages: Artifact[Passages],
    *,
    settings: LearnFusion,
) -> None:
    """Write what each run counts: a linear layer R -> 1 without bias, learned on frozen scores of train queries.

    It minimises the mean cross-entropy of each positive against what the runs found for its query, less the other
    passages of relevant documents. A positive that no run found is left out.
    """
    wanted = read_table(positives, Positives)
    relevant = relevant_passages(wanted, read_table(passages, Passages, ["passage_id", "doc_id"]))
    lists, query_ids = [Lists(run) for run in runs], wanted["query_id"].combine_chunks().unique()
    files = []
    with bar(what="reading scores of positives", unit="queries", total=len(query_ids)) as counter:
        for start in range(0, len(query_ids), QUERIES_PER_SHARD):
            shard = query_ids[start : start + QUERIES_PER_SHARD]
            files.append(out / "scratch" / f"examples-{start // QUERIES_PER_SHARD:05d}.npz")
            if not files[-1].exists():
                labels = wanted.filter(pc.is_in(wanted["query_id"], value_set=shard))
                found = [examples(union, labels, relevant) for union in unions(lists, shard, settings.depth)]
                Examples.write(files[-1], found)
            counter.update(len(shard))
    learned = sum(len(Examples.read(file).counts) for file in files)
    if not learned:
        raise UserError(
            f"{positives.path}: no run found any positive beside other passages, so no weights can be learned; "
            "give runs of the same queries, or a greater depth"
        )
    log.info("%d positives to learn from, %d left out that no run found", learned, len(wanted) - learned)
    weights = learned_weights(files, len(runs), learned, settings.steps)
    write_atomically(out / "weights.json", json.dumps({"weights": weights}))


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


def fused(union: Union, factors: Sequence[float], kind: str) -> Scores:
    """What each passage of the union scores [U]."""
    total_U = np.zeros(len(union.keys))
    for run, rows in enumerate(union.lists):
        if kind in ("sum", "linear"):
            total_U += factors[run] * filled(union, run)
            continue
        values_U = union.spread(run, normalised(rows) if kind.startswith("norm") else 1 / rows.ranks)
        total_U = np.maximum(total_U, values_U) if kind in ("norm_max", "max_rr") else total_U + values_U
    return total_U


def filled(union: Union, run: int) -> Scores:
    """A run's scores [U]; of a passage that it lacks, that of its last one for the query, or 0 if it has none."""
    rows = union.lists[run]
    last_Q = np.zeros(len(union.query_ids))
    last_Q[rows.queries] = rows.scores  # rank by rank: a list's last stays
    return union.spread(run, rows.scores, last_Q[union.queries])


def normalised(rows: Rows) -> Scores:
    """A run's scores [N] on the line from each list's least (0) to its greatest (1); 1 where these are equal."""
    first_Q, last_Q = np.zeros((2, rows.queries.max(initial=-1) + 1))
    last_Q[rows.queries] = rows.scores
    first_Q[rows.queries[::-1]] = rows.scores[::-1]
    above_N, range_N = rows.scores - last_Q[rows.queries], (first_Q - last_Q)[rows.queries]
    shares_N: Scores = np.divide(above_N, range_N, out=np.ones_like(above_N), where=range_N > 0)
    return shares_N


def examples(union: Union, positives: pa.Table, relevant: Mapping[str, set[str]]) -> Examples:
    """What is learned from a block of queries: each of these positives and the passages that it shall beat."""
    pairs = [(query, passage) for query in union.query_ids.to_pylist() for passage in relevant.get(query, ())]
    names = (pa.array([pair[side] for pair in pairs], pa.string()) for side in (0, 1))
    others_U = np.delete(np.arange(len(union.keys)), union.find(*names))
    found_P = union.find(positives["query_id"], positives["passage_id"])
    queries_P, rivals = union.queries[found_P], union.queries[others_U]
    starts_P = np.searchsorted(rivals, queries_P)
    counts_P = np.searchsorted(rivals, queries_P, side="right") - starts_P
    found_P, starts_P, counts_P = (each[counts_P > 0] for each in (found_P, starts_P, counts_P))
    scores_RU = np.stack([filled(union, run) for run in range(len(union.lists))]).astype(np.float32)
    return Examples(scores_RU[:, found_P], scores_RU[:, others_U[ranges(starts_P, counts_P)]], counts_P)


@dataclass(frozen=True)
class Examples:
    """What runs say, in their single precision, of positives and of the passages that each shall beat, its rivals."""

    positives: NDArray[np.float32]
    """[R, P]"""
    rivals: NDArray[np.float32]
    """[R, N]: those of the first positive, then those of the next."""
    counts: Places
    """How many rivals each positive has [P]: one or more."""

    @staticmethod
    def read(path: Path) -> Examples:
        """What `write` wrote."""
        with np.load(path) as file:
            return Examples(**file)

    @staticmethod
    def write(path: Path, blocks: Sequence[Examples]) -> None:
        """Write several blocks as one file."""
        positives = np.concatenate([each.positives for each in blocks], axis=1)
        rivals = np.concatenate([each.rivals for each in blocks], axis=1)
        with writing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, positives=positives, rivals=rivals, counts=np.concatenate([each.counts for each in blocks]))

    def loss(self, weights: Sequence[float]) -> tuple[float, Scores]:
        """The sum of the positives' cross-entropies, and its gradient [R].

        Column by column, since a matrix product would add up in another order on another number of threads.
        """
        starts_P = np.cumsum(self.counts) - self.counts
        positives, rivals = self.positives.astype(np.float64), self.rivals.astype(np.float64)
        ahead_RN = rivals - np.repeat(positives, self.counts, axis=1)
        logits_N = sum(weight * ahead_N for weight, ahead_N in zip(weights, ahead_RN, strict=True))
        largest_P = np.maximum(np.maximum.reduceat(logits_N, starts_P), 0)  # 0 is the positive itself
        shares_N = np.exp(logits_N - np.repeat(largest_P, self.counts))
        totals_P = np.exp(-largest_P) + np.add.reduceat(shares_N, starts_P)
        shares_N /= np.repeat(totals_P, self.counts)
        gradient_R = np.array([np.sum(shares_N * ahead_N) for ahead_N in ahead_RN])
        return float(np.sum(largest_P + np.log(totals_P))), gradient_R


def learned_weights(files: Sequence[Path], num_runs: int, num_positives: int, steps: int) -> list[float]:
    """The weights of least mean cross-entropy, from equal ones: L-BFGS on all examples, a file in memory at a time."""
    weights = torch.ones(num_runs, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [weights], max_iter=steps, tolerance_grad=1e-10, tolerance_change=1e-14, line_search_fn="strong_wolfe"
    )
    with bar(what="learning weights", unit="passes") as counter:

        def closure() -> torch.Tensor:
            each = [Examples.read(file).loss(weights.tolist()) for file in files]
            weights.grad = torch.tensor(sum(gradient for _, gradient in each) / num_positives)
            counter.update(1)
            return torch.tensor(sum(loss for loss, _ in each) / num_positives, dtype=torch.float64)

        optimiser.step(closure)
    return [float(weight) for weight in weights.tolist()]


def _factors(weights: Artifact[Weights] | None, kind: str, num_runs: int) -> list[float]:
    if (kind == "linear") != (weights is not None):
        raise UserError(f"fusion kind {kind}: expected learned weights with linear and with no other kind")
    if weights is None:
        return [1.0] * num_runs
    factors = [float(each) for each in json.loads((weights.path / "weights.json").read_text())["weights"]]
    if len(factors) != num_runs:
        raise UserError(f"{weights.path}: {len(factors)} weights for {num_runs} runs; learn them from the same runs")
    return factors
