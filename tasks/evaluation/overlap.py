"""How much runs agree: lists of several runs side by side, passage by passage.

Letters of shapes: Q queries of a block, N rows of one run's lists, U passages of the union of all, D depths.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from storage.artifact import Artifact
from storage.rows import write_rows
from storage.settings import Settings
from storage.tables import Overlap, Run
from tasks.retrieval.ranking import Indices
from tasks.retrieval.run_lists import Lists, Values, unions
from tasks.runtime.progress import bar
from tasks.stage import stage

CUTOFFS = (10, 100, 1000)


class Overlapping(Settings):
    """Which runs are compared, and how."""

    names: list[str]
    """What the runs are called, in their order."""
    depth: int = Field(gt=0)
    """How many passages of each list are compared."""
    p: float = Field(gt=0, lt=1)
    """Persistence of rank-biased overlap: a reader who has seen a rank goes on to the next with this probability."""


@stage(version=1, table=Overlap)
def overlap(out: Path, runs: Sequence[Artifact[Run]], *, settings: Overlapping) -> None:
    """Write each pair's mean overlaps over the queries that both have: 0 where there are none.

    The overlap at k is the share of the first k passages that both lists have, of k or of the longer list's length
    where that is less.
    """
    pairs = list(combinations(range(len(settings.names)), 2))
    found: list[list[Values]] = [[] for _ in pairs]
    lists = [Lists(run) for run in runs]
    query_ids = pa.concat_arrays([each.query_ids for each in lists]).unique()
    with bar(what=f"comparing {len(pairs)} pairs of runs", unit="queries", total=len(query_ids)) as counter:
        for union in unions(lists, query_ids, settings.depth):
            ranks_RU = [union.spread(run, rows.ranks) for run, rows in enumerate(union.lists)]
            lengths_RQ = [np.bincount(rows.queries, minlength=len(union.query_ids)) for rows in union.lists]
            for values, (a, b) in zip(found, pairs, strict=True):
                both = np.minimum(ranks_RU[a], ranks_RU[b]) > 0
                depths = np.maximum(ranks_RU[a], ranks_RU[b])[both]
                values.append(agreement(union.queries[both], depths, lengths_RQ[a], lengths_RQ[b], settings.p))
            counter.update(len(union.query_ids))
    write_rows(out, Overlap, (
        {"run_a": settings.names[a], "run_b": settings.names[b], **_means(values)}
        for (a, b), values in zip(pairs, found, strict=True)
    ))  # fmt: skip


def agreement(queries_U: Indices, depths_U: Indices, lengths_Q: Indices, others_Q: Indices, p: float) -> Values:
    """Overlap at each cutoff, then rank-biased overlap, of each query that both lists have [4, queries].

    Given are the passages that both have, each with its query and the depth from which on it is in both.
    """
    short_Q, long_Q = np.minimum(lengths_Q, others_Q), np.maximum(lengths_Q, others_Q)
    there = short_Q > 0
    shares = [
        np.bincount(queries_U[depths_U <= k], minlength=len(long_Q))[there] / np.minimum(k, long_Q[there])
        for k in CUTOFFS
    ]
    return np.stack([*shares, rank_biased_overlap(queries_U, depths_U, short_Q, long_Q, p)[there]])


def rank_biased_overlap(queries_U: Indices, depths_U: Indices, short_Q: Indices, long_Q: Indices, p: float) -> Values:
    """RBO_ext of lists of these lengths (Webber et al. 2010, equation 32) [Q]; 0 where one is empty.

    A passage that both lists have from depth m on counts in X_d for every d >= m, so the sum over depths of
    X_d / d * p^d is a sum over passages of what p^d / d adds up to from m on.
    """
    depths = np.arange(1, long_Q.max(initial=0) + 1)
    power_D = np.concatenate([[0.0], np.cumsum(p**depths)])  # up to depth 0, 1, ...
    share_D = np.concatenate([[0.0], np.cumsum(p**depths / depths)])
    tails = share_D[long_Q[queries_U]] - share_D[depths_U - 1]
    seen_Q = np.bincount(queries_U, tails, minlength=len(long_Q))
    common_Q = np.bincount(queries_U, minlength=len(long_Q))  # X_l
    early = depths_U <= short_Q[queries_U]
    short_common_Q = np.bincount(queries_U[early], minlength=len(long_Q))  # X_s
    s_Q, l_Q = np.maximum(short_Q, 1), np.maximum(long_Q, 1)
    unseen_Q = (power_D[long_Q] - power_D[short_Q]) / s_Q - (share_D[long_Q] - share_D[short_Q])
    rest_Q = ((common_Q - short_common_Q) / l_Q + short_common_Q / s_Q) * p**long_Q
    biased_Q: Values = (1 - p) / p * (seen_Q + short_common_Q * unseen_Q) + rest_Q
    return biased_Q


def _means(values: Sequence[Values]) -> dict[str, Any]:
    of_all = np.concatenate([np.empty((4, 0)), *values], axis=1)
    means = [float(each.mean()) if each.size else 0.0 for each in of_all]
    names = [*(f"overlap_{k}" for k in CUTOFFS), "rbo"]
    return {"queries": of_all.shape[1], **dict(zip(names, means, strict=True))}
