"""The index of all passages (`storage.row_index`) in files, which processes share as memory maps.

Writing and reading take memory that does not grow with the collection: the kernel loads the pages that are read, once
for all processes, and drops them where memory is short. A passage takes about 70 bytes on disk, and its id twice.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.artifact import Artifact
from storage.external.database import Database
from storage.external.mapped_strings import StringWriter, mapped_numbers, mapped_strings, write_numbers
from storage.files import writing
from storage.row_index import LARGEST, Hashes, PassageIndex, RowIndex, RowNumbers, hash_blocks, leading_bits, table_size
from storage.rows import table_blocks
from storage.tables import Passages

SORTED_AT_ONCE = 2**21  # hashes in memory
PASSAGES, DOCUMENTS, DERIVED = "passages", "documents", "derived"
IDS = pa.schema([("row", pa.int64()), ("id", pa.string())])


class MappedRowIndex(RowIndex):
    """The rows of ids that `write_row_index` has written."""

    mapped = True

    def __init__(self, folder: Path) -> None:
        super().__init__(mapped_strings(folder))
        self.folder = folder

    @cached_property
    def _table(self) -> tuple[Hashes, NDArray[Any], NDArray[Any]]:
        return _mapped_table(self.folder, len(self))


class MappedPassageIndex(PassageIndex):
    """The rows and documents of the passages that `write_passage_index` has written."""

    mapped = True

    def __init__(self, folder: Path) -> None:
        self.folder, self.ids = folder, mapped_strings(folder / PASSAGES)
        self.doc_ids, self.documents = mapped_strings(folder / DOCUMENTS), mapped_numbers(folder / "document", np.int32)

    @cached_property
    def _table(self) -> tuple[Hashes, NDArray[Any], NDArray[Any]]:
        return _mapped_table(self.folder / PASSAGES, len(self))

    @cached_property
    def document_index(self) -> RowIndex:
        """The number of each document by id."""
        return MappedRowIndex(self.folder / DOCUMENTS)

    @cached_property
    def descending(self) -> RowNumbers:
        """The position of each passage in the descending order of ids, compared byte by byte."""
        return mapped_numbers(self.folder / "descending", np.int64)

    @cached_property
    def rows_by_rank(self) -> RowNumbers:
        """The passages in the ascending order of ids."""
        return mapped_numbers(self.folder / "rows_by_rank", np.int64)

    @cached_property
    def ranks(self) -> RowNumbers:
        """The position of each passage in the ascending order of ids."""
        return mapped_numbers(self.folder / "ranks", np.int64)

    def derive(self, name: str, blocks: Iterable[RowNumbers]) -> RowNumbers:
        """Return the concatenated blocks, mapped from a file that the first process to need them writes."""
        path = self.folder.with_name(DERIVED) / name
        if not path.exists():
            with writing(path) as temporary:
                write_numbers(temporary, (block.astype(np.int64) for block in blocks))
        return mapped_numbers(path, np.int64)


def write_row_index(folder: Path, blocks: Iterable[pa.Array]) -> None:
    """Write the index of the ids of all blocks to a new folder."""
    with StringWriter(folder) as ids:
        for block in blocks:
            ids.write(block)
    _write_table(folder)


def write_passage_index(folder: Path, passages: Artifact[Passages], *, ordered: bool = True) -> None:
    """Write the index of an artifact's passages to a new folder, with the order of their ids if it is `ordered`."""
    folder.mkdir(parents=True)
    with StringWriter(folder / PASSAGES) as ids, StringWriter(folder / DOCUMENTS) as documents:
        write_numbers(folder / "document", _documents(passages, ids, documents))
    for name in (PASSAGES, DOCUMENTS):
        _write_table(folder / name)
    _merge_documents(folder)
    if ordered:
        _write_order(folder)


def _documents(passages: Artifact[Passages], ids: StringWriter, doc_ids: StringWriter) -> Iterator[NDArray[np.int32]]:
    """Yield the document of each passage, block by block, and write the ids of both."""
    last: str | None = None
    for block in table_blocks(passages.path, Passages, ["passage_id", "doc_id"]):
        if not len(block):
            continue
        documents = block["doc_id"].combine_chunks()
        is_first = np.ones(len(block), bool)
        is_first[1:] = pc.not_equal(documents[1:], documents[:-1]).to_numpy(zero_copy_only=False)
        is_first[0] = documents[0].as_py() != last
        last = documents[-1].as_py()
        yield (doc_ids.count - 1 + np.cumsum(is_first)).astype(np.int32)
        ids.write(block["passage_id"].combine_chunks())
        doc_ids.write(documents.filter(pa.array(is_first)))


def _write_table(folder: Path) -> None:
    """Write the table of a `RowIndex` of a folder's ids: sorted hashes, their rows and the first with leading bits.

    The hashes are sorted range by range of their leading bits, each range with one pass over all hashes.
    """
    ids = mapped_strings(folder)
    write_numbers(folder / "unsorted", hash_blocks(ids))
    unsorted, size = mapped_numbers(folder / "unsorted", np.uint64), table_size(len(ids))
    count = min(size, 1 + len(ids) // SORTED_AT_ONCE)
    with (folder / "hashes").open("wb") as hashes, (folder / "rows").open("wb") as rows:
        with (folder / "starts").open("wb") as starts:
            start = 0
            for number in range(count):
                first, last = size * number // count, size * (number + 1) // count
                some, numbers = _with_leading_bits(unsorted, size, first, last)
                order = np.argsort(some, kind="stable")
                hashes.write(some[order].tobytes())
                rows.write(numbers[order].tobytes())
                counts = np.bincount(leading_bits(some, size) - first, minlength=last - first)
                starts.write((start + np.cumsum(counts) - counts).astype(np.int64).tobytes())
                start += len(some)
        hashes.write(LARGEST.tobytes())
        rows.write(np.int64(-1).tobytes())
    (folder / "unsorted").unlink()


def _with_leading_bits(hashes: Hashes, size: int, first: int, last: int) -> tuple[Hashes, RowNumbers]:
    """Return the hashes whose leading bits are in [first, last), and their positions."""
    selected, positions = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for start in range(0, len(hashes), SORTED_AT_ONCE):
        block = hashes[start : start + SORTED_AT_ONCE]
        bits = leading_bits(block, size)
        inside = np.flatnonzero((bits >= first) & (bits < last))
        selected.append(block[inside])
        positions.append(start + inside)
    return np.concatenate(selected), np.concatenate(positions)


def _merge_documents(folder: Path) -> None:
    """Give the passages of a document one number also where passages of other documents are between them."""
    index, documents = MappedRowIndex(folder / DOCUMENTS), mapped_numbers(folder / "document", np.int32)
    starts = range(0, len(index), SORTED_AT_ONCE)
    write_numbers(folder / "firsts", (index.rows(index.ids[start : start + SORTED_AT_ONCE]) for start in starts))
    firsts = mapped_numbers(folder / "firsts", np.int64)

    def is_first(start: int) -> NDArray[np.bool_]:
        block = firsts[start : start + SORTED_AT_ONCE]
        flags: NDArray[np.bool_] = block == np.arange(start, start + len(block))
        return flags

    if not all(is_first(start).all() for start in starts):
        write_numbers(folder / "numbers", _running_counts(map(is_first, starts)))
        numbers = mapped_numbers(folder / "numbers", np.int64)
        blocks = (documents[start : start + SORTED_AT_ONCE] for start in range(0, len(documents), SORTED_AT_ONCE))
        write_numbers(folder / "merged", (numbers[firsts[block]].astype(np.int32) for block in blocks))
        with StringWriter(folder / "merged_ids") as ids:
            for start in starts:
                ids.write(index.ids[start : start + SORTED_AT_ONCE].filter(pa.array(is_first(start))))
        _write_table(folder / "merged_ids")
        shutil.rmtree(folder / DOCUMENTS)
        (folder / "merged_ids").rename(folder / DOCUMENTS)
        (folder / "merged").replace(folder / "document")
        (folder / "numbers").unlink()
    (folder / "firsts").unlink()


def _running_counts(blocks: Iterable[NDArray[np.bool_]]) -> Iterator[RowNumbers]:
    """Yield the number of true flags before each flag, block by block."""
    count = 0
    for flags in blocks:
        counts = count + np.cumsum(flags) - flags
        count += int(flags.sum())
        yield counts.astype(np.int64)


def _write_order(folder: Path) -> None:
    """Write the order of the passages' ids, which a database sorts on disk."""
    ids, first = mapped_strings(folder / PASSAGES), 0
    blocks = (
        pa.table([np.arange(start, min(start + SORTED_AT_ONCE, len(ids))),
                  ids[start : start + SORTED_AT_ONCE].cast(pa.string())], schema=IDS)
        for start in range(0, len(ids), SORTED_AT_ONCE)
    )  # fmt: skip
    files = {name: folder / name for name in ("rows_by_rank", "ranks", "descending")}
    for path in files.values():
        write_numbers(path, [])
    if not len(ids):
        return
    by_rank, ranks, descending = (np.memmap(path, np.int64, "w+", shape=len(ids)) for path in files.values())
    with Database(folder / "database") as database:
        database.create("ids", IDS, blocks)
        for batch in database.batches("SELECT row FROM ids ORDER BY id"):
            rows = batch.column(0).to_numpy()
            positions = np.arange(first, first + len(rows))
            by_rank[positions], ranks[rows], descending[rows] = rows, positions, len(ids) - 1 - positions
            first += len(rows)
    for written in (by_rank, ranks, descending):
        written.flush()


def _mapped_table(folder: Path, length: int) -> tuple[Hashes, NDArray[Any], NDArray[Any]]:
    hashes, rows, starts = (folder / name for name in ("hashes", "rows", "starts"))
    return mapped_numbers(hashes, np.uint64), mapped_numbers(rows, np.int64), mapped_numbers(starts, np.int64)
