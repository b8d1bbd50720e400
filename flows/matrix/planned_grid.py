"""The plan of a matrix: the stages of every run, and the folder of its results."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from flows.matrix.attempts import Attempts
from flows.matrix.planned_run import PlannedRun
from flows.recipe.grid import Cell, Grid
from storage.errors import UserError
from storage.store.lookup import missing_artifacts
from storage.store.store import Store

FOLDER = "matrix"
"""The folder of all matrices, in the store's `reports`."""


@dataclass(frozen=True)
class PlannedGrid:
    """A matrix whose runs are planned, and the store that they share."""

    grid: Grid
    store: Store
    runs: Sequence[PlannedRun[Cell]]

    @staticmethod
    def of(grid: Grid, store: Store, *, check: bool = True) -> PlannedGrid:
        """Plan all runs. Raises UserError for a run that cannot work, or two that are the same.

        `check` also opens the models that are read from outside the store.
        """
        runs = [PlannedRun.of(cell, store, check=check) for cell in grid.cells]
        by_report: dict[str, Cell] = {}
        for run in runs:
            other = by_report.setdefault(run.report, run.definition)
            if other != run.definition:
                raise UserError(
                    f"{other.words} and {run.definition.words} are the same run; vary what changes a result"
                )
        return PlannedGrid(grid, store, runs)

    @property
    def folder(self) -> Path:
        """The folder of the matrix, with its page and the reports of its runs."""
        return self.store.root / "reports" / FOLDER / self.grid.name

    @cached_property
    def attempts(self) -> Attempts[Cell]:
        """The states of its runs, and what comes next."""
        return Attempts(self.store, lambda cell: self.folder / cell.folder)

    @property
    def command(self) -> str:
        """The command that resumes the matrix in its store."""
        return f"{self.grid.command} --store {shlex.quote(str(self.store.root.resolve()))}"

    def report_name(self, cell: Cell) -> str:
        """Return the name of a run's report, which is its folder below `reports`."""
        return f"{FOLDER}/{self.grid.name}/{cell.folder}"

    def stages(self) -> dict[str, bool]:
        """Return whether each different stage of all runs is in the store, by reference."""
        references = dict.fromkeys(reference for run in self.runs for reference in run.jobs)
        missing = set(missing_artifacts(references, self.store))
        return {reference: reference not in missing for reference in references}
