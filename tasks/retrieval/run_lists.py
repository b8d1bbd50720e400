"""Lists of several runs side by side, query by query and passage by passage, so many queries in memory at a time.

Letters of shapes: Q queries of a block, N rows of one run's lists, U passages of the union of all, R runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.artifact import Artifact
from storage.rows import parts
from storage.tables import Run
from tasks.retrieval.ranking import Indices, ranges

Values = NDArray[np.float64]

QUERIES_PER_BLOCK = 128  # whose lists are in memory at a time
SCHEMA = pa.schema([Run.schema.field(name) for name in ("passage_id", "score")])


@dataclass(frozen=True)
class Rows:
    """The beginnings of one run's lists for the queries of a block; ranks rise within a query."""

    queries: Indices
    """The number of each row's query in the block."""
    ranks: Indices
    passage_ids: pa.ChunkedArray
    scores: Values


class Lists:
    """A run's lists, of which a few queries' are read at a time, in any order."""

    def __init__(self, run: Artifact[Run]) -> None:
        from pyarrow.dataset import ParquetFileFormat  # brings pandas
        from pyarrow.fs import LocalFileSystem

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

    def read(self, places_Q: Indices, depth: int | None) -> Rows:
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
    keys: Indices
    """Query number * passages + passage number of each passage that a query's lists have, rising."""
    lists: Sequence[Rows]
    places: Sequence[Indices]
    """For each run [N]: where in the union its rows are."""

    @property
    def queries(self) -> Indices:
        """The number of each one's query."""
        return self.keys // max(1, len(self.passage_ids))

    @property
    def passages(self) -> Indices:
        """The number of each one's passage."""
        return self.keys % max(1, len(self.passage_ids))

    def spread(self, run: int, values_N: NDArray[Any], missing_U: Any = 0) -> NDArray[Any]:
        """A run's values [U], and what a passage has that it lacks."""
        values_U = np.broadcast_to(missing_U, len(self.keys)).astype(values_N.dtype)
        values_U[self.places[run]] = values_N
        return values_U

    def find(self, query_ids: Any, passage_ids: Any) -> Indices:
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
