"""`pretrieve matrix`: run what a matrix lacks, one run after the other; a run that fails does not stop the others.

Runs share artifacts through the store, and an interrupted matrix resumes. Several processes or hosts may run the same
matrix: each takes runs that no other has begun, and waits for the others at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import typer

from flows.matrix.grid import Grid
from flows.matrix.planned import PlannedCell, PlannedGrid, State
from flows.matrix.results import PAGE, contents, write_page
from flows.reproduce import as_flow, build, published
from flows.terminal import Terminal, say, say_json, unwrapped
from storage.artifact import Artifact
from storage.store import sources
from storage.store.run_notes import NotedRun, noted, read_notes
from storage.store.store import Store
from storage.tables import Report
from tasks.report.page.matrix_page import terminal_tables
from tasks.report.publish import is_of
from tasks.session import Session

Builder = Callable[[PlannedCell, NotedRun], None]
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

    def builder(cell: PlannedCell, note: NotedRun) -> None:
        build(cell.jobs, plan.report_name(cell), Session(plan.store, cell.recipe.execution, False, console.print, note))

    def body() -> int:
        return run_missing(plan, builder, console.print)

    if not missing_stages(plan):
        return body()
    return as_flow("matrix", f"matrix {plan.grid.name}", current, body)


def run_missing(plan: PlannedGrid, builder: Builder, print_line: Callable[[str], None]) -> int:
    """Build each run that the store lacks, and write the page after each; return the number of runs that failed."""
    failed, waiting = 0, list(plan.cells)
    while waiting:
        cell = _next(plan, waiting)
        waiting.remove(cell)
        words = f"{len(plan.cells) - len(waiting)} of {len(plan.cells)}: {cell.cell.words}"
        if plan.state(cell) is State.COMPLETE:
            _publish(plan, cell)
        else:
            print_line(f"{words}: {len(cell.missing(plan.store))} of {len(cell.jobs)} stages to build")
            failed += not _attempt(plan, cell, builder, print_line)
    write_page(plan)
    return failed


def _next(plan: PlannedGrid, waiting: Sequence[PlannedCell]) -> PlannedCell:
    """Return the first run that no other process is running, or the first of those that are."""
    notes = read_notes(plan.store.root)
    return next((cell for cell in waiting if plan.state(cell, notes) is not State.RUNNING), waiting[0])


def _attempt(plan: PlannedGrid, cell: PlannedCell, builder: Builder, print_line: Callable[[str], None]) -> bool:
    """Build a run; return whether it was built. The reason of a failure is kept and printed.

    What ends the whole matrix, such as a signal or the loss of Prefect's server, is raised, and the page says so.
    """
    import httpx

    plan.forget_failure(cell)
    try:
        with noted(plan.store, "matrix", f"{plan.grid.name}: {cell.cell.words}", list(cell.jobs)) as note:
            write_page(plan)
            builder(cell, note)
            note.finish()
    except BaseException as error:
        if isinstance(error, httpx.TransportError) or not isinstance(error, Exception):
            write_page(plan)  # it would say that this run is running
            raise
        plan.note_failure(cell, error)
        print_line(f"{cell.cell.words} failed: {plan.failure(cell)}; the next run starts")
        return False
    return True


def _publish(plan: PlannedGrid, cell: PlannedCell) -> None:
    """Publish the report of a complete run with the matrix, so that garbage collection keeps its artifacts."""
    report = Artifact[Report]("report", cell.report, plan.store.folder("report", cell.report))
    if not is_of(plan.folder / cell.cell.folder / "report.json", report):
        steps = PlannedGrid.again(cell, plan.store).steps  # another process may have built it after it was planned
        published(plan.report_name(cell), report, plan.store, steps)


def missing_stages(plan: PlannedGrid) -> int:
    """Return the number of different stages that are still to be built."""
    return list(plan.stages().values()).count(False)


def described(plan: PlannedGrid) -> str:
    """Return in words what a matrix is and what is still to be done."""
    stages, states = plan.stages(), [plan.state(cell) for cell in plan.cells]
    listed = sum(len(cell.jobs) for cell in plan.cells)
    return (
        f"matrix {plan.grid.name}: {len(plan.cells)} runs, {states.count(State.COMPLETE)} complete; {len(stages)} "
        f"different stages ({listed} in all runs), {missing_stages(plan)} to build; store {plan.store.root}"
    )
