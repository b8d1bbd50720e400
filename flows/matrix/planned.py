"""The plan of a matrix: the stages of every run, and what is complete, running, failed or missing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from flows.chain.given_models import check_models
from flows.matrix.grid import Cell, Grid
from flows.plan import planned
from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from flows.recipe.shipped import recipe_name
from flows.store_lookup import missing_artifacts
from storage.errors import UserError, one_line
from storage.files import write_atomically
from storage.store import run_notes
from storage.store.run_notes import RunNote, read_notes
from storage.store.store import Store
from tasks.job import Job
from tasks.session import Done

FOLDER = "matrix"
"""The folder of all matrices, in the store's `reports`."""


class State(StrEnum):
    """The state of a run."""

    COMPLETE = "complete"
    RUNNING = "running"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    MISSING = "missing"


@dataclass(frozen=True)
class PlannedCell:
    """A run of a matrix and its plan."""

    cell: Cell
    recipe: Recipe[Any]
    title: str
    jobs: Mapping[str, Job]
    steps: Sequence[Done]

    @property
    def report(self) -> str:
        """The key of its report."""
        return next(step.key for step in reversed(self.steps) if step.stage == "report")

    def missing(self, store: Store) -> list[str]:
        """Return the references of the stages that are still to be built."""
        return missing_artifacts(self.jobs, store)


@dataclass(frozen=True)
class PlannedGrid:
    """A matrix whose runs are planned, and the store that they share."""

    grid: Grid
    store: Store
    cells: Sequence[PlannedCell]

    @staticmethod
    def of(grid: Grid, store: Store, *, check: bool = True) -> PlannedGrid:
        """Plan all runs. Raises UserError for a run that cannot work, or two that are the same.

        `check` also opens the models that are read from outside the store.
        """
        cells = [_planned_cell(cell, store, check=check) for cell in grid.cells]
        by_report: dict[str, Cell] = {}
        for planned_cell in cells:
            other = by_report.setdefault(planned_cell.report, planned_cell.cell)
            if other != planned_cell.cell:
                raise UserError(
                    f"{other.words} and {planned_cell.cell.words} are the same run; vary what changes a result"
                )
        return PlannedGrid(grid, store, cells)

    @staticmethod
    def again(cell: PlannedCell, store: Store) -> PlannedCell:
        """Plan a run again, to see what has been built since."""
        return _planned_cell(cell.cell, store, check=False)

    @property
    def folder(self) -> Path:
        """The folder of the matrix, with its page and the reports of its runs."""
        return self.store.root / "reports" / FOLDER / self.grid.name

    def report_name(self, cell: PlannedCell) -> str:
        """Return the name of a run's report, which is its folder below `reports`."""
        return f"{FOLDER}/{self.grid.name}/{cell.cell.folder}"

    def stages(self) -> dict[str, bool]:
        """Return whether each different stage of all runs is in the store, by reference."""
        references = dict.fromkeys(reference for cell in self.cells for reference in cell.jobs)
        missing = set(missing_artifacts(references, self.store))
        return {reference: reference not in missing for reference in references}

    def state(self, cell: PlannedCell, notes: Sequence[RunNote] | None = None) -> State:
        """Return the state of a run, also of one that another process or host runs."""
        reference = f"report/{cell.report}"
        if self.store.up_to_date("report", cell.report):
            return State.COMPLETE
        notes = read_notes(self.store.root) if notes is None else notes
        own = [note.state for note in notes if reference in note.references]
        if any(state is not run_notes.State.ENDED for state in own):
            return State.RUNNING
        if self.failure(cell):
            return State.FAILED
        return State.INTERRUPTED if own else State.MISSING

    def failure(self, cell: PlannedCell) -> str:
        """Return why the last attempt of a run failed, or "" where it did not."""
        try:
            content = json.loads(self._failure_file(cell).read_bytes())
            return str(content["error"]) if content["report"] == cell.report else ""
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def note_failure(self, cell: PlannedCell, error: Exception) -> None:
        """Keep the reason of a failure until the run is tried again."""
        text = one_line(f"{type(error).__name__}: {error}" if not isinstance(error, UserError) else str(error))
        content = {"report": cell.report, "error": text, "at": datetime.now(UTC).isoformat(timespec="seconds")}
        write_atomically(self._failure_file(cell), json.dumps(content) + "\n")

    def forget_failure(self, cell: PlannedCell) -> None:
        """Remove the reason of an earlier failure."""
        self._failure_file(cell).unlink(missing_ok=True)

    def _failure_file(self, cell: PlannedCell) -> Path:
        return self.folder / cell.cell.folder / "failure.json"


def _planned_cell(cell: Cell, store: Store, *, check: bool) -> PlannedCell:
    recipe, path = load_recipe(cell.variant.recipe, cell.changes)
    name = recipe_name(path, fast=recipe.fast)
    plan = planned(recipe, name, store)
    if check:
        check_models(plan)
    return PlannedCell(cell, recipe, name, plan.jobs, list(plan.done.values()))
