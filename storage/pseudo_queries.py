"""Read kept pseudo-queries, in step with the passages that they were generated for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

from storage.artifact import Artifact
from storage.rows import read_rows
from storage.tables import PseudoQueries

Row = dict[str, Any]


def kept_queries(pseudo_queries: Artifact[PseudoQueries], first: int = 0, last: int | None = None) -> Iterator[Row]:
    """Yield the rows, from number `first` up to `last`, that are not empty and that no filter has dropped, in order."""
    return (row for row in read_rows(pseudo_queries, PseudoQueries, first, last) if row["kept"])


class Alongside:
    """Rows of pseudo-queries, which come in the order of their passages, read in step with these."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._groups = groupby(rows, key=itemgetter("passage_id"))
        self._next = next(self._groups, None)

    def rows(self, passage_id: str) -> list[Row]:
        """Return the rows of the next passage by rank; [] if it has none."""
        if self._next is None or self._next[0] != passage_id:
            return []
        rows = sorted(self._next[1], key=itemgetter("rank"))
        self._next = next(self._groups, None)
        return rows

    def texts(self, passage_id: str, number: int | None = None) -> list[str]:
        """Return the first `number` queries of the next passage by rank, or all."""
        return [row["query"] for row in self.rows(passage_id)[:number]]

    def end(self) -> None:
        """Raise ValueError where a passage's rows were not read: the passages are others, or in another order."""
        if self._next is not None:
            raise out_of_order(self._next[0])


def out_of_order(passage_id: str) -> ValueError:
    """Return the error of pseudo-queries that do not come in the order of the passages."""
    return ValueError(f"the pseudo-queries of {passage_id} are out of the passages' order, or of other passages")
