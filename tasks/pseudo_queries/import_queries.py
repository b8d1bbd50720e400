"""Pseudo-queries that another tool wrote become a corpus, checked against the passages that they are for.

The file's queries are scattered over piles on disk by the place of their passage, and each pile is joined with its
passages. In memory are 13 bytes a passage, for finding its place by the hash of its id, and one pile, which is about a
256th of the file.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from storage.artifact import Artifact, Source
from storage.batched import portions
from storage.errors import UserError
from storage.external.hash_partitions import Piles
from storage.external.id_index import Places
from storage.imports import pseudo_query_files
from storage.imports.pseudo_query_files import Given
from storage.rows import num_rows, read_rows, write_rows
from storage.settings import Settings
from storage.store.store import SCRATCH
from storage.tables import Passages, PseudoQueries, passage_sha256, passage_text
from tasks.runtime.progress import progress
from tasks.runtime.shard import part
from tasks.session import print_line
from tasks.stage import stage

PILES = 256
PASSAGES_PER_PILE = 10_000  # at least
QUERIES_AT_ONCE = 100_000
CHARACTERS_AT_ONCE = 50_000_000
EXAMPLES = 3

GIVEN = pa.schema([
    ("place", pa.int64()), ("passage_id", pa.string()), ("query", pa.string()), ("passage_sha256", pa.string()),
    ("round_trip", pa.int32()), ("relevance", pa.float32()), ("reason", pa.string()),
    ("generator", pa.string()), ("revision", pa.string()), ("ledger", pa.string()), ("seed", pa.int64()),
    ("draw", pa.int32()),
])  # fmt: skip


class Importing(Settings):
    """What imported queries are called."""

    name: str = Field(min_length=1)
    """The generator's name in the table."""


@stage(version=1, table=PseudoQueries)
def import_queries(out: Path, passages: Artifact[Passages], file: Source, *, settings: Importing) -> None:
    """Write the queries of a file (`storage.imports.pseudo_query_files`) in passage order, ranked as the file has them.

    All of them or none: raises UserError where a row is broken, names a passage that is not there, or gives a passage's
    queries a second time.
    """
    scratch, total = out / SCRATCH, num_rows(passages.path)
    shutil.rmtree(scratch, ignore_errors=True)
    each = max(PASSAGES_PER_PILE, -(-total // PILES))
    with Piles(scratch, GIVEN, -(-total // each)) as piles:
        for rows in _placed(file.path, passages):
            piles.add(rows, rows["place"].to_numpy() // each)
    without = 0
    for number in range(-(-total // each)):
        rows = _Joined(passages, file, settings.name)
        write_rows(out, PseudoQueries, rows.of(piles.read(number), number * each, (number + 1) * each), part(number))
        without += rows.without
    if without == total:
        raise UserError(f"{file.path}: has no queries; {pseudo_query_files.EXPECTED}")
    if without:
        print_line(f"{file.path}: has no queries for {without:,} of {total:,} passages")


def _placed(path: Path, passages: Artifact[Passages]) -> Iterator[pa.Table]:
    """The file's queries with the places of their passages, some at a time."""
    places = Places.in_table(passages, "passage_id")
    complaints = _Complaints(num_rows(passages.path))
    given = progress(pseudo_query_files.read(path), what="reading queries", unit="queries")
    for some in portions(given, size=lambda each: len(each.query), limit=CHARACTERS_AT_ONCE, number=QUERIES_AT_ONCE):
        found = places.of([each.passage_id for each in some])
        for place, each in zip(found.tolist(), some, strict=True):
            complaints.look_at(place, each)
        columns = {name: [getattr(each, name) for each in some] for name in GIVEN.names[1:]}
        wanted = [place >= 0 and each.is_query for place, each in zip(found, some, strict=True)]
        yield pa.table({"place": found, **columns}, schema=GIVEN).filter(wanted)
    complaints.raise_if_any(passages)


class _Complaints:
    """What is wrong with a file: how often, and the first few places."""

    def __init__(self, passages: int) -> None:
        self._whole = np.zeros(passages, bool)  # whether all queries of a passage have been given
        self._unknown: list[Given] = []
        self._again: list[Given] = []
        self._counts = [0, 0]

    def look_at(self, place: int, given: Given) -> None:
        """Note a query of an unknown passage, and the second list of a passage's queries."""
        if place < 0:
            self._note(0, self._unknown, given)
        elif given.begins and self._whole[place]:
            self._note(1, self._again, given)
        elif given.begins:
            self._whole[place] = True

    def _note(self, kind: int, examples: list[Given], given: Given) -> None:
        self._counts[kind] += 1
        if len(examples) < EXAMPLES:
            examples.append(given)

    def raise_if_any(self, passages: Artifact[Passages]) -> None:
        """Refuse the whole file."""
        if self._unknown:
            what = f"{self._counts[0]:,} queries are for passages that are not in {passages.reference}"
            raise UserError(_listed(what, self._unknown) + _hint(self._unknown, passages))
        if self._again:
            what = f"{self._counts[1]:,} passages have a second list of queries"
            raise UserError(_listed(what, self._again) + "; keep one list a passage")


def _listed(what: str, examples: Sequence[Given]) -> str:
    return f"{what}: {'; '.join(f'{each.where}: {each.passage_id}' for each in examples)}"


def _hint(unknown: Sequence[Given], passages: Artifact[Passages]) -> str:
    """What to do, which is another thing where the ids are those of documents that were cut into passages."""
    wanted = {each.passage_id for each in unknown}
    for row in read_rows(passages, Passages):
        if row["doc_id"] in wanted:
            return (
                f"; {row['doc_id']} is a document, whose passages are called {row['passage_id']} and so on: import the "
                "file where documents are kept whole (split.max_tokens: null), or name passages in it"
            )
    return "; name passages of the recipe's corpus, or import the file with the recipe whose passages it names"


class _Joined:
    """Queries of a pile with their passages, as rows of the table."""

    def __init__(self, passages: Artifact[Passages], file: Source, name: str) -> None:
        self._passages, self._file, self._name = passages, file, name
        self.without = 0
        """How many passages had none."""

    def of(self, pile: pa.Table, first: int, last: int) -> Iterator[dict[str, Any]]:
        """The rows of the passages `first` to `last`, whose queries the pile has in the file's order."""
        given = _in_order(pile)
        waiting = next(given, None)
        for place, passage in enumerate(read_rows(self._passages, Passages, first, last), first):
            rank, digest = 0, ""
            while waiting and waiting["place"] == place:
                digest = digest or passage_sha256(passage_text(passage["title"], passage["text"]))
                yield self._row(waiting, passage, digest, rank)
                rank, waiting = rank + 1, next(given, None)
            self.without += not rank

    def _row(self, given: dict[str, Any], passage: dict[str, Any], digest: str, rank: int) -> dict[str, Any]:
        if given["passage_id"] != passage["passage_id"] or given["passage_sha256"] not in ("", digest):
            raise UserError(
                f"{self._file.path}: its queries of passage {given['passage_id']} were written for another text; "
                "import the file with the passages that it was exported with"
            )
        reason = given["reason"] if given["query"] else "empty"
        return {
            "passage_id": passage["passage_id"], "doc_id": passage["doc_id"], "passage_sha256": digest, "rank": rank,
            "query": given["query"], "generator": given["generator"] or self._name,
            "revision": given["revision"] or self._file.key, "ledger": given["ledger"], "seed": given["seed"],
            "draw": given["draw"], "round_trip": given["round_trip"], "relevance": given["relevance"],
            "kept": not reason, "reason": reason,
        }  # fmt: skip


def _in_order(pile: pa.Table) -> Iterator[dict[str, Any]]:
    ordered = pile.take(np.argsort(pile["place"].to_numpy(), kind="stable"))
    for start in range(0, len(ordered), QUERIES_AT_ONCE):
        yield from ordered.slice(start, QUERIES_AT_ONCE).to_pylist()
