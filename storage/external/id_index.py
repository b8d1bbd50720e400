"""Where rows stand in a table, by their ids: at 12 bytes a row however long the ids are, or with the ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import in_one_chunk, parts, read_table
from storage.tables import Passages, Positives

Numbers = np.ndarray[Any, Any]


class Places:
    """Numbers of rows, by the hashes of their ids.

    An id that is not there is taken for one that is with odds of the number of rows in 2 ** 64.
    """

    def __init__(self, hashes: Numbers) -> None:
        self._order = hashes.argsort(kind="stable").astype(np.int32 if len(hashes) < 2**31 else np.int64)
        self._hashes = hashes[self._order]
        if (self._hashes[1:] == self._hashes[:-1]).any():
            raise RuntimeError("two ids have the same hash; hashes differ from run to run: run it again")

    @staticmethod
    def in_table(table: Artifact[Any], column: str) -> Places:
        """Of all rows of a table, by one of its columns, in which no id stands twice."""
        return Places(np.concatenate([np.empty(0, np.int64), *_hashes(table, column)]))

    def of(self, ids: Sequence[str]) -> Numbers:
        """The places of rows; -1 for one that is not there."""
        wanted = hashes(ids)
        if not len(self._hashes):
            return np.full(len(wanted), -1, np.int64)
        near = np.searchsorted(self._hashes, wanted).clip(max=len(self._hashes) - 1)
        return np.where(self._hashes[near] == wanted, self._order[near], -1).astype(np.int64)


@dataclass(frozen=True)
class Corpus:
    """Passages by id, and the documents that they are of, numbered."""

    names: pa.Array
    """The passages' ids."""
    document: Numbers
    """Of each passage."""
    begins: Numbers
    """The place of each document's first passage."""
    by_passage: Places
    by_document: Places

    @staticmethod
    def read(passages: Artifact[Passages]) -> Corpus:
        """Of all passages, whose documents follow one another."""
        rows = in_one_chunk(read_table(passages, Passages, ["passage_id", "doc_id"]))
        names, documents = (rows[name].combine_chunks() for name in ("passage_id", "doc_id"))
        first = np.ones(len(documents), bool)
        first[1:] = pc.not_equal(documents[1:], documents[:-1]).to_numpy(zero_copy_only=False)
        by_document = Places(hashes(documents.filter(pa.array(first)).to_pylist()))
        return Corpus(names, first.cumsum() - 1, np.flatnonzero(first), Places(hashes(names.to_pylist())), by_document)

    def places(self, ids: Sequence[str]) -> Numbers:
        """Of passages, or of documents' first passages; -1 for what is neither."""
        found, document = self.by_passage.of(ids), self.by_document.of(ids)
        return np.where((found < 0) & (document >= 0), self.begins[document], found)

    def pairs(self, queries: Numbers, places: Numbers) -> Numbers:
        """A number for each pair of a query and the document of a passage."""
        found: Numbers = queries.astype(np.int64) * len(self.begins) + self.document[places]
        return found

    def relevant(self, asked: pa.Array, labels: pa.Table, named: Artifact[Positives]) -> Numbers:
        """The pairs of queries and relevant documents."""
        labels = labels.filter(pc.is_in(labels["query_id"], value_set=asked))
        places = self.by_passage.of(labels["passage_id"].to_pylist())
        if (places < 0).any():
            missing = labels["passage_id"][int((places < 0).argmax())].as_py()
            raise UserError(f"{named.reference}: passage {missing!r} is not in the corpus; make them again of it")
        return np.unique(self.pairs(pc.index_in(labels["query_id"], value_set=asked).to_numpy(), places))


def hashes(ids: Sequence[str]) -> Numbers:
    """What a process knows ids by."""
    return np.fromiter(map(hash, ids), np.int64, len(ids))


def _hashes(table: Artifact[Any], column: str) -> Iterator[Numbers]:
    for path in parts(table.path):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=[column]):
                yield hashes(batch.column(0).to_pylist())
