"""Ids of documents and queries: what they may be, that they are unique, and chance drawn from them.

A slice or a split chosen by the hash of an id is the same on every machine and in every order, and
a smaller slice lies inside a larger one.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Callable, Iterable

from storage.errors import UserError, quoted

MOST_BYTES = 32_000  # Lucene keeps 32,766 of a field that is not split, and passages append their number
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ufeff]")  # the last one marks a file's beginning, and is invisible too


def share(text: str, salt: str = "") -> float:
    """A number in [0, 1), evenly spread and fixed by `text` and `salt`: the first 53 bits of their sha256.

    Different salts draw independently.
    """
    digest = hashlib.sha256(f"{salt}\0{text}".encode() if salt else text.encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53  # 53 bits: what a float holds exactly, so never 1.0


def in_slice(doc_id: str, fraction: float | None) -> bool:
    """Whether a document belongs to a slice of the collection; None keeps all."""
    return fraction is None or share(doc_id) < fraction


def checked_id(value: str, where: str) -> str:
    """The id, if it can stand in a TREC run file, whose fields are separated by white space, and be seen there."""
    if not value or any(character.isspace() for character in value):
        raise UserError(f"{where}: expected an id without white space, found {quoted(value)}")
    if CONTROL.search(value):
        raise UserError(f"{where}: expected an id without control characters, found {quoted(value)}")
    if (size := len(value.encode())) > MOST_BYTES:
        raise UserError(f"{where}: an id of {size:,} bytes; expected at most {MOST_BYTES:,}")
    return value


class Unique:
    """Finds an id that stands twice, at 8 bytes an id however long a collection is.

    Only hashes are kept: `suspects` names those seen twice, and a second reading (`check`) tells which ids they are.
    """

    def __init__(self) -> None:
        self._hashes = array("q")

    def add(self, value: str) -> None:
        self._hashes.append(hash(value))

    def suspects(self) -> set[int]:
        """Hashes that were added more than once: those of duplicates, and with odds of 1 in 100,000s a chance hit."""
        import numpy as np

        ordered = np.sort(np.frombuffer(self._hashes, dtype=np.int64)) if self._hashes else np.empty(0, dtype=np.int64)
        return set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())

    def check(self, again: Callable[[], Iterable[tuple[str, str]]]) -> None:
        """Where ids may stand twice, read them `again`, each after where it stands.

        Raises UserError for the first that does, with both its rows.
        """
        if not (suspects := self.suspects()):
            return
        first: dict[str, str] = {}
        for where, value in again():
            if hash(value) in suspects and first.setdefault(value, where) != where:
                same_file = where.rpartition(" ")[0].rpartition(" ")[0] + " "
                earlier = first[value].removeprefix(same_file)
                raise UserError(f"{where}: the id {value} stands in {earlier} already; ids must be unique")
