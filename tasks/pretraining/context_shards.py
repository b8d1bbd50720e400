"""The shards in which contexts are assigned: ranges of passages with the pseudo-queries generated from them.

Shards begin where the table that leads has a multiple of ROWS_PER_SHARD rows: the pseudo-queries where these are read,
else the passages. A context may be any passage of the document, so a shard also says where its first document begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.artifact import Artifact
from storage.pseudo_queries import out_of_order
from storage.rows import num_rows, read_rows, table_blocks
from storage.tables import Passages, PseudoQueries
from tasks.runtime.shard import Shard, part

ROWS_PER_SHARD = 100_000  # some seconds of work; a finished shard is not paired again after an interruption


class Boundary(NamedTuple):
    """The first rows of a shard in the tables."""

    passage: int
    document: int
    """The row of the first passage of the document of `passage`."""
    query: int


def context_shards(passages: Artifact[Passages], pseudo_queries: Artifact[PseudoQueries] | None) -> list[Shard]:
    """Return the shards of all passages; `of` has the ranges `passages` and `queries`, and `document`, a passage row.

    Raises ValueError if the pseudo-queries are of other passages, or in another order.
    """
    total, num_queries = num_rows(passages.path), num_rows(pseudo_queries.path) if pseudo_queries else 0
    if pseudo_queries is None:
        starts = _boundaries(passages, dict.fromkeys(range(ROWS_PER_SHARD, total, ROWS_PER_SHARD), 0))
    else:
        firsts = dict(_first_queries(pseudo_queries, num_queries))
        rows = _passage_rows(passages, list(firsts))
        if disordered := [name for (_, before), (name, row) in pairwise(rows.items()) if row <= before]:
            raise out_of_order(disordered[0])
        starts = _boundaries(passages, {row: firsts[name] for name, row in rows.items()})
    boundaries = [Boundary(0, 0, 0), *starts, Boundary(total, total, num_queries)]
    return [
        Shard(
            number, end.passage - start.passage, [f"{part(number)}.parquet"],
            {"passages": [start.passage, end.passage], "document": start.document, "queries": [start.query, end.query]},
        )
        for number, (start, end) in enumerate(pairwise(boundaries))
        if total
    ]  # fmt: skip


def _first_queries(queries: Artifact[PseudoQueries], total: int) -> Iterator[tuple[str, int]]:
    """Yield the passage with which each shard but the first begins, and the row of its first pseudo-query."""
    for row in range(ROWS_PER_SHARD, total, ROWS_PER_SHARD):
        names = (query["passage_id"] for query in read_rows(queries, PseudoQueries, row - 1))
        before = next(names)
        for number, name in enumerate(names, row):
            if name != before:
                yield name, number
                break


def _passage_rows(passages: Artifact[Passages], names: Sequence[str]) -> dict[str, int]:
    """Return the row of each of these passages, in the order of the names."""
    wanted, rows, start = pa.array(names, pa.string()), dict[str, int](), 0
    for block in _blocks(passages, "passage_id") if names else ():
        for number in np.flatnonzero(pc.is_in(block, value_set=wanted).to_numpy(zero_copy_only=False)):
            rows[block[number].as_py()] = start + int(number)
        start += len(block)
    for name in names:
        if name not in rows:
            raise out_of_order(name)
    return {name: rows[name] for name in names}


def _boundaries(passages: Artifact[Passages], query_of: dict[int, int]) -> Iterator[Boundary]:
    """Yield the boundaries at these passage rows, in ascending order, each with its row of the pseudo-queries."""
    rows, start, document, before = np.array(sorted(query_of), np.int64), 0, 0, None
    for block in _blocks(passages, "doc_id") if len(rows) else ():
        is_first = np.ones(len(block), bool)
        is_first[1:] = pc.not_equal(block[1:], block[:-1]).to_numpy(zero_copy_only=False)
        is_first[0] = block[0].as_py() != before
        firsts = np.concatenate([[document], start + np.flatnonzero(is_first)])
        for row in rows[(rows >= start) & (rows < start + len(block))].tolist():
            yield Boundary(row, int(firsts[np.searchsorted(firsts, row, "right") - 1]), query_of[row])
        start, document, before = start + len(block), int(firsts[-1]), block[-1].as_py()


def _blocks(passages: Artifact[Passages], column: str) -> Iterator[Any]:
    """Yield the values of a column, block by block."""
    for block in table_blocks(passages.path, Passages, [column]):
        yield block[column].combine_chunks()
