"""The overlap of runs: how many passages the lists of two runs share.

Letters of shapes: Q queries of a block, U pairs in the union of all runs, D depths.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from storage.artifact import Artifact
from storage.rows import write_rows
from storage.settings import Settings
from storage.tables import Overlap, Run
from tasks.retrieval.ranking import Indices
from tasks.retrieval.run_lists import RunLists, unions
from tasks.runtime.progress import bar
from tasks.stage import stage

CUTOFFS = (10, 100, 1000)
PERSISTENCE = 0.99  # of rank-biased overlap; not printed; chosen because 85 % of its weight is on the first 100 ranks


class Overlapping(Settings):
    """The runs to compare, and the depth."""

    names: list[str]
    """The names of the runs, in the order of the runs."""
    depth: int = Field(gt=0)
    """The number of passages of each list that are compared."""
    p: float = Field(gt=0, lt=1)
    """The persistence of rank-biased overlap (Webber et al. 2010): the probability that a reader continues to the next
    rank. No paper prints one; recipes use `PERSISTENCE`."""


@stage(version=1, table=Overlap)
def overlap(out: Path, runs: Sequence[Artifact[Run]], *, settings: Overlapping) -> None:
    """Write the mean overlaps of each pair of runs over the queries that both have, or 0 without such queries.

    The overlap at k is the number of passages in the first k of both lists, divided by k, or by the longer list's
    length if that is less.
    """
    pairs = list(combinations(range(len(settings.names)), 2))
    overlaps: list[list[NDArray[np.float64]]] = [[] for _ in pairs]
    lists = [RunLists(run) for run in runs]
    counts = pc.value_counts(pa.concat_arrays([run.query_ids for run in lists]))
    query_ids = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    with bar(what=f"comparing {len(pairs)} pairs of runs", unit="queries", total=len(query_ids)) as counter:
        for union in unions(lists, query_ids, settings.depth):
            ranks_RU = [union.spread(run, rows.ranks) for run, rows in enumerate(union.lists)]
            lengths_RQ = [np.bincount(rows.queries, minlength=len(union.query_ids)) for rows in union.lists]
            for values, (a, b) in zip(overlaps, pairs, strict=True):
                both = np.minimum(ranks_RU[a], ranks_RU[b]) > 0
                depths = np.maximum(ranks_RU[a], ranks_RU[b])[both]
                values.append(agreement(union.queries[both], depths, lengths_RQ[a], lengths_RQ[b], settings.p))
            counter.update(len(union.query_ids))
    rows = (
        {"run_a": settings.names[a], "run_b": settings.names[b], **_means(values)}
        for (a, b), values in zip(pairs, overlaps, strict=True)
    )
    write_rows(out, Overlap, rows)


def agreement(
    queries_U: Indices, depths_U: Indices, lengths_Q: Indices, others_Q: Indices, p: float
) -> NDArray[np.float64]:
    """Return overlap at each cutoff, then rank-biased overlap, for each query in both runs, [4, queries].

    Given are the passages in both lists, each by its query and by the depth from which on both lists have it.
    """
    short_Q, long_Q = np.minimum(lengths_Q, others_Q), np.maximum(lengths_Q, others_Q)
    in_both = short_Q > 0
    shares = [
        np.bincount(queries_U[depths_U <= k], minlength=len(long_Q))[in_both] / np.minimum(k, long_Q[in_both])
        for k in CUTOFFS
    ]
    return np.stack([*shares, rank_biased_overlap(queries_U, depths_U, short_Q, long_Q, p)[in_both]])


def rank_biased_overlap(
    queries_U: Indices, depths_U: Indices, short_Q: Indices, long_Q: Indices, p: float
) -> NDArray[np.float64]:
    """Return RBO_ext of lists of these lengths (Webber et al. 2010, equation 32), [Q]; 0 where one is empty.

    A passage that both lists have from depth m on counts in the overlap X_d for every d >= m. So the sum over depths d
    of X_d / d * p^d equals a sum over passages of the sum of p^d / d over d >= m.
    """
    depths = np.arange(1, long_Q.max(initial=0) + 1)
    power_D = np.concatenate([[0.0], np.cumsum(p**depths)])  # up to depth 0, 1, ...
    share_D = np.concatenate([[0.0], np.cumsum(p**depths / depths)])
    tails = share_D[long_Q[queries_U]] - share_D[depths_U - 1]
    observed_Q = np.bincount(queries_U, tails, minlength=len(long_Q))
    common_Q = np.bincount(queries_U, minlength=len(long_Q))  # X_l
    is_short = depths_U <= short_Q[queries_U]
    short_common_Q = np.bincount(queries_U[is_short], minlength=len(long_Q))  # X_s
    s_Q, l_Q = np.maximum(short_Q, 1), np.maximum(long_Q, 1)
    extrapolated_Q = (power_D[long_Q] - power_D[short_Q]) / s_Q - (share_D[long_Q] - share_D[short_Q])
    rest_Q = ((common_Q - short_common_Q) / l_Q + short_common_Q / s_Q) * p**long_Q
    biased_Q: NDArray[np.float64] = (1 - p) / p * (observed_Q + short_common_Q * extrapolated_Q) + rest_Q
    return biased_Q


def _means(values: Sequence[NDArray[np.float64]]) -> dict[str, Any]:
    all_values = np.concatenate([np.empty((4, 0)), *values], axis=1)
    means = [float(row.mean()) if row.size else 0.0 for row in all_values]
    names = [*(f"overlap_{k}" for k in CUTOFFS), "rbo"]
    return {"queries": all_values.shape[1], **dict(zip(names, means, strict=True))}
