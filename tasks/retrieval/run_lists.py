"""The lists of several runs, query by query, read in blocks of queries that bound memory.

Letters of shapes: Q queries of a block, N rows of one run's lists, U pairs in the union of all runs, R runs.
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
from storage.rows import parts, table_blocks
from storage.tables import Run, TeacherScores
from tasks.retrieval.ranking import Indices, ranges

QUERIES_PER_BLOCK = 128  # whose lists are in memory at a time
ROWS_PER_BLOCK = 2**19  # of a run that is read in its order; more where one query has more
SCHEMA = pa.schema([Run.schema.field(name) for name in ("passage_id", "score")])


def query_blocks(run: Artifact[Run]) -> Iterator[pa.Table]:
    """Yield query_id, passage_id and score of a run, in order, in blocks that have all rows of their queries."""
    pending: list[pa.Table] = []
    for rows in table_blocks(run.path, Run, ["query_id", "passage_id", "score"]):
        pending.append(rows)
        if sum(map(len, pending)) >= ROWS_PER_BLOCK:
            block = pa.concat_tables(pending)
            queries = pc.run_end_encode(block["query_id"].combine_chunks())
            end = queries.run_ends[-2].as_py() if len(queries.run_ends) > 1 else 0
            if end:
                yield block[:end]
            pending = [block[end:]]
    if pending:
        yield pa.concat_tables(pending)


@dataclass(frozen=True)
class Rows:
    """The first ranks of one run's lists for a block of queries; ranks ascend within a query."""

    queries: Indices
    """The query of each row, as an index into the block."""
    ranks: Indices
    passage_ids: pa.ChunkedArray
    scores: NDArray[np.float64]


class RunLists:
    """The lists of a run, or a teacher's scores, read for any queries in any order; a query's rows are together."""

    def __init__(self, run: Artifact[Run] | Artifact[TeacherScores]) -> None:
        self.reference = run.reference
        from pyarrow.dataset import ParquetFileFormat  # imports pandas, which takes long
        from pyarrow.fs import LocalFileSystem

        files = [ParquetFileFormat().make_fragment(str(path), LocalFileSystem()) for path in parts(run.path)]
        self._groups = [group for file in files for group in file.split_by_row_group()]
        self._offsets = np.cumsum([0, *(group.row_groups[0].num_rows for group in self._groups)])
        self._last: tuple[int, pa.Table] | None = None  # the last row group read; the next block mostly begins in it
        group_ids, group_starts = [pa.array([], pa.string())], [np.empty(0, np.int64)]
        for offset, group in zip(self._offsets, self._groups, strict=False):
            encoded = pc.run_end_encode(group.to_table(columns=["query_id"])["query_id"].combine_chunks())
            group_ids.append(encoded.values)
            group_starts.append(offset + np.concatenate([[0], encoded.run_ends.to_numpy()])[:-1].astype(np.int64))
        ids = pa.concat_arrays(group_ids)
        is_first = np.ones(len(ids), dtype=bool)  # False where a query's list continues from the group before
        is_first[1:] = pc.not_equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False)
        self.query_ids = ids.filter(pa.array(is_first))
        self._starts = np.append(np.concatenate(group_starts)[is_first], self._offsets[-1])

    @property
    def lengths(self) -> Indices:
        """The number of rows of each list."""
        return np.diff(self._starts)

    def read(self, lists_Q: Indices, depth: int | None) -> Rows:
        """Return the first `depth` rows of these lists, given as indices into `query_ids`; -1 is an empty list."""
        lengths_Q = np.where(lists_Q < 0, 0, self._starts[lists_Q + 1] - self._starts[lists_Q])
        counts_Q = lengths_Q if depth is None else np.minimum(lengths_Q, depth)
        queries_N = np.repeat(np.arange(len(lists_Q)), counts_Q)
        rows_N = ranges(self._starts[lists_Q], counts_Q)
        order = np.argsort(rows_N, kind="stable")  # so each group is read once
        queries_N, rows_N = queries_N[order], rows_N[order]
        groups_N = np.searchsorted(self._offsets, rows_N, side="right") - 1
        tables = [
            self._group(group).take(rows_N[groups_N == group] - self._offsets[group])
            for group in np.unique(groups_N).tolist()
        ]
        table = pa.concat_tables([SCHEMA.empty_table(), *tables])
        ranks_N = rows_N - self._starts[lists_Q][queries_N] + 1
        return Rows(queries_N, ranks_N, table["passage_id"], table["score"].to_numpy().astype(np.float64))

    def _group(self, number: int) -> pa.Table:
        if self._last is None or self._last[0] != number:
            self._last = (number, self._groups[number].to_table(columns=SCHEMA.names))
        return self._last[1]


@dataclass(frozen=True)
class ListUnion:
    """The union of several runs' lists for a block of queries: U pairs of a query and a passage."""

    query_ids: pa.Array
    passage_ids: pa.Array
    """The distinct passages of all lists; a passage's number is its index here."""
    keys: Indices
    """query * number of passages + passage, of each pair [U], ascending."""
    lists: Sequence[Rows]
    pairs: Sequence[Indices]
    """For each run [N]: the index of each row's pair in the union."""

    @property
    def queries(self) -> Indices:
        """The query of each pair, [U]."""
        return self.keys // max(1, len(self.passage_ids))

    @property
    def passages(self) -> Indices:
        """The passage of each pair, [U]."""
        return self.keys % max(1, len(self.passage_ids))

    def spread(self, run: int, values_N: NDArray[Any], missing_U: Any = 0) -> NDArray[Any]:
        """Return a run's values by pair, [U], with `missing_U` for pairs that it lacks."""
        values_U = np.broadcast_to(missing_U, len(self.keys)).astype(values_N.dtype)
        values_U[self.pairs[run]] = values_N
        return values_U

    def find(self, query_ids: Any, passage_ids: Any) -> Indices:
        """Return the indices of these pairs in the union, ascending, without pairs that it lacks."""
        queries = pc.index_in(query_ids, value_set=self.query_ids)
        passages = pc.index_in(passage_ids, value_set=self.passage_ids)
        known = pc.and_(pc.is_valid(queries), pc.is_valid(passages))
        query, passage = (numbers.filter(known).to_numpy().astype(np.int64) for numbers in (queries, passages))
        keys = query * len(self.passage_ids) + passage
        return np.intersect1d(self.keys, keys, return_indices=True)[1]


def unions(lists: Sequence[RunLists], query_ids: pa.Array, depth: int | None) -> Iterator[ListUnion]:
    """Yield the union of all runs' lists up to `depth` for these queries, block by block."""
    indices = [pc.index_in(query_ids, value_set=run.query_ids).fill_null(-1).to_numpy() for run in lists]
    for start in range(0, len(query_ids), QUERIES_PER_BLOCK):
        end = start + QUERIES_PER_BLOCK
        rows = [run.read(lists_Q[start:end], depth) for run, lists_Q in zip(lists, indices, strict=True)]
        yield union_of(query_ids[start:end], rows)


def union_of(query_ids: pa.Array, lists: Sequence[Rows]) -> ListUnion:
    """Return the union of several runs' lists for a block of queries."""
    chunks = [chunk for rows in lists for chunk in rows.passage_ids.chunks]
    encoded = pa.chunked_array(chunks, pa.string()).combine_chunks().dictionary_encode()
    queries = np.concatenate([rows.queries for rows in lists])
    keys = queries * len(encoded.dictionary) + encoded.indices.to_numpy()
    keys_U, pairs = np.unique(keys, return_inverse=True)
    ends = np.cumsum([len(rows.queries) for rows in lists])[:-1]
    return ListUnion(query_ids, encoded.dictionary, keys_U, lists, np.split(pairs, ends))
