"""Pseudo-queries written again with some columns changed: the same rows in the same order.

Each of the table's files is a shard (`tasks/runtime/shards.py`), which becomes a file of the same name; a block of its
rows is in memory at a time.
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
from storage.rows import parts, read_blocks, write_blocks
from storage.tables import Passages, PseudoQueries
from tasks.runtime.shard import Shard

Change = Callable[[pa.Table], Mapping[str, pa.Array]]
"""What becomes of some columns of a block of rows, by name."""


def file_shards(queries: Artifact[PseudoQueries], passages: Artifact[Passages] | None = None) -> list[Shard]:
    """A shard for each file. Where the passages are given, `of` says which hold its queries': [first row, last row).

    Raises `UserError` where a passage is not there.
    """
    files = parts(queries.path)
    spans = [[0, 0] for _ in files] if passages is None else _spans(files, queries, passages)
    return [
        Shard(number, pq.read_metadata(file).num_rows, [file.name], span)
        for number, (file, span) in enumerate(zip(files, spans, strict=True))
    ]


def rewrite(out: Path, shard: Shard, queries: Artifact[PseudoQueries], change: Change) -> None:
    """Write a shard's rows with the columns that `change` gives."""
    (name,) = shard.files
    blocks = (_changed(block, change(block)) for block in read_blocks(queries.path / name, PseudoQueries))
    write_blocks(out, PseudoQueries, blocks, Path(name).stem)


def is_empty(block: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Where nothing was written, so that there is nothing to score."""
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = pc.equal(block["query"], "").to_numpy()
    return found


def unknown(passage_id: str, queries: Artifact[PseudoQueries], passages: Artifact[Passages]) -> UserError:
    """A query's passage is not where it is looked for."""
    return UserError(
        f"{queries.reference}: passage {passage_id!r} is not among {passages.reference}, or out of its order; write "
        "the queries again for these passages"
    )


def _changed(block: pa.Table, columns: Mapping[str, pa.Array]) -> pa.Table:
    for name, values in columns.items():
        block = block.set_column(block.schema.get_field_index(name), name, values)
    return block


def _spans(files: list[Path], queries: Artifact[PseudoQueries], passages: Artifact[Passages]) -> list[list[int]]:
    """The rows of the passages from that of each file's first query to that of its last: both are in one order."""
    ends = [list(_ends(file)) for file in files]
    wanted, places, start = pa.array(sorted({each for both in ends for each in both}), pa.string()), {}, 0
    for file in parts(passages.path):
        for block in read_blocks(file, Passages, ["passage_id"]):
            ids = block["passage_id"]
            for row in np.flatnonzero(pc.is_in(ids, value_set=wanted).to_numpy()):
                places[ids[row].as_py()] = start + int(row)
            start += len(block)
    for each in wanted.to_pylist():
        if each not in places:
            raise unknown(each, queries, passages)
    return [[places[both[0]], places[both[1]] + 1] if both else [0, 0] for both in ends]


def _ends(file: Path) -> Iterator[str]:
    """The passages of its first and last row; nothing where it has none."""
    with pq.ParquetFile(file) as opened:
        if opened.metadata.num_rows:
            for group, row in ((0, 0), (opened.num_row_groups - 1, -1)):
                yield opened.read_row_group(group, columns=["passage_id"])["passage_id"][row].as_py()
