"""Finished runs: their metrics and their trained checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows import finished_runs
from flows.reproduce import reproduced
from pretrieve.recipes import PlannedRecipe, given_recipe
from pretrieve.settings import Store, as_changes, printing, store_folder
from storage.artifact import Artifact
from storage.errors import UserError, suggestion
from storage.store.lookup import artifact
from storage.store.store import Store as OpenStore
from tasks.report.page.statistics import with_intervals
from tasks.report.report import measured

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("run", "split", "metric", "value", "low", "high")


class UnknownCheckpoint(UserError, KeyError):
    """A run has no checkpoint of a name; as a `KeyError`, too, `name in run` and `run.get(name)` work."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would quote it


@dataclass(frozen=True)
class Checkpoint:
    """A trained checkpoint of a run, which `pretrieve.load` opens."""

    name: str
    """The round that has trained it, or `pre-training`."""
    key: str
    path: Path
    store: Path


@dataclass(frozen=True)
class FinishedRun(Mapping[str, Checkpoint]):
    """A run with its report: a mapping of its checkpoints by name, such as `run["retriever_2"]`."""

    name: str
    page: Path
    """The report."""
    _run: finished_runs.FinishedRun

    @property
    def key(self) -> str:
        """The key of the report, which `pretrieve compare` takes."""
        return self._run.report.key

    @property
    def path(self) -> Path:
        """The folder of the report in the store, which stays when the recipe is run with other settings."""
        return self._run.store.folder("report", self.key)

    @property
    def recipe(self) -> dict[str, Any]:
        """The recipe as it ran: `run.recipe["seed"]`."""
        return self._run.recipe

    @property
    def metrics(self) -> pd.DataFrame:
        """The metrics of every system: run, split, metric, value and its 95 % confidence interval from low to high.

        The split of another collection is written as COLLECTION/SPLIT. `run.metrics.query("metric == 'MRR@10'")`.
        """
        import pandas as pd

        rows: list[dict[str, Any]] = []
        for measurement in self._run.measurements:
            split = measurement.split if self._run.is_own(measurement) else measurement.name
            rows += [{**row, "split": split} for row in metric_rows(measurement.path)]
        return pd.DataFrame(rows, columns=list(COLUMNS))

    def __getitem__(self, name: str) -> Checkpoint:
        names = self._run.checkpoints
        if name not in names:
            raise UnknownCheckpoint(
                f"{name}: {self.name} has trained no checkpoint of this name; {suggestion(name, names)}"
            )
        checkpoint = artifact(names[name], self._run.store)
        return Checkpoint(name, checkpoint.key, checkpoint.path, self._run.store.root)

    def __iter__(self) -> Iterator[str]:
        return iter(self._run.checkpoints)

    def __len__(self) -> int:
        return len(self._run.checkpoints)


def metric_rows(folder: Path) -> list[dict[str, Any]]:
    """Return the means of a measurement's folder with their intervals, a row for each run and metric."""
    measurement = measured(Artifact("evaluate", folder.name, folder))
    rows = with_intervals(measurement.rows, measurement.intervals)
    return [{name: row[name] for name in COLUMNS if name != "split"} for row in rows]


def reproduce(
    recipe: PlannedRecipe | str | Path, *, store: Store = None, set: Mapping[str, Any] | None = None,  # noqa: A002
    progress: bool = True,
) -> FinishedRun:  # fmt: skip
    """Run a recipe to its report, as `pretrieve reproduce` does; what the store has is reused.

    Raises `UserError` for what the user can fix. After an interruption the same call resumes.

        run = pretrieve.reproduce("quickstart", store="artifacts", set={"seed": 7})
    """
    planned, folder = given_recipe(recipe, set), store_folder(store)
    with printing(progress) as print_line:
        page = reproduced(planned.name, folder, as_changes(planned.changes), print_line=print_line, with_server=False)
    if page is None:
        raise TypeError("a complete run always has a report")
    report = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
    run = finished_runs.finished_run(report["inputs"]["report"], OpenStore.open(folder))
    return FinishedRun(report["recipe"]["recipe"], page, run)


def open_run(name: str | Path, *, store: Store = None) -> FinishedRun:
    """Return a finished run by a recipe's name, a report's key or a folder: `pretrieve.open_run("quickstart")`."""
    run = finished_runs.finished_run(str(name), OpenStore.open_or_new(store_folder(store)))
    return FinishedRun(str(name), run.store.folder("report", run.report.key) / "report.html", run)
