"""`pretrieve matrix`: run what a matrix lacks, one run after the other; a run that fails does not stop the others.

Runs share artifacts through the store, and an interrupted matrix resumes. Several processes or hosts may run the same
matrix: each takes runs that no other has begun, and waits for the others at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import typer

from flows.build import build, published
from flows.matrix.attempts import State
from flows.matrix.planned_grid import PlannedGrid
from flows.matrix.planned_run import PlannedRun
from flows.matrix.results import PAGE, contents, write_page
from flows.prefect_server.as_flow import as_flow
from flows.recipe.grid import Cell, Grid
from flows.terminal import Terminal, say, say_json, unwrapped
from storage.artifact import Artifact
from storage.store import sources
from storage.store.run_notes import NotedRun
from storage.store.store import Store
from storage.tables import Report
from tasks.report.page.matrix_page import terminal_tables
from tasks.report.publish import is_of
from tasks.session import Session

Builder = Callable[[PlannedRun[Cell], NotedRun], None]
"""Builds a run of the matrix and publishes its report."""


class RunsFailed(Exception):
    """Runs of a matrix have failed; the message is one line."""


def run(grid: Grid, folder: Path, *, show: bool, as_json: bool) -> None:
    """Run what is missing, or only `show` the matrix; print grid and results. Exit code 1 where a run failed."""
    store, failed = Store.open_or_new(folder), 0
    if show:
        with sources.assuming_present():
            plan = PlannedGrid.of(grid, store, check=False)
    else:
        plan = PlannedGrid.of(grid, store)
        failed = _run_here(plan)
    content = contents(plan)
    if as_json:
        say_json(content)
    else:
        Terminal().print(*terminal_tables(content), sep="\n")
        if not show:
            say(f"page: {plan.folder / PAGE}")
    if failed:
        raise typer.Exit(1)


def _run_here(plan: PlannedGrid) -> int:
    """Run what is missing in this process, as one Prefect flow; return the number of runs that failed."""
    console = unwrapped(stderr=True)
    console.print(described(plan))
    current = Session(plan.store, print_line=console.print)

    def builder(run: PlannedRun[Cell], note: NotedRun) -> None:
        current = Session(plan.store, run.recipe.execution, print_line=console.print, note=note)
        build(run.jobs, plan.report_name(run.definition), current)

    def body() -> int:
        return run_missing(plan, builder, console.print)

    if not missing_stages(plan):
        return body()
    return as_flow("matrix", f"matrix {plan.grid.name}", current, body)


def run_missing(plan: PlannedGrid, builder: Builder, print_line: Callable[[str], None]) -> int:
    """Build each run that the store lacks, and write the page after each; return the number of runs that failed."""
    failed, waiting = 0, list(plan.runs)
    while waiting:
        run, note = _begin_next(plan, waiting)
        if note is None:
            _publish(plan, run)
            continue
        words = f"{len(plan.runs) - len(waiting)} of {len(plan.runs)}: {run.definition.words}"
        try:
            print_line(f"{words}: {len(run.missing(plan.store))} of {len(run.jobs)} stages to build")
            failed += not plan.attempts.attempt(run, note, partial(_build, plan, run, builder), print_line)
        except BaseException:
            write_page(plan)  # it would say that this run is running
            raise
    write_page(plan)
    return failed


def _begin_next(
    plan: PlannedGrid, waiting: list[PlannedRun[Cell]]
) -> tuple[PlannedRun[Cell], NotedRun | None]:  # fmt: skip
    """Take the next run from those that wait; return it, with its note if it is not complete."""
    with plan.attempts.choosing():
        run = plan.attempts.next(waiting) or waiting[0]  # another process runs it, and its stages are waited for
        waiting.remove(run)
        if plan.attempts.state(run) is State.COMPLETE:
            return run, None
        return run, plan.attempts.begin(run, "matrix", f"{plan.grid.name}: {run.definition.words}")


def _build(plan: PlannedGrid, run: PlannedRun[Cell], builder: Builder, note: NotedRun) -> None:
    """Build a run, which the page shows while it runs."""
    write_page(plan)
    builder(run, note)


def _publish(plan: PlannedGrid, run: PlannedRun[Cell]) -> None:
    """Publish the report of a complete run with the matrix, so that garbage collection keeps its artifacts."""
    report = Artifact[Report]("report", run.report, plan.store.folder("report", run.report))
    if not is_of(plan.folder / run.definition.folder / "report.json", report):
        steps = PlannedRun.of(run.definition, plan.store).steps  # another process may have built it meanwhile
        published(plan.report_name(run.definition), report, plan.store, steps)


def missing_stages(plan: PlannedGrid) -> int:
    """Return the number of different stages that are still to be built."""
    return list(plan.stages().values()).count(False)


def described(plan: PlannedGrid) -> str:
    """Return in words what a matrix is and what is still to be done."""
    stages, states = plan.stages(), [plan.attempts.state(run) for run in plan.runs]
    listed = sum(len(run.jobs) for run in plan.runs)
    return (
        f"matrix {plan.grid.name}: {len(plan.runs)} runs, {states.count(State.COMPLETE)} complete; {len(stages)} "
        f"different stages ({listed} in all runs), {missing_stages(plan)} to build; store {plan.store.root}"
    )
