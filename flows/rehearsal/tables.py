"""The tables that a rehearsal prints."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from flows.plan.costs import in_words_of_time
from flows.rehearsal.measurement import Extrapolation
from flows.rehearsal.true_shapes import TrueStep
from tasks.runtime.formatting import in_units, short


def stages_table(title: str, stages: Sequence[Extrapolation]) -> Table:
    """Return what each stage took with synthetic data, and what it would take at full size."""
    table = Table(title=title, title_justify="left")
    table.add_column("stage", no_wrap=True)
    table.add_column("round")
    for heading in ("rows", "seconds", "growth", "time", "memory", "disk"):
        table.add_column(heading, justify="right", no_wrap=True)
    for stage in stages:
        measured = stage.measured
        table.add_row(
            measured.stage, measured.round, "" if measured.rows is None else f"{measured.rows:,}",
            f"{measured.seconds:.1f}", "" if stage.hours is None else f"N^{stage.growth:.1f}",
            "" if stage.hours is None else _estimated(stage.hours), f"~{in_units(int(stage.memory))}",
            f"~{in_units(int(stage.disk))}",
        )  # fmt: skip
    return table


def steps_table(steps: Sequence[TrueStep]) -> Table:
    """Return what a step of each training takes with the true shapes on this machine."""
    table = Table(title="training steps with the true shapes on this machine", title_justify="left")
    table.add_column("stage", no_wrap=True)
    table.add_column("round")
    for heading in ("rows at a time", "of rows", "s/step", "memory", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for step in steps:
        table.add_row(
            step.stage, step.round, f"{step.chunk:,}", f"{step.rows:,}", f"~{short(step.seconds)}",
            in_units(step.counted_bytes), "?" if step.hours is None else _estimated(step.hours),
        )  # fmt: skip
    return table


def total_time(rows: Sequence[Extrapolation] | Sequence[TrueStep], of_what: str) -> str:
    """Return the time of all rows of a table in words, and how many have one; empty where none has."""
    known = [row.hours for row in rows if row.hours is not None]
    return f"in total: {_estimated(sum(known))}, for {len(known)} of {len(rows)} {of_what}" if known else ""


def _estimated(hours: float) -> str:
    return f"~{in_words_of_time(hours)}"
