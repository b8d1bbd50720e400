"""Learn the weight of each run in a linear fusion: CAME's linear layer (section 5.3, table 4).

Letters of shapes: Q queries of a block, N rows of a run's lists, U passages of the union of all, R runs, P positives.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from pydantic import Field

from storage.artifact import Artifact
from storage.errors import UserError
from storage.files import write_atomically, writing
from storage.rows import num_rows, read_table
from storage.settings import Settings
from storage.store.publishing import SCRATCH
from storage.tables import Passages, Positives, Run, Weights
from tasks.finetuning.candidates import relevant_passages
from tasks.retrieval.fuse import QUERIES_PER_SHARD, imputed_scores
from tasks.retrieval.ranking import Indices, ranges
from tasks.retrieval.run_lists import ListUnion, RunLists, unions
from tasks.runtime.progress import bar
from tasks.runtime.shard import Shard, ShardJob, ShardTask, load_once
from tasks.runtime.shards import run_shards
from tasks.session import print_line
from tasks.stage import stage


class LearnFusion(Settings):
    """The settings for learning the weights of a linear fusion."""

    depth: int | None = Field(gt=0)
    """Passages of each list that are used; null for all. Not printed; 200 in recipes, as in mining."""
    steps: int = Field(gt=0)
    """The largest number of L-BFGS steps. Not printed; chosen because the problem is convex with one unknown per run,
    so that tens are enough."""


@stage(version=1, table=Weights)
def learn_fusion(
    out: Path,
    runs: Sequence[Artifact[Run]],
    positives: Artifact[Positives],
    passages: Artifact[Passages],
    *,
    settings: LearnFusion,
) -> None:
    """Write the weight of each run: a linear layer R -> 1 without bias, learned on fixed scores of train queries.

    It minimises the mean cross-entropy of each positive against the other passages in the query's lists that are not of
    a relevant document. A positive that is in no list is omitted.
    """
    num_queries = len(read_table(positives, Positives, ["query_id"])["query_id"].unique())
    spans = [[first, min(first + QUERIES_PER_SHARD, num_queries)] for first in range(0, num_queries, QUERIES_PER_SHARD)]
    shards = [
        Shard(number, last - first, [f"{SCRATCH}/examples-{number:05d}.npz"], [first, last])
        for number, (first, last) in enumerate(spans)
    ]
    inputs = (runs, positives, passages)
    run_shards(ShardJob(write_examples, out, inputs, settings, "reading scores of positives", "queries"), shards)
    files = [out / shard.files[0] for shard in shards]
    learned = sum(len(FusionExamples.read(file).counts) for file in files)
    if not learned:
        raise UserError(
            f"{positives.path}: no list has a positive and other passages, so no weights can be learned; "
            "give runs of the same queries, or a greater depth"
        )
    if omitted := (total := num_rows(positives.path)) - learned:
        print_line(f"{omitted:,} of {total:,} positives are in no list with other passages and are omitted")
    weights = learned_weights(files, len(runs), learned, settings.steps)
    write_atomically(out / "weights.json", json.dumps({"weights": weights}))


def write_examples(
    task: ShardTask, runs: Sequence[Artifact[Run]], positives: Artifact[Positives], passages: Artifact[Passages], *,
    settings: LearnFusion,
) -> None:  # fmt: skip
    """Write the examples of a shard's queries."""
    lists, labels, relevant = load_once(read_inputs, tuple(runs), positives, passages)
    first, last = task.shard.of
    query_ids = labels["query_id"].combine_chunks().unique()[first:last]
    own = labels.filter(pc.is_in(labels["query_id"], value_set=query_ids))
    blocks = []
    for union in unions(lists, query_ids, settings.depth):
        blocks.append(examples(union, own, relevant))
        task.done(len(union.query_ids))
    FusionExamples.write(task.out / task.shard.files[0], blocks)


def read_inputs(
    runs: Sequence[Artifact[Run]], positives: Artifact[Positives], passages: Artifact[Passages]
) -> tuple[list[RunLists], pa.Table, dict[str, set[str]]]:
    """Return the lists of the runs, the positives, and the relevant passages of each query."""
    labels = read_table(positives, Positives)
    return [RunLists(run) for run in runs], labels, relevant_passages(labels, passages)


def examples(union: ListUnion, positives: pa.Table, relevant: Mapping[str, set[str]]) -> FusionExamples:
    """Return the examples of a block of queries: each positive, and the passages that it must outscore."""
    pairs = [(query, passage) for query in union.query_ids.to_pylist() for passage in relevant.get(query, ())]
    names = (pa.array([pair[side] for pair in pairs], pa.string()) for side in (0, 1))
    others_U = np.delete(np.arange(len(union.keys)), union.find(*names))
    positives_P = union.find(positives["query_id"], positives["passage_id"])
    queries_P, rivals = union.queries[positives_P], union.queries[others_U]
    starts_P = np.searchsorted(rivals, queries_P)
    counts_P = np.searchsorted(rivals, queries_P, side="right") - starts_P
    positives_P, starts_P, counts_P = (values_P[counts_P > 0] for values_P in (positives_P, starts_P, counts_P))
    scores_RU = np.stack([imputed_scores(union, run) for run in range(len(union.lists))]).astype(np.float32)
    return FusionExamples(scores_RU[:, positives_P], scores_RU[:, others_U[ranges(starts_P, counts_P)]], counts_P)


@dataclass(frozen=True)
class FusionExamples:
    """The runs' scores, in single precision, of positives and of their rivals, the passages that each must outscore."""

    positives: NDArray[np.float32]
    """[R, P]"""
    rivals: NDArray[np.float32]
    """[R, N]: the rivals of the first positive, then those of the next."""
    counts: Indices
    """The number of rivals of each positive, at least one. [P]"""

    @staticmethod
    def read(path: Path) -> FusionExamples:
        """Read a file of `write`."""
        with np.load(path, allow_pickle=False) as file:
            return FusionExamples(**file)

    @staticmethod
    def write(path: Path, blocks: Sequence[FusionExamples]) -> None:
        """Write several blocks as one file."""
        positives = np.concatenate([block.positives for block in blocks], axis=1)
        rivals = np.concatenate([block.rivals for block in blocks], axis=1)
        counts = np.concatenate([block.counts for block in blocks])
        with writing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, positives=positives, rivals=rivals, counts=counts)

    def loss(self, weights: Sequence[float]) -> tuple[float, NDArray[np.float64]]:
        """Return the sum of the positives' cross-entropies, and its gradient [R].

        It is computed column by column: the order of sums in a matrix product depends on the number of threads.
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
    """Minimise the mean cross-entropy from equal weights: L-BFGS on all examples, with one file in memory at a time."""
    weights = torch.ones(num_runs, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [weights], max_iter=steps, tolerance_grad=1e-10, tolerance_change=1e-14, line_search_fn="strong_wolfe"
    )
    with bar(what="learning weights", unit="passes") as counter:

        def closure() -> torch.Tensor:
            losses = [FusionExamples.read(file).loss(weights.tolist()) for file in files]
            weights.grad = torch.tensor(sum(gradient for _, gradient in losses) / num_positives)
            counter.update(1)
            return torch.tensor(sum(loss for loss, _ in losses) / num_positives, dtype=torch.float64)

        optimiser.step(closure)
    return [float(weight) for weight in weights.tolist()]
