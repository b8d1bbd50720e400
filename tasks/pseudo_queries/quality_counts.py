"""Counts over the rows of a corpus of pseudo-queries, in constant memory.

Measures of texts are over the kept queries; scores are over all scored queries, kept or dropped.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from storage.external.database import Database
from storage.external.distinct import Distinct
from tasks.pseudo_queries.query_text import Look

QUANTILES = (5, 25, 50, 75, 95, 99)
FIRST_WORDS, MOST_FIRST_WORDS = 20, 200_000  # those reported, and those counted at a time
EXAMPLES, LETTERS = 10, 300  # of a kind, and of each
LONG_WORDS = 32  # the default number of words above which a query is too long
FINE = 100  # relevance is counted in hundredths, and drawn in wider steps
FURTHEST = 100.0  # scores are clipped to this

Row = Mapping[str, Any]


class Figures:
    """Counts over pseudo-queries."""

    def __init__(self, database: Database, table: str, long_words: int = LONG_WORDS) -> None:
        """Create the figures of no rows; `table` of the database is for counting different queries."""
        self.passages = self.written = self.kept = self.copied = self.verbatim = self.questions = self.in_passage = 0
        self.reasons: Counter[str] = Counter()
        self.lengths: Counter[int] = Counter()
        self.copies: Counter[int] = Counter()
        self.first_words: Counter[str] = Counter()
        self.ranks: Counter[tuple[int, bool]] = Counter()
        self.relevance: Counter[tuple[int, bool]] = Counter()
        self.relevance_sum = 0.0
        self.loops, self.long = Examples(), Examples()
        self._long_words, self._distinct = long_words, Distinct(database, table)

    def add(self, rows: Sequence[Row], looks: Sequence[Look | None]) -> None:
        """Add the rows of one passage, with the measures of each kept query and None for the others."""
        self.passages += 1
        for row, look in zip(rows, looks, strict=True):
            self._count(row)
            if look is not None:
                self._look(row, look)
        self.in_passage += len({look.hashed for look in looks if look is not None})

    def _count(self, row: Row) -> None:
        self.written += 1
        kept = row["kept"]
        if not kept:
            self.reasons[row["reason"]] += 1
        if row["round_trip"] is not None:
            self.ranks[row["round_trip"], kept] += 1
        if (score := row["relevance"]) is not None and not math.isnan(score):
            self.relevance_sum += score
            self.relevance[math.floor(FINE * min(max(score, -FURTHEST), FURTHEST)), kept] += 1

    def _look(self, row: Row, look: Look) -> None:
        self.kept += 1
        num_words = len(look.words)
        self.lengths[num_words] += 1
        self.copied += look.copied
        self.verbatim += look.verbatim
        self.questions += look.question
        self._distinct.add(look.hashed)
        if num_words:
            self.copies[min(10 * look.copied // num_words, 9)] += 1
            self.first_words[look.words[0]] += 1
            if len(self.first_words) > MOST_FIRST_WORDS:
                self.first_words = Counter(dict(self.first_words.most_common(MOST_FIRST_WORDS // 2)))
        if num_words > self._long_words:
            self.long.add(look.hashed, {"query": row["query"], "words": num_words})
        if look.loop:
            self.loops.add(look.hashed, {"query": row["query"], "loop": look.loop})

    def main(self) -> dict[str, Any]:
        """Return the measures by which corpora are compared; a share of 0 queries is None. May be called once."""
        num_words = sum(words * count for words, count in self.lengths.items())
        return {
            "written": self.written,
            "queries": self.kept,
            "dropped": dict(sorted(self.reasons.items())),
            "kept_share": ratio(self.kept, self.written),
            "mean_words": ratio(num_words, self.kept),
            "distinct_share": ratio(self._distinct.count(), self.kept),
            "distinct_share_in_passage": ratio(self.in_passage, self.kept),
            "copied_share": ratio(self.copied, num_words),
            "verbatim_share": ratio(self.verbatim, self.kept),
            "question_share": ratio(self.questions, self.kept),
            "long_share": ratio(self.long.count, self.kept),
            "looped_share": ratio(self.loops.count, self.kept),
            "round_trip": round_trip(self.ranks, "every query", cut=bool(self.reasons["round trip"]))
            if self.ranks
            else None,
            "relevance": self._relevance() if self.relevance else None,
        }

    def details(self) -> dict[str, Any]:
        """Return the distributions for charts; first words are counted exactly if there are at most 200,000."""
        ordered = sorted(self.first_words.items(), key=lambda item: (-item[1], item[0]))
        return {
            "words": {str(words): count for words, count in sorted(self.lengths.items())},
            "words_quantiles": quantiles(self.lengths),
            "copied_tenths": [self.copies[tenth] for tenth in range(10)],
            "first_words": [list(item) for item in ordered[:FIRST_WORDS]],
            "long": {"words": self._long_words, **self.long.figures()},
            "loops": self.loops.figures(),
        }

    def _relevance(self) -> dict[str, Any]:
        scores: Counter[int] = Counter()
        for (score, _), count in self.relevance.items():
            scores[score] += count
        least = min((score for score, kept in self.relevance if kept), default=None)
        return {
            "queries": scores.total(),
            "mean": self.relevance_sum / scores.total(),
            "quantiles": {name: score / FINE for name, score in quantiles(scores).items()},
            "cut": least / FINE if least is not None and self.reasons["relevance"] else None,
            "counts": [[score / FINE, self.relevance[score, True], self.relevance[score, False]]
                       for score in sorted(scores)],
        }  # fmt: skip


class Examples:
    """Counts queries and keeps those with the smallest hashes as examples, independent of their order."""

    def __init__(self) -> None:
        self.count = 0
        self._kept: dict[int, Row] = {}

    def add(self, hashed: int, example: Row) -> None:
        """Count a query, and keep it if its hash is small enough."""
        self.count += 1
        if len(self._kept) < EXAMPLES or hashed < max(self._kept):
            self._kept[hashed] = {**example, "query": shortened(example["query"], LETTERS)}
            if len(self._kept) > EXAMPLES:
                del self._kept[max(self._kept)]

    def figures(self) -> dict[str, Any]:
        """Return the number of queries and the examples."""
        return {"queries": self.count, "examples": [self._kept[hashed] for hashed in sorted(self._kept)]}


def round_trip(ranks: Counter[tuple[int, bool]], of: str, *, cut: bool) -> dict[str, Any]:
    """Return the measures of the round trip; `ranks` counts pairs of rank (0: not found) and whether it is kept.

    With `cut`, the last kept rank is reported as the cutoff.
    """
    total = ranks.total()
    return {
        "of": of,
        "queries": total,
        "success@1": ratio(_within(ranks, 1), total),
        "success@10": ratio(_within(ranks, 10), total),
        "mrr@10": ratio(sum(count / rank for (rank, _), count in ranks.items() if 0 < rank <= 10), total),
        "cut": max((rank for rank, kept in ranks if kept), default=None) if cut else None,
        "ranks": [[rank, ranks[rank, True], ranks[rank, False]] for rank in sorted({rank for rank, _ in ranks})],
    }


def _within(ranks: Counter[tuple[int, bool]], last: int) -> int:
    return sum(count for (rank, _), count in ranks.items() if 0 < rank <= last)


def quantiles(counts: Mapping[int, int]) -> dict[str, int]:
    """Return the quantiles and the largest value of counted values; {} if there are none."""
    values = sorted(counts)
    ends = list(accumulate(100 * counts[value] for value in values))
    quantile = {str(percent): values[bisect_left(ends, percent * ends[-1] // 100)] for percent in QUANTILES if values}
    return {**quantile, "max": values[-1]} if values else {}


def ratio(part: float, whole: int) -> float | None:
    """Return part / whole, or None if whole is 0."""
    return part / whole if whole else None


def shortened(text: str, letters: int) -> str:
    """Return the text, truncated to a number of characters."""
    return text if len(text) <= letters else f"{text[: letters - 1]}…"
