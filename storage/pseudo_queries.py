"""Reading pseudo-queries: those that are kept, beside the passages they were written for."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

from storage.artifact import Artifact
from storage.rows import read_rows
from storage.tables import PseudoQueries

Row = dict[str, Any]


def kept_queries(pseudo_queries: Artifact[PseudoQueries]) -> Iterator[Row]:
    """The rows that no filter has dropped and that are not empty, in order."""
    return (row for row in read_rows(pseudo_queries, PseudoQueries) if row["kept"])


class Alongside:
    """Kept pseudo-queries, which come in the order of their passages, walked side by side with these."""

    def __init__(self, pseudo_queries: Artifact[PseudoQueries] | None) -> None:
        rows = iter(()) if pseudo_queries is None else kept_queries(pseudo_queries)
        self._groups = groupby(rows, key=itemgetter("passage_id"))
        self._waiting = next(self._groups, None)

    def of(self, passage_id: str, number: int | None = None) -> list[str]:
        """The next passage's by rank, or the first so many; [] if it has none."""
        if self._waiting is None or self._waiting[0] != passage_id:
            return []
        by_rank = sorted(self._waiting[1], key=itemgetter("rank"))
        self._waiting = next(self._groups, None)
        return [row["query"] for row in islice(by_rank, number)]

    def end(self) -> None:
        """Raise ValueError where a passage's were not taken: the passages are others, or in another order."""
        if self._waiting is not None:
            raise ValueError(
                f"the pseudo-queries of {self._waiting[0]} are out of the passages' order, or of other passages"
            )
