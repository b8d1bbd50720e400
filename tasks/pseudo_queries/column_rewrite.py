"""Rewrite pseudo-queries with some columns changed, in the same order.

Each file of the table is a shard (`tasks/runtime/shards.py`) and becomes a file of the same name; one block of rows is
in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import parts, read_blocks, read_rows, table_blocks, write_blocks
from storage.tables import Passages, PseudoQueries, passage_text
from tasks.runtime.shard import Shard

Change = Callable[[pa.Table], Mapping[str, pa.Array]]
"""Returns the new columns of a block of rows, by name."""


def file_shards(queries: Artifact[PseudoQueries], passages: Artifact[Passages] | None = None) -> list[Shard]:
    """Return a shard for each file; with passages, `of` is the range of their rows, [first row, last row).

    Raises UserError if a passage is missing.
    """
    files = parts(queries.path)
    spans = [[0, 0] for _ in files] if passages is None else _spans(files, queries, passages)
    return [
        Shard(number, pq.read_metadata(file).num_rows, [file.name], span)
        for number, (file, span) in enumerate(zip(files, spans, strict=True))
    ]


def rewrite(out: Path, shard: Shard, queries: Artifact[PseudoQueries], change: Change) -> None:
    """Write a shard's rows with the columns that `change` returns."""
    (name,) = shard.files
    blocks = (_changed(block, change(block)) for block in read_blocks(queries.path / name, PseudoQueries))
    write_blocks(out, PseudoQueries, blocks, Path(name).stem)


def is_empty(block: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return a mask of the rows with an empty query, which are not scored."""
    empty: np.ndarray[tuple[int], np.dtype[np.bool_]] = pc.equal(block["query"], "").to_numpy()
    return empty


def unknown(passage_id: str, queries: Artifact[PseudoQueries], passages: Artifact[Passages]) -> UserError:
    """Return the error for a query whose passage is missing or out of order."""
    return UserError(
        f"{queries.reference}: passage {passage_id!r} is not among {passages.reference}, or out of order; generate "
        "the queries again for these passages"
    )


class Texts:
    """The texts of the passages of a shard of queries, read in step with these."""

    def __init__(self, shard: Shard, queries: Artifact[PseudoQueries], passages: Artifact[Passages]) -> None:
        self._rows = read_rows(passages, Passages, *shard.of)
        self._row = next(self._rows, None)
        self._queries, self._passages = queries, passages

    def of(self, passage_id: str) -> str:
        """Return the text of a passage; earlier passages cannot be read again."""
        while self._row is not None and self._row["passage_id"] != passage_id:
            self._row = next(self._rows, None)
        if self._row is None:
            raise unknown(passage_id, self._queries, self._passages)
        return passage_text(self._row["title"], self._row["text"])


def _changed(block: pa.Table, columns: Mapping[str, pa.Array]) -> pa.Table:
    for name, values in columns.items():
        block = block.set_column(block.schema.get_field_index(name), name, values)
    return block


def _spans(files: list[Path], queries: Artifact[PseudoQueries], passages: Artifact[Passages]) -> list[list[int]]:
    """Return, for each file, the rows of the passages from its first to its last query, in the common order."""
    ends = [list(_ends(file)) for file in files]
    wanted, position_of, start = pa.array(sorted({passage for pair in ends for passage in pair}), pa.string()), {}, 0
    for block in table_blocks(passages.path, Passages, ["passage_id"]):
        ids = block["passage_id"]
        for row in np.flatnonzero(pc.is_in(ids, value_set=wanted).to_numpy()):
            position_of[ids[row].as_py()] = start + int(row)
        start += len(block)
    for passage_id in wanted.to_pylist():
        if passage_id not in position_of:
            raise unknown(passage_id, queries, passages)
    return [[position_of[pair[0]], position_of[pair[1]] + 1] if pair else [0, 0] for pair in ends]


def _ends(file: Path) -> Iterator[str]:
    """Yield the passage ids of the first and the last row; nothing for an empty file."""
    with pq.ParquetFile(file) as opened:
        if opened.metadata.num_rows:
            for group, row in ((0, 0), (opened.num_row_groups - 1, -1)):
                yield opened.read_row_group(group, columns=["passage_id"])["passage_id"][row].as_py()
