"""Estimate the stages at sizes that were never run, 100 million and 10 billion passages, and their limits.

Stages on the CPU are extrapolated from measured growth, by its exponents. Stages that encode texts, and exact search,
are counted in FLOPs. Pre-training is left out: its number of steps is the recipe's, for any corpus.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from benchmarks import slopes, t5_base
from benchmarks.invented import QUERY_EVERY
from benchmarks.page import STYLE
from benchmarks.panels import LINES
from benchmarks.recipe_costs import PASSAGES, WIDTH

SIZES = (100_000_000, 10_000_000_000)  # passages
CORES, GPUS = 64, 64  # that work at a time
MEMORY, DISK, HOURS = 2**40, 100e12, 168.0  # of the host, of the store, a week: what is more than these limits
SHARED = ("split", "mine", "search: BM25")  # stages whose work is in shards, or in threads
CPU_STAGES = (
    "ingest", "split", "pair contexts", "pre-train, until the first step", "index: BM25", "search: BM25", "label",
    "mine", "train, until the first step", "index: FAISS, a graph",
)  # fmt: skip
LUCENE_DOCUMENTS = 2**31 - 129  # IndexWriter.MAX_DOCS: what one index holds at most
INVENTED_WIDTH = 32  # of the vectors whose graph was measured
FLOAT = 4  # bytes
QUERIES_EACH, MAX_TOKENS = 5, 144  # pseudo-queries of a passage, and its tokens
BAR, LEFT, TOP, PICTURE, EDGE = 20, 204, 78, 480, 12  # in pixels
SHORTEST, LONGEST = 0.01, 1e6  # hours, at the ends of the picture's axis


@dataclass(frozen=True)
class Need:
    """The time, memory and disk of a stage at a size."""

    stage: str
    runs_on: str
    hours: float
    memory: float
    disk: float
    cannot: str = ""

    @property
    def limits(self) -> list[str]:
        """Return the limits that the stage exceeds."""
        memory = "memory, if growth continues"
        exceeded = {"time": self.hours > HOURS, memory: self.memory > MEMORY, "disk": self.disk > DISK}
        return [*([self.cannot] if self.cannot else []), *(name for name, too_much in exceeded.items() if too_much)]


@dataclass(frozen=True)
class Rates:
    """FLOPs a second of one GPU, by what it does."""

    encoding: float
    searching: float
    writing: float
    """A model that generates text."""


def needs(growth: Mapping[str, Any], passage_flops: float, rates: Rates, size: int) -> list[Need]:
    """Return each stage's need at a size, from the FLOPs of encoding a passage."""
    ids = slopes.bytes_each(growth, "search: exact, dense", "peak_mib") * size
    writing = t5_base.flops(MAX_TOKENS, QUERIES_EACH)
    vectors, searching = size * WIDTH * FLOAT, 2.0 * size * (size / QUERY_EVERY) * WIDTH
    stages = [_on_cpus(growth, name, size) for name in CPU_STAGES]
    disk = slopes.bytes_each(growth, "generate queries", "bytes") * QUERIES_EACH * size
    gpus = f"{GPUS} GPUs"

    def hours(flops: float, rate: float) -> float:
        return flops / (GPUS * rate * 3600)

    return [
        *stages,
        Need(
            "generate queries",
            gpus,
            hours(size * writing, rates.writing),
            _memory(growth, "generate queries", size),
            disk,
        ),
        Need(
            "encode",
            gpus,
            hours(size * passage_flops, rates.encoding),
            _memory(growth, "encode: dense", size),
            vectors,
        ),
        Need("search: exact, dense", gpus, hours(searching, rates.searching), ids, 0.0),
    ]


def _on_cpus(growth: Mapping[str, Any], name: str, size: int) -> Need:
    points = slopes.seconds(growth, name)
    documents, seconds = points[-1]
    slope = slopes.slope(points)
    cores = CORES if name in SHARED else 1
    exponent = max(1.0, slope.exponent) if slope else 1.0  # less is warming up: a passage's own work stays
    hours = max(0.0, seconds) * (size / documents) ** exponent / cores / 3600
    memory, disk, cannot = _memory(growth, name, size), slopes.bytes_each(growth, name, "bytes") * size, ""
    if "FAISS" in name:  # the graph holds its vectors, and distances are of all their dimensions
        memory, disk = (figure + size * (WIDTH - INVENTED_WIDTH) * FLOAT for figure in (memory, disk))
        hours *= WIDTH / INVENTED_WIDTH
    if "BM25" in name and size > LUCENE_DOCUMENTS:
        cannot = f"Lucene: {LUCENE_DOCUMENTS:,} in an index"
    return Need(name, f"{cores} core{'s' * (cores > 1)}", hours, memory, disk, cannot)


def _memory(growth: Mapping[str, Any], name: str, size: int) -> float:
    return slopes.bytes_each(growth, name, "peak_mib") * size


def table(needs: list[Need]) -> Iterator[str]:
    """Yield the rows of a Markdown table, the longest stage first."""
    yield "| stage | on | hours | memory | disk | limits |"
    yield "|---|---|---|---|---|---|"
    for need in sorted(needs, key=lambda need: -need.hours):
        limits = ", ".join(f"**{limit}**" for limit in need.limits)
        yield (
            f"| {need.stage} | {need.runs_on} | {short(need.hours)} | {in_bytes(need.memory)} | {in_bytes(need.disk)} "
            f"| {limits} |"
        )


def short(number: float) -> str:
    """Format a number with two digits, or as an integer."""
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def in_bytes(number: float) -> str:
    """Format bytes as GB or TB."""
    return "–" if number < 5e7 else f"{short(number / 1e12)} TB" if number >= 1e12 else f"{short(number / 1e9)} GB"


def picture(by_size: Mapping[int, list[Need]]) -> str:
    """Return an SVG with two bars of hours per stage on a logarithmic axis."""
    small, large = by_size
    later = {need.stage: need for need in by_size[large]}
    rows = sorted(by_size[small], key=lambda need: -later[need.stage].hours)
    height = TOP + len(rows) * (2 * BAR + 8) + EDGE
    lines = []
    for number, need in enumerate(rows):
        top = TOP + number * (2 * BAR + 8)
        lines.append(f'<text class="ink" x="{EDGE}" y="{top + BAR + 2}">{escape(need.stage)}</text>')
        for row, artifact in enumerate((need, later[need.stage])):
            y, kind = top + row * BAR, "missed" if artifact.limits else "met" if row else "other"
            width, words = max(2.0, _across(artifact.hours) - LEFT), f"{short(artifact.hours)} h"
            inside = LEFT + width > PICTURE - 90
            x, anchor, colour = (LEFT + width - 6, "end", "on") if inside else (LEFT + width + 6, "start", "soft")
            lines += [
                f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR - 4}" rx="2"/>',
                f'<text class="{colour} small" x="{x:.1f}" y="{y + 12}" text-anchor="{anchor}">{words}</text>',
            ]
    ticks = [
        f'<text class="soft small" x="{_across(hours):.1f}" y="{TOP - 10}" text-anchor="middle">{words}</text>'
        f'<path class="rule" d="M{_across(hours):.1f} {TOP - 4}V{height - EDGE}"/>'
        for hours, words in ((1, "an hour"), (HOURS, "a week"), (8760, "a year"))
    ]
    head = f"Hours at {small / 1e6:,.0f} million passages (above) and {large / 1e9:,.0f} billion (below)"
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {PICTURE} {height}" width="{PICTURE}" '
        f'height="{height}" role="img">',
        f"<title>{head}</title>", f"<style>{STYLE}{LINES}</style>",
        f'<text class="ink head" x="{EDGE}" y="20">{head}</text>',
        f'<text class="soft small" x="{EDGE}" y="40">On {CORES} cores or one, or on {GPUS} GPUs; logarithmic'
        "</text>",
        f'<rect class="missed" x="{PICTURE - 98}" y="31" width="10" height="10" rx="2"/>'
        f'<text class="soft small" x="{PICTURE - 84}" y="40">beyond a limit</text>',
        *ticks, *lines, "</svg>", "",
    ])  # fmt: skip


def _across(hours: float) -> float:
    within = min(LONGEST, max(SHORTEST, hours))
    return LEFT + (PICTURE - LEFT - EDGE) * math.log(within / SHORTEST) / math.log(LONGEST / SHORTEST)


def encoding_flops(costs: Mapping[str, Any], recipe: str, encodings: int) -> float:
    """Return the FLOPs of encoding one passage, for a recipe that encodes MS MARCO `encodings` times."""
    flops: float = costs[recipe]["flops"]["encode"]
    return flops / encodings / PASSAGES
