"""The exponents of growth: by which power of the collection's size a stage's seconds grow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

SHORTEST = 0.1  # CPU seconds; below, the spread of start-ups says more than the work
FLAT_MIB = 32.0  # of memory between the two largest sizes
NOISE = 0.1  # of an exponent, as seen when a stage is measured again on a busy machine
TAKEN_OFF = {
    "pre-train, 32 steps": "pre-train, until the first step",
    "train, 32 steps": "train, until the first step",
}
"""By stage, the measurement whose cost is subtracted; from all others that of the start of the process is."""
EXHAUSTIVE = "each query is compared with every passage, and the queries grow with the passages"
REASONS = {
    "search: BM25": "the queries grow with the passages, and so do the passages that hold a word; Lucene skips most",
    "search: exact, dense": EXHAUSTIVE,
    "search: exact, lexical": EXHAUSTIVE,
}
"""Why a stage grows faster than n log n, where that is how it is meant to be."""
GROUPS = "buffers fill up: at most 10,000 rows or 50 million characters of a table are in memory"
MEMORY_REASONS = {
    "generate queries": (
        "the queries of up to 200,000 passages, one file of the table, and the passages of a shard "
        "(`shard_passages`) are in memory"
    ),
    "encode: dense": "buffers of batches fill up: at most 8,192 passages are in memory",
    "encode: late": "buffers of batches fill up: at most 512 passages are in memory",
    "pair contexts": GROUPS,
    "pre-train, until the first step": GROUPS,
    "search: BM25": "the lists of at most 1,024 queries are in memory, and Lucene's heap is Java's",
    "search: exact, dense": "the lists of at most 1,024 queries are in memory",
    "search: exact, lexical": "the lists of at most 1,024 queries are in memory",
    "search: late, 128 queries": "a tile of at most 512 passages' tokens, and their bounds, are in memory",
    "evaluate": "at most half a million rows of a run are in memory",
    "train, until the first step": "the queries and, for each, the numbers of its passages are in memory",
    "train, 32 steps": "the queries and, for each, the numbers of its passages are in memory",
}
"""Why the memory of a stage grows between the two largest sizes, although no process holds all passages."""
UNKNOWN = "**no reason is known; look into it**"

Points = list[tuple[int, float]]


@dataclass(frozen=True)
class Slope:
    """An exponent by least squares on logarithms, and the least and the greatest between neighbouring sizes."""

    exponent: float
    lowest: float
    highest: float


def seconds(result: Mapping[str, Any], name: str) -> Points:
    """Return a stage's CPU seconds by documents, without start-up or preceding work."""
    start, *rows = result["stages"][name]
    if name in TAKEN_OFF:
        _, *before = result["stages"][TAKEN_OFF[name]]
        off = [row["seconds"] for row in before]
    else:
        off = [start["seconds"]] * len(rows)
    return [(row["documents"], row["seconds"] - less) for row, less in zip(rows, off, strict=True)]


def memory(result: Mapping[str, Any], name: str) -> Points:
    """Return the peak of anonymous memory in MiB above that of the start-up."""
    start, *rows = result["stages"][name]
    return [(row["documents"], max(0.0, row["peak_mib"] - start["peak_mib"])) for row in rows]


def slope(points: Sequence[tuple[int, float]], shortest: float = SHORTEST) -> Slope | None:
    """Return the exponent of growth; None if fewer than two values are large enough."""
    logs = [(math.log(size), math.log(value)) for size, value in points if value >= shortest]
    if len(logs) < 2:
        return None
    means = [sum(column) / len(logs) for column in zip(*logs, strict=True)]
    across = sum((x - means[0]) ** 2 for x, _ in logs)
    steep = sum((x - means[0]) * (y - means[1]) for x, y in logs) / across
    between = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(logs)]
    return Slope(steep, min(between), max(between))


def bytes_each(result: Mapping[str, Any], name: str, what: str) -> float:
    """Return the bytes of memory (`peak_mib`) or disk (`bytes`) of a further document, between the two largest sizes.

    Below these, buffers that are always of one size fill up. Memory that grows by less than `FLAT_MIB` is flat: an
    allocator's ups and downs, and what is kept up to a bound (words, a row group), are as much. What grows by more is
    counted at most, since these are in it, too.
    """
    *_, less, most = result["stages"][name]
    grown: float = most[what] - less[what]
    if what == "peak_mib":
        grown = 0.0 if grown < FLAT_MIB else grown * 2**20
    documents: int = most["documents"] - less["documents"]
    return max(0.0, grown / documents)


def n_log_n(result: Mapping[str, Any]) -> float:
    """Return the exponent of n log n over these sizes."""
    _, *rows = next(iter(result["stages"].values()))
    least, most = rows[0]["documents"], rows[-1]["documents"]
    return 1 + math.log(math.log(most) / math.log(least)) / math.log(most / least)


def faster(result: Mapping[str, Any]) -> list[str]:
    """Return the stages that grow faster than n log n by more than noise."""
    limit = n_log_n(result) + NOISE
    return [
        name for name in result["stages"] if (growth := slope(seconds(result, name))) and growth.exponent > limit
    ]  # fmt: skip
