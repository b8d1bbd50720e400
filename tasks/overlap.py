"""How much runs agree: lists of several runs side by side, passage by passage.

Letters of shapes: Q queries of a block, N rows of one run's lists, U passages of the union of all, D depths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow.dataset import ParquetFileFormat
from pyarrow.fs import LocalFileSystem
from pydantic import Field

from storage.artifact import Artifact
from storage.rows import parts, write_rows
from storage.settings import Settings
from storage.tables import Overlap, Run
from tasks.progress import bar
from tasks.stage import stage

Places = NDArray[np.int64]
Values = NDArray[np.float64]

QUERIES_PER_BLOCK = 128  # whose lists are in memory at a time
SCHEMA = pa.schema([Run.schema.field(name) for name in ("passage_id", "score")])
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


def agreement(queries_U: Places, depths_U: Places, lengths_Q: Places, others_Q: Places, p: float) -> Values:
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


def rank_biased_overlap(queries_U: Places, depths_U: Places, short_Q: Places, long_Q: Places, p: float) -> Values:
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


@dataclass(frozen=True)
class Rows:
    """The beginnings of one run's lists for the queries of a block; ranks rise within a query."""

    queries: Places
    """The number of each row's query in the block."""
    ranks: Places
    passage_ids: pa.ChunkedArray
    scores: Values


class Lists:
    """A run's lists, of which a few queries' are read at a time, in any order."""

    def __init__(self, run: Artifact[Run]) -> None:
        files = [ParquetFileFormat().make_fragment(str(path), LocalFileSystem()) for path in parts(run.path)]
        self._groups = [group for file in files for group in file.split_by_row_group()]
        self._offsets = np.cumsum([0, *(group.row_groups[0].num_rows for group in self._groups)])
        self._last: tuple[int, pa.Table] | None = None  # the group read last, in which the next block mostly begins
        names, starts = [pa.array([], pa.string())], [np.empty(0, np.int64)]
        for offset, group in zip(self._offsets, self._groups, strict=False):
            encoded = pc.run_end_encode(group.to_table(columns=["query_id"])["query_id"].combine_chunks())
            names.append(encoded.values)
            starts.append(offset + np.concatenate([[0], encoded.run_ends.to_numpy()])[:-1].astype(np.int64))
        all_names = pa.concat_arrays(names)
        new = np.ones(len(all_names), dtype=bool)  # not those that go on from the group before
        new[1:] = pc.not_equal(all_names[1:], all_names[:-1]).to_numpy(zero_copy_only=False)
        self.query_ids = all_names.filter(pa.array(new))
        self._starts = np.append(np.concatenate(starts)[new], self._offsets[-1])

    def read(self, places_Q: Places, depth: int | None) -> Rows:
        """The first `depth` rows of the lists at these places among `query_ids`; -1 is a list without rows."""
        lengths_Q = np.where(places_Q < 0, 0, self._starts[places_Q + 1] - self._starts[places_Q])
        counts_Q = lengths_Q if depth is None else np.minimum(lengths_Q, depth)
        queries_N = np.repeat(np.arange(len(places_Q)), counts_Q)
        rows_N = ranges(self._starts[places_Q], counts_Q)
        order = np.argsort(rows_N, kind="stable")  # so each group is read once
        queries_N, rows_N = queries_N[order], rows_N[order]
        groups_N = np.searchsorted(self._offsets, rows_N, side="right") - 1
        read = [self._group(number).take(rows_N[groups_N == number] - self._offsets[number])
                for number in np.unique(groups_N).tolist()]  # fmt: skip
        table = pa.concat_tables([SCHEMA.empty_table(), *read])
        ranks_N = rows_N - self._starts[places_Q][queries_N] + 1
        return Rows(queries_N, ranks_N, table["passage_id"], table["score"].to_numpy().astype(np.float64))

    def _group(self, number: int) -> pa.Table:
        if self._last is None or self._last[0] != number:
            self._last = (number, self._groups[number].to_table(columns=SCHEMA.names))
        return self._last[1]


@dataclass(frozen=True)
class Union:
    """What several runs found for the queries of a block."""

    query_ids: pa.Array
    passage_ids: pa.Array
    """The different passages of all lists, numbered."""
    keys: Places
    """Query number * passages + passage number of each passage that a query's lists have, rising."""
    lists: Sequence[Rows]
    places: Sequence[Places]
    """For each run [N]: where in the union its rows are."""

    @property
    def queries(self) -> Places:
        """The number of each one's query."""
        return self.keys // max(1, len(self.passage_ids))

    @property
    def passages(self) -> Places:
        """The number of each one's passage."""
        return self.keys % max(1, len(self.passage_ids))

    def spread(self, run: int, values_N: NDArray[Any], missing_U: Any = 0) -> NDArray[Any]:
        """A run's values [U], and what a passage has that it lacks."""
        values_U = np.broadcast_to(missing_U, len(self.keys)).astype(values_N.dtype)
        values_U[self.places[run]] = values_N
        return values_U

    def find(self, query_ids: Any, passage_ids: Any) -> Places:
        """The places of these pairs, rising; pairs that no list has are left out."""
        queries = pc.index_in(query_ids, value_set=self.query_ids)
        passages = pc.index_in(passage_ids, value_set=self.passage_ids)
        known = pc.and_(pc.is_valid(queries), pc.is_valid(passages))
        query, passage = (each.filter(known).to_numpy().astype(np.int64) for each in (queries, passages))
        keys = query * len(self.passage_ids) + passage
        return np.intersect1d(self.keys, keys, return_indices=True)[1]


def unions(lists: Sequence[Lists], query_ids: pa.Array, depth: int | None) -> Iterator[Union]:
    """What all runs found for these queries, so many queries at a time as bounds memory."""
    places = [pc.index_in(query_ids, value_set=each.query_ids).fill_null(-1).to_numpy() for each in lists]
    for start in range(0, len(query_ids), QUERIES_PER_BLOCK):
        end = start + QUERIES_PER_BLOCK
        read = [each.read(place[start:end], depth) for each, place in zip(lists, places, strict=True)]
        yield united(query_ids[start:end], read)


def united(query_ids: pa.Array, lists: Sequence[Rows]) -> Union:
    """Number the passages of several runs' lists."""
    chunks = [chunk for rows in lists for chunk in rows.passage_ids.chunks]
    encoded = pa.chunked_array(chunks, pa.string()).combine_chunks().dictionary_encode()
    queries = np.concatenate([rows.queries for rows in lists])
    keys = queries * len(encoded.dictionary) + encoded.indices.to_numpy()
    keys_U, places = np.unique(keys, return_inverse=True)
    ends = np.cumsum([len(rows.queries) for rows in lists])[:-1]
    return Union(query_ids, encoded.dictionary, keys_U, lists, np.split(places, ends))


def ranges(starts: Places, counts: Places) -> Places:
    """start, start + 1, ... of each range, one range after the other."""
    places: Places = np.arange(counts.sum()) + np.repeat(starts - (np.cumsum(counts) - counts), counts)
    return places
