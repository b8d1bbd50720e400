"""The tables that a rehearsal prints."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from flows.rehearsal.measurement import Extrapolation
from flows.rehearsal.true_shapes import TrueStep
from tasks.runtime.formatting import in_units


def stages_table(title: str, stages: Sequence[Extrapolation]) -> Table:
    """Return what each stage took with synthetic data, and what it would take at full size."""
    table = Table(title=title, title_justify="left")
    table.add_column("stage", no_wrap=True)
    table.add_column("round")
    for heading in ("rows", "seconds", "growth", "hours", "memory", "disk"):
        table.add_column(heading, justify="right", no_wrap=True)
    for stage in stages:
        measured = stage.measured
        table.add_row(
            measured.stage, measured.round, "" if measured.rows is None else f"{measured.rows:,}",
            f"{measured.seconds:.1f}", "" if stage.hours is None else f"N^{stage.growth:.1f}",
            "" if stage.hours is None else f"~{stage.hours:,.2f}", f"~{in_units(int(stage.memory))}",
            f"~{in_units(int(stage.disk))}",
        )  # fmt: skip
    return table


def steps_table(steps: Sequence[TrueStep]) -> Table:
    """Return what a step of each training takes with the true shapes on this machine."""
    table = Table(title="training steps with the true shapes on this machine", title_justify="left")
    table.add_column("stage", no_wrap=True)
    table.add_column("round")
    for heading in ("rows at a time", "of rows", "s/step", "memory", "hours"):
        table.add_column(heading, justify="right", no_wrap=True)
    for step in steps:
        hours = "?" if step.hours is None else f"~{step.hours:,.0f}"
        table.add_row(
            step.stage, step.round, f"{step.chunk:,}", f"{step.rows:,}", f"~{step.seconds:,.1f}",
            in_units(step.counted_bytes), hours,
        )  # fmt: skip
    return table
