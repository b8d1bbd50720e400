"""The section of docs/scale.md about rehearsals, from what `pretrieve rehearse RECIPE --json` printed.

`pretrieve rehearse came --passages 1000000 --queries 100 --limit 9000 --json > benchmarks/results/rehearsal_came.json`,
then `python -m benchmarks.scale`. On a CPU that only emulates bfloat16, `--set rounds.0.train.fit.precision=null` and
the like have the steps of true shapes in float32.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks import results
from tasks.runtime.formatting import in_units

FILES = "rehearsal_*.json"
STAGES = ("stage", "round", "rows", "seconds", "growth", "hours", "memory", "disk")
STEPS = ("training", "round", "rows at a time", "of rows", "seconds a step", "memory", "hours")
ARTIFACT = re.compile(r"store/\w+/[0-9a-f]{24}: ")
"""The name of an artifact in a message; its store was deleted after the rehearsal."""
Result = Mapping[str, Any]


def section() -> Iterator[str]:
    """Yield the tables of all rehearsals whose results are here."""
    yield (
        "Printed by `pretrieve rehearse`: the real stages on synthetic passages with tiny models, in one process "
        "on one thread of a busy CPU, extrapolated to the recipe's collection. Hours are blank where a model or a "
        "GPU does the work. A buffer that is not full at the smaller size, such as the lists of 1,024 queries in "
        "mining, is extrapolated as if it grew on, although the first table of this page shows that it does not. "
        "MS MARCO has a train query for one passage in 17: where fewer passages have one, label_passages, the searches "
        "of mining and mine take less than with its queries, in this proportion. Training steps have the recipe's "
        "model, lengths and precision, and the chunk that fits; their hours are those of this CPU. Hours on a GPU are "
        "what `pretrieve plan RECIPE --gpu h200` counts."
    )
    for path in sorted(results.FOLDER.glob(FILES)):
        yield from ["", *tables(results.read(path))]
    yield ""


def tables(result: Result) -> Iterator[str]:
    """Yield a rehearsal's tables of stages and of training steps, and what would break."""
    small, large = result["passages"]
    changed = "".join(f" `--set {change}`" for change in result["changes"])
    yield (
        f"**`{result['recipe']}`**{changed} with {small:,} and {large:,} passages, extrapolated to {result['full']:,}; "
        f"one in {result['query_every']:,} has a train query:"
    )
    yield from ["", *_head(STAGES)]
    for stage in result["stages"]:
        measured, hours, rows = stage["measured"], stage["hours"], stage["measured"]["rows"]
        yield _row([
            measured["stage"], measured["round"], "" if rows is None else f"{rows:,}", f"{measured['seconds']:.1f}",
            "" if hours is None else f"N^{stage['growth']:.1f}", "" if hours is None else f"{hours:,.2f}",
            _size(stage["memory"]), _size(stage["disk"]),
        ])  # fmt: skip
    if result["steps"]:
        yield from ["", *_head(STEPS)]
    for step in result["steps"]:
        hours = "not known" if step["hours"] is None else f"{step['hours']:,.0f}"
        numbers = (f"{step['chunk']:,}", f"{step['rows']:,}", f"{step['seconds']:,.1f}")
        yield _row([step["stage"], step["round"], *numbers, _size(step["counted_bytes"]), hours])
    named = [f"- {ARTIFACT.sub('', problem)}" for problem in result["problems"]] or ["- nothing"]
    yield from ["", "Named as what would break:", "", *named]


def _size(num_bytes: float) -> str:
    """Return bytes with their unit; a dash below 50 MB, which is noise."""
    return "–" if num_bytes < 5e7 else in_units(num_bytes)


def _head(names: Sequence[str]) -> list[str]:
    return [_row(names), f"|{'---|' * len(names)}"]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
