"""Counts as columns of a picture: each with its label, how many are kept and dropped, and where a cut lies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

LONGEST_QUERY = 32  # words, in the picture of lengths
RANKS = [(1, 1), (2, 2), (3, 3), (4, 5), (6, 10), (11, 20), (21, 50), (51, 100)]
MOST_COLUMNS = 30  # of relevance
STEPS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0]

Column = dict[str, Any]
Row = tuple[str, str, int, int]
"""What a column is called, what is written below it, and how many are kept and dropped."""


def columns(rows: Sequence[Row], cut: int | None = None) -> list[Column]:
    """Heights are parts of the highest; a `cut` lies before the column of this place."""
    most = max((kept + dropped for _, _, kept, dropped in rows), default=0) or 1
    return [
        {"label": label, "shown": shown, "kept": kept, "dropped": dropped,
         "kept_height": kept / most, "dropped_height": dropped / most, "cut": place == cut}
        for place, (label, shown, kept, dropped) in enumerate(rows)
    ]  # fmt: skip


def columns_of_lengths(words: Mapping[str, int]) -> list[Column]:
    """Queries by their number of words; those of `LONGEST_QUERY` words and more stand together."""
    counts: dict[int, int] = {}
    for length, count in words.items():
        shown = min(int(length), LONGEST_QUERY)
        counts[shown] = counts.get(shown, 0) + count
    lengths = range(min(counts, default=0), max(counts, default=-1) + 1)
    labels = [f"{each}+" if each == LONGEST_QUERY else str(each) for each in lengths]
    every = 1 if len(labels) <= 16 else 4
    return columns([
        (label, label if each % every == 0 else "", counts.get(each, 0), 0)
        for label, each in zip(labels, lengths, strict=True)
    ])  # fmt: skip


def columns_of_tenths(tenths: Sequence[int]) -> list[Column]:
    """Queries by the share of their words that stand in their passage."""
    return columns([
        (f"{10 * place}–{10 * place + 10} %", f"{10 * place} %", count, 0) for place, count in enumerate(tenths)
    ])  # fmt: skip


def columns_of_ranks(round_trip: Mapping[str, Any]) -> list[Column]:
    """Queries by the rank of their passage, wider apart further down; the last column is of those not found."""
    deepest = max((rank for rank, _, _ in round_trip["ranks"]), default=0)
    groups = [group for group in RANKS if group[0] <= deepest]
    if deepest > RANKS[-1][1]:
        groups.append((RANKS[-1][1] + 1, deepest))
    if cut := round_trip["cut"]:
        groups = [part for group in groups for part in _parted(group, cut)]
    rows: list[Row] = []
    for first, last in groups:
        inside = [each for each in round_trip["ranks"] if first <= each[0] <= last]
        label, shown = (str(first), str(first)) if first == last else (f"{first} to {last}", f"≤{last}")
        rows.append((label, shown, sum(each[1] for each in inside), sum(each[2] for each in inside)))
    missing = [each for each in round_trip["ranks"] if each[0] == 0]
    rows.append(("not found", "none", sum(each[1] for each in missing), sum(each[2] for each in missing)))
    after = next((place for place, (first, _) in enumerate(groups) if cut and first > cut), len(groups))
    return columns(rows, after if cut else None)


def _parted(group: tuple[int, int], cut: int) -> list[tuple[int, int]]:
    """A range of ranks, in two where the cut lies within."""
    first, last = group
    return [(first, cut), (cut + 1, last)] if first <= cut < last else [group]


def columns_of_relevance(relevance: Mapping[str, Any]) -> list[Column]:
    """Queries by their score, in at most `MOST_COLUMNS` equal steps; one begins at the cut, if there is one."""
    counts = relevance["counts"]
    low, high, cut = counts[0][0], counts[-1][0], relevance["cut"]
    step = next((each for each in STEPS if (high - low) / each < MOST_COLUMNS - 2), STEPS[-1])
    origin = 0.0 if cut is None else cut
    first, last = (math.floor((score - origin) / step + 1e-6) for score in (low, high))
    kept, dropped = [0] * (last - first + 1), [0] * (last - first + 1)
    for score, num_kept, num_dropped in counts:
        place = math.floor((score - origin) / step + 1e-6) - first
        kept[place] += num_kept
        dropped[place] += num_dropped
    labels = [
        f"{origin + step * (first + place):.{2 if step < 0.1 else 1}f}".replace("-", "−") for place in range(len(kept))
    ]
    every = math.ceil(len(labels) / 8)
    shown = [label if (first + place) % every == 0 else "" for place, label in enumerate(labels)]
    return columns(list(zip(labels, shown, kept, dropped, strict=True)), None if cut is None else -first)
