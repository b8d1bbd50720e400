"""Histograms of queries: columns with a label, the numbers of kept and dropped queries, and a cutoff."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

LONGEST_QUERY = 32  # words; longer queries share the last column
RANK_GROUPS = [(1, 1), (2, 2), (3, 3), (4, 5), (6, 10), (11, 20), (21, 50), (51, 100)]
MOST_COLUMNS = 30  # of the histogram of relevance
STEPS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0]

Column = dict[str, Any]
Row = tuple[str, str, int, int]
"""The label of a column, the text below it, and the numbers of kept and dropped queries."""


def columns(rows: Sequence[Row], cut: int | None = None) -> list[Column]:
    """Return columns with heights relative to the highest; `cut` is the index of the first column after the cutoff."""
    most = max((kept + dropped for _, _, kept, dropped in rows), default=0) or 1
    return [
        {"label": label, "shown": shown, "kept": kept, "dropped": dropped,
         "kept_height": kept / most, "dropped_height": dropped / most, "cut": number == cut}
        for number, (label, shown, kept, dropped) in enumerate(rows)
    ]  # fmt: skip


def columns_of_lengths(words: Mapping[str, int]) -> list[Column]:
    """Return queries by their number of words; those with `LONGEST_QUERY` words and more share a column."""
    counts: dict[int, int] = {}
    for length, count in words.items():
        shown = min(int(length), LONGEST_QUERY)
        counts[shown] = counts.get(shown, 0) + count
    lengths = range(min(counts, default=0), max(counts, default=-1) + 1)
    labels = [f"{length}+" if length == LONGEST_QUERY else str(length) for length in lengths]
    every = 1 if len(labels) <= 16 else 4
    return columns([
        (label, label if length % every == 0 else "", counts.get(length, 0), 0)
        for label, length in zip(labels, lengths, strict=True)
    ])  # fmt: skip


def columns_of_tenths(tenths: Sequence[int]) -> list[Column]:
    """Return queries by the share of their words that occur in their passage, in tenths."""
    return columns([
        (f"{10 * tenth}–{10 * tenth + 10} %", f"{10 * tenth} %", count, 0) for tenth, count in enumerate(tenths)
    ])  # fmt: skip


def columns_of_ranks(round_trip: Mapping[str, Any]) -> list[Column]:
    """Return queries by the rank of their passage; ranges grow with the rank, and the last column is "not found"."""
    cut, ranks = round_trip["cut"], round_trip["ranks"]
    groups = _rank_groups(max((rank for rank, _, _ in ranks), default=0), cut)
    rows: list[Row] = []
    for first, last in groups:
        label, shown = (str(first), str(first)) if first == last else (f"{first} to {last}", f"≤{last}")
        rows.append((label, shown, *_counts(ranks, first, last)))
    rows.append(("not found", "none", *_counts(ranks, 0, 0)))
    if not cut:
        return columns(rows)
    return columns(rows, sum(last <= cut for _, last in groups))


def _rank_groups(deepest: int, cut: int | None) -> list[tuple[int, int]]:
    """Return the first and the last rank of each column; the cutoff divides the range that contains it."""
    groups = [group for group in RANK_GROUPS if group[0] <= deepest]
    if deepest > RANK_GROUPS[-1][1]:
        groups.append((RANK_GROUPS[-1][1] + 1, deepest))
    divided = []
    for first, last in groups:
        if cut and first <= cut < last:
            divided += [(first, cut), (cut + 1, last)]
        else:
            divided.append((first, last))
    return divided


def _counts(ranks: Sequence[tuple[int, int, int]], first: int, last: int) -> tuple[int, int]:
    """Return the numbers of kept and dropped queries with these ranks."""
    inside = [(kept, dropped) for rank, kept, dropped in ranks if first <= rank <= last]
    return sum(kept for kept, _ in inside), sum(dropped for _, dropped in inside)


def columns_of_relevance(relevance: Mapping[str, Any]) -> list[Column]:
    """Return queries by their score in at most `MOST_COLUMNS` equal steps; one step begins at the cutoff, if any."""
    counts = relevance["counts"]
    low, high, cut = counts[0][0], counts[-1][0], relevance["cut"]
    step = next((step for step in STEPS if (high - low) / step < MOST_COLUMNS - 2), STEPS[-1])
    origin = 0.0 if cut is None else cut
    first, last = (math.floor((score - origin) / step + 1e-6) for score in (low, high))
    kept, dropped = [0] * (last - first + 1), [0] * (last - first + 1)
    for score, num_kept, num_dropped in counts:
        column = math.floor((score - origin) / step + 1e-6) - first
        kept[column] += num_kept
        dropped[column] += num_dropped
    labels = [
        f"{origin + step * (first + column):.{2 if step < 0.1 else 1}f}".replace("-", "−")
        for column in range(len(kept))
    ]
    every = math.ceil(len(labels) / 8)
    shown = [label if (first + column) % every == 0 else "" for column, label in enumerate(labels)]
    return columns(list(zip(labels, shown, kept, dropped, strict=True)), None if cut is None else -first)
