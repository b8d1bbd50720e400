"""Ids of documents and queries: valid ids, unique ids, and pseudo-random numbers from ids.

A slice or a split that is chosen by the hash of ids is the same on every machine and in every order, and a smaller
slice is a subset of a larger one.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Callable, Iterable

from storage.errors import UserError, quoted

MOST_BYTES = 32_000  # Lucene allows 32,766 for an untokenised field, and passages append their number
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ufeff]")  # the last one is the byte order mark, which is invisible

ROW = re.compile(" (line|row|item) [0-9]+$")  # the end of a place within a file


def share(text: str, salt: str = "") -> float:
    """Return a uniform number in [0, 1) from `text` and `salt`: the first 53 bits of their sha256.

    Different salts give independent numbers.
    """
    digest = hashlib.sha256(f"{salt}\0{text}".encode() if salt else text.encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53  # 53 bits fit a float exactly, so it is never 1.0


def in_slice(doc_id: str, fraction: float | None) -> bool:
    """Return whether a document belongs to a slice of the collection; a fraction of None keeps all."""
    return fraction is None or share(doc_id) < fraction


def checked_id(value: str, where: str) -> str:
    """Return the id if it is valid in a TREC run file, whose fields are separated by white space, and visible there."""
    if not value or any(character.isspace() for character in value):
        raise UserError(f"{where}: expected an id without white space, found {quoted(value)}")
    if CONTROL.search(value):
        raise UserError(f"{where}: expected an id without control characters, found {quoted(value)}")
    if (size := len(value.encode())) > MOST_BYTES:
        raise UserError(f"{where}: an id of {size:,} bytes; expected at most {MOST_BYTES:,}")
    return value


class Unique:
    """Detects duplicate ids with 8 bytes of memory an id.

    Only hashes are kept. `suspects` returns the hashes that occur twice, and a second reading (`check`) finds the ids.
    """

    def __init__(self) -> None:
        self._hashes = array("q")

    def add(self, value: str) -> None:
        self._hashes.append(hash(value))

    def suspects(self) -> set[int]:
        """Return the hashes that were added more than once: of duplicates, and very rarely of a collision."""
        import numpy as np

        ordered = np.sort(np.frombuffer(self._hashes, dtype=np.int64)) if self._hashes else np.empty(0, dtype=np.int64)
        return set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())

    def check(self, read_again: Callable[[], Iterable[tuple[str, str]]], remedy: str = "ids must be unique") -> None:
        """Raise UserError for the first duplicate id, with both of its rows, or of its files.

        `read_again` yields ("FILE line 17", id) for each row, or ("FILE", id). It is called only if there are suspects.
        """
        if not (suspects := self.suspects()):
            return
        first: dict[str, str] = {}
        for where, value in read_again():
            if hash(value) in suspects and first.setdefault(value, where) != where:
                earlier = first[value].removeprefix(ROW.sub(" ", where))
                raise UserError(f"{where}: the id {value} is already in {earlier}; {remedy}")
