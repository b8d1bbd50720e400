"""`pretrieve plan`: a recipe's stages and their costs, without building any.

Estimates of disk and hours are marked with ~, and a note below the table names the origin of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from flows.plan.costs import in_hours, in_powers, in_words_of_time
from flows.plan.counts import in_words
from flows.plan.estimates import EstimatedPlan, StageEstimate, estimated
from flows.plan.gpu_needs import gpu_table, gpu_total
from flows.plan.gpus import Gpu, find_gpu
from flows.terminal import Terminal, say, say_json, unwrapped
from tasks.runtime.formatting import duration, in_units, short

UNKNOWN = "?"
MANY_HOURS = 100.0
OTHER_HOURS = (
    "docs/scale.md#what-a-reproduction-of-each-paper-costs has another estimate: it adds search, gives a query ten "
    "tokens, and uses the step that was measured for the recipe"
)
WIDTH = 150  # columns that keys and the names of rounds need to be shown complete


def show_plan(name: str, folder: Path, changes: Sequence[str], as_json: bool = False, gpu: str | None = None) -> None:
    """Print the plan as a table or as JSON, with what is missing and what the numbers are based on.

    With the name of a GPU, memory and hours of the stages that run an encoder or a generator follow.
    """
    figures, progress = find_gpu(gpu) if gpu is not None else None, unwrapped(stderr=True)
    if figures is not None:
        progress.print("counting the memory and the operations of each stage …")
    plan = estimated(name, folder, changes, figures, progress.print)
    if as_json:
        on_gpu = {"gpu": _gpu_as_json(gpu, figures, plan)} if gpu is not None and figures is not None else {}
        say_json(plan_as_json(plan) | on_gpu)
    else:
        print_plan(plan, gpu, figures)


def plan_as_json(plan: EstimatedPlan) -> dict[str, Any]:
    """Return the plan for programs, without the needs on a GPU."""
    stages = [stage_as_json(row) for row in plan.rows]
    return {"stages": stages, "not_here": plan.absent, "counted": plan.counted, "notes": plan.notes}


def stage_as_json(row: StageEstimate) -> dict[str, Any]:
    """Return a stage for programs: the texts of the table, as in earlier versions, and the numbers."""
    return _texts(row) | {
        "num_tokens": row.tokens, "num_flops": row.flops, "disk_bytes": row.disk_bytes, "num_hours": row.hours,
    }  # fmt: skip


def _gpu_as_json(gpu: str, figures: Gpu, plan: EstimatedPlan) -> dict[str, Any]:
    return {"name": gpu, **figures.model_dump(), "stages": [need.as_json() for need in plan.needs]}


def print_plan(plan: EstimatedPlan, gpu: str | None = None, figures: Gpu | None = None) -> None:
    """Print the plan as a table with its notes, and the table of a GPU where one is given."""
    console = Terminal()
    console.width = max(console.width, WIDTH)
    given = f", on {plan.collection}" if plan.collection else ""
    console.print(plan_table(f"{plan.recipe.title} ({plan.name}{given})", plan.rows))
    missing = sum(not row.cached for row in plan.rows)
    print(f"{len(plan.rows)} stages: {len(plan.rows) - missing} cached, {missing} to build; nothing was built")
    if total := total_time(plan.rows):
        print(total)
        if gpu is None and hours_of(plan.rows) > MANY_HOURS:
            say(
                "these are hours of this machine: `--gpu NAME` gives those of a GPU, and recipes in small/ run on a CPU"
            )
    say(legend(plan.rows))
    if gpu is not None and figures is not None:
        console.print(gpu_table(Path(gpu).stem, plan.needs))
        if on_gpu := gpu_total(Path(gpu).stem, plan.needs, missing):
            say(on_gpu)
        say(figures.rates(Path(gpu).stem))
        say("memory and bytes are counted, every text at its full length; docs/scale.md compares them with an H100")
        say(OTHER_HOURS)
    for note in (*(f"not here: {what}" for what in plan.absent), *in_words(plan.counted), *plan.notes):
        say(note)


def plan_table(title: str, rows: Sequence[StageEstimate]) -> Table:
    """Return the stages as a table for the terminal."""
    table = Table(title=title, title_justify="left")
    for heading in ("stage", "round", "key", "state"):
        table.add_column(heading, no_wrap=heading != "round", overflow="fold")
    for heading in ("tokens ≤", "FLOPs ≤", "disk", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row).values())
    return table


def _cells(row: StageEstimate) -> dict[str, str]:
    """Return the cells of a stage's row by column: its texts, with what tells it apart, and the time with a unit."""
    time = "" if row.hours is None else f"{'' if row.cached else '~'}{in_words_of_time(row.hours)}"
    return _texts(row) | {"stage": f"{row.stage} {row.detail}".strip(), "round": row.system or row.round, "hours": time}


def _texts(row: StageEstimate) -> dict[str, str]:
    """Return the texts of a stage for programs."""
    unknown = UNKNOWN if row.is_counted else ""
    mark = "" if row.cached else "~"
    return {
        "stage": row.stage, "round": row.round, "key": row.key, "state": "cached" if row.cached else "to build",
        "tokens": unknown if row.tokens is None else in_powers(row.tokens),
        "flops": unknown if row.flops is None else in_powers(row.flops),
        "disk": "" if row.disk_bytes is None else f"{mark}{in_units(row.disk_bytes)}",
        "hours": "" if row.hours is None else f"{mark}{in_hours(row.hours)}",
    }  # fmt: skip


def legend(rows: Sequence[StageEstimate]) -> str:
    """Return what the signs of the table mean, without those that it lacks."""
    unknown = any(_texts(row)["tokens"] == UNKNOWN for row in rows)
    return (
        "tokens and FLOPs: of encoders and generators, at most, every text at its full length; ~ marks an estimate"
        + f"; {UNKNOWN}: the number of texts is not known yet" * unknown
    )


def total_time(rows: Sequence[StageEstimate]) -> str:
    """Return the time of the stages to build, and how many have no estimate; empty where none has one."""
    to_build = [row for row in rows if not row.cached]
    known = sum(row.hours is not None for row in to_build)
    if not known:
        return ""
    hours = hours_of(rows)
    time = f"{short(hours)} hours" if hours >= 1 else duration(hours * 3600)
    total = f"in total: ~{time}, for {known} of {len(to_build)} stages to build"
    return total if known == len(to_build) else f"{total}; the others have no estimate"


def hours_of(rows: Sequence[StageEstimate]) -> float:
    """Return the estimated hours of the stages to build."""
    return sum(row.hours or 0.0 for row in rows if not row.cached)
