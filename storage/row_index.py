"""The rows of a table by id, and of passages also their documents, from Arrow arrays and for many ids at a time.

`pyarrow.compute.index_in` builds a hash table of all ids at every call, which takes seconds and gigabytes for millions
of passages. A `RowIndex` sorts 64-bit hashes of the ids once, in about 20 bytes an id. A look-up starts at the first
hash with the same leading bits, which is at most a few positions before the one that it looks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Ids: TypeAlias = pa.Array | pa.ChunkedArray
RowNumbers = NDArray[np.int64]
Hashes = NDArray[np.uint64]

LOOK_UPS_PER_ID = 4  # from which on Arrow's hash table is as fast, although it is built for one call
IDS_PER_BLOCK = 2**15  # that are hashed or looked up at a time: what is computed of them stays in the CPU's cache
MURMUR, MURMUR_SHIFT = np.uint64(0xC6A4A7935BD1E995), np.uint64(47)  # constants of MurmurHash64A
LARGEST = np.uint64(2**64 - 1)
LOW_BYTES = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)


class RowIndex:
    """The rows of ids (an Arrow array of strings); an id that occurs several times has its first row."""

    mapped = False
    """Whether its tables are in files (`storage.external.mapped_index`), and not in memory."""

    def __init__(self, ids: Ids) -> None:
        self.ids = _in_one_chunk(ids)  # `take` of several chunks joins them at each call

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, ids: Ids) -> RowNumbers:
        """Return the row of each of these ids; -1 for an id that the table lacks."""
        if len(ids) >= LOOK_UPS_PER_ID * len(self) and not self.mapped:
            numbers = pc.index_in(ids.cast(self.ids.type), value_set=self.ids)
            rows: RowNumbers = numbers.fill_null(-1).to_numpy().astype(np.int64)
            return rows
        chunks = ids.chunks if isinstance(ids, pa.ChunkedArray) else [ids]
        blocks = [
            chunk[first : first + IDS_PER_BLOCK] for chunk in chunks for first in range(0, len(chunk), IDS_PER_BLOCK)
        ]
        return np.concatenate([np.empty(0, np.int64), *map(self._rows_of_block, blocks)])

    def require(self, ids: Ids, error: Callable[[str], Exception]) -> RowNumbers:
        """Return the row of each of these ids. Raises `error(id)` for the first id that the table lacks."""
        rows = self.rows(ids)
        if (missing := np.flatnonzero(rows < 0)).size:
            raise error(ids[int(missing[0])].as_py())
        return rows

    def _rows_of_block(self, ids: pa.Array) -> RowNumbers:
        sorted_hashes, sorted_rows, starts = self._table
        hashes = _hashes(ids)
        positions = starts[leading_bits(hashes, len(starts))].astype(np.int64)
        pending = np.flatnonzero(sorted_hashes[positions] < hashes)
        while len(pending):  # a step to the next position in each pass
            positions[pending] += 1
            pending = pending[sorted_hashes[positions[pending]] < hashes[pending]]
        rows: RowNumbers = sorted_rows[positions].astype(np.int64)
        rows[sorted_hashes[positions] != hashes] = -1
        pending = np.flatnonzero(~self._are_at(ids, rows))
        while len(pending):  # different ids with one hash, so rare that their speed does not matter
            positions[pending] += 1
            rows[pending] = np.where(
                sorted_hashes[positions[pending]] == hashes[pending], sorted_rows[positions[pending]], -1
            )
            pending = pending[~self._are_at(ids.take(pa.array(pending)), rows[pending])]
        return rows

    def _are_at(self, ids: pa.Array, rows: RowNumbers) -> NDArray[np.bool_]:
        """Return whether each id is the one at its row, or has none."""
        equal = pc.equal(self.ids.take(pa.array(rows, mask=rows < 0)), ids)
        is_at: NDArray[np.bool_] = equal.fill_null(True).to_numpy(zero_copy_only=False)
        return is_at

    @cached_property
    def _table(self) -> tuple[Hashes, NDArray[Any], NDArray[Any]]:
        """The ascending hashes, the row of each, and the position of the first hash with each value of leading bits.

        After the last one is the largest number there is, with row -1, at which every look-up ends.
        """
        hashes, number = _hashes(self.ids), np.int32 if len(self) < 2**31 - 1 else np.int64
        order = np.argsort(hashes, kind="stable")
        size = table_size(len(self))
        counts = np.bincount(leading_bits(hashes, size), minlength=size)
        sorted_hashes = np.append(hashes[order], LARGEST)
        return sorted_hashes, np.append(order, -1).astype(number), (np.cumsum(counts) - counts).astype(number)


class PassageIndex(RowIndex):
    """The rows and the documents of passages by id; each passage is a document of its own where no `doc_ids` are given.

    A document is known by its number, in the order of first occurrence.
    """

    def __init__(self, passage_ids: Ids, doc_ids: Ids | None = None) -> None:
        super().__init__(passage_ids)
        encoded = None if doc_ids is None else _in_one_chunk(doc_ids).dictionary_encode()
        self.doc_ids: pa.Array = encoded.dictionary if encoded is not None else self.ids
        """The id of each document."""
        numbers = encoded.indices.to_numpy() if encoded is not None else np.arange(len(self), dtype=np.int32)
        self.documents: NDArray[np.signedinteger] = numbers
        """The document of each passage."""

    @staticmethod
    def of(passages: pa.Table) -> PassageIndex:
        """Return the index of a table with `passage_id` and `doc_id`."""
        return PassageIndex(passages["passage_id"], passages["doc_id"])

    def as_documents(self) -> PassageIndex:
        """Return the index of the same passages, with each passage as a document of its own."""
        index = copy(self)
        blocks = (np.arange(row, min(row + IDS_PER_BLOCK, len(self))) for row in range(0, len(self), IDS_PER_BLOCK))
        index.doc_ids, index.documents, index.document_index = self.ids, self.derive("passages", blocks), self
        return index

    @cached_property
    def document_index(self) -> RowIndex:
        """The number of each document by id."""
        return RowIndex(self.doc_ids)

    @cached_property
    def rows_by_rank(self) -> RowNumbers:
        """The passages in the ascending order of ids, compared byte by byte."""
        rows: RowNumbers = pc.sort_indices(self.ids).to_numpy().astype(np.int64)
        return rows

    @cached_property
    def ranks(self) -> RowNumbers:
        """The position of each passage in the ascending order of ids: of equal scores, the greater rank comes first."""
        ranks = np.empty_like(self.rows_by_rank)
        ranks[self.rows_by_rank] = np.arange(len(ranks))
        return ranks

    @cached_property
    def descending(self) -> RowNumbers:
        """The position of each passage in the descending order of ids: it breaks ties."""
        return len(self) - 1 - self.ranks

    def derive(self, name: str, blocks: Iterable[RowNumbers]) -> RowNumbers:
        """Return the concatenated blocks, a row of the table for each item of another; `name` is the table's."""
        return np.concatenate([np.empty(0, np.int64), *blocks])


def _in_one_chunk(ids: Ids) -> pa.Array:
    """Return ids as one array, of large strings where they exceed the 2 GiB of a string array."""
    if isinstance(ids, pa.Array):
        return ids
    if ids.nbytes >= 2**31:
        ids = ids.cast(pa.large_string())
    return ids.chunk(0) if ids.num_chunks == 1 else pa.concat_arrays([pa.array([], ids.type), *ids.chunks])


def table_size(length: int) -> int:
    """Return the number of values of leading bits by which a table of this length is looked up, a power of two."""
    return 1 << max(1, length.bit_length())


def leading_bits(hashes: Hashes, size: int) -> RowNumbers:
    """Return the leading bits of hashes, as numbers below `size`, a power of two."""
    bits: RowNumbers = (hashes >> np.uint64(64 - (size.bit_length() - 1))).astype(np.int64)
    return bits


def _hashes(ids: pa.Array) -> Hashes:
    """Return the hash of each id."""
    return np.concatenate([np.empty(0, np.uint64), *hash_blocks(ids)])


def hash_blocks(ids: pa.Array) -> Iterator[Hashes]:
    """Yield the hashes of ids, block by block."""
    _, offset_buffer, data = ids.buffers()
    kind = np.int64 if pa.types.is_large_string(ids.type) else np.int32
    offsets = np.frombuffer(offset_buffer or b"\0" * 8, kind)[ids.offset : ids.offset + len(ids) + 1]
    content = np.frombuffer(data or b"", np.uint8)
    for first in range(0, len(ids), IDS_PER_BLOCK):
        block = offsets[first : first + IDS_PER_BLOCK + 1].astype(np.int64)
        padded = np.zeros(block[-1] - block[0] + 8, np.uint8)  # so that eight bytes may be read at each byte
        padded[:-8] = content[block[0] : block[-1]]
        words = np.ndarray(len(padded) - 7, "<u8", padded, strides=(1,))  # the eight bytes from each byte on
        yield _murmur(words, block[:-1] - block[0], np.diff(block))


def _murmur(words: Hashes, starts: RowNumbers, lengths: RowNumbers) -> Hashes:
    """Return MurmurHash64A (A. Appleby) of texts; the last word is filled up with zeros and mixed like the others."""
    hashes = lengths.astype(np.uint64) * MURMUR
    last = len(words) - 1
    for position in range(0, int(lengths.max(initial=0)), 8):
        word = words[np.minimum(starts + position, last)] & LOW_BYTES[np.clip(lengths - position, 0, 8)]
        word *= MURMUR
        word ^= word >> MURMUR_SHIFT
        word *= MURMUR
        word ^= hashes
        hashes = np.where(lengths > position, word * MURMUR, hashes)
    for _ in range(2):
        hashes ^= hashes >> MURMUR_SHIFT
        hashes *= MURMUR
    hashes ^= hashes >> MURMUR_SHIFT
    return hashes
