"""Look up finished runs by recipe, key or folder, with their measurements and their inputs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from flows.recipe.shipped import shipped_recipes
from storage.artifact import Artifact, Manifest
from storage.errors import UserError
from storage.store.lookup import artifact, find, lineage, must_exist
from storage.store.store import Store
from tasks.evaluation.evaluate import evaluate

PAGE = "report.json"


@dataclass(frozen=True)
class Measurement:
    """The metrics of several systems on one split of a collection."""

    store: Store
    manifest: Manifest
    """The manifest of the stage `evaluate`."""

    @property
    def path(self) -> Path:
        """The folder of the metrics' tables, whose contents have been checked. Raises DamagedArtifact."""
        return self.store.check(artifact(self.manifest.reference, self.store))

    @property
    def name(self) -> str:
        """The collection and the split."""
        return f"{self.dataset}/{self.split}"

    @property
    def dataset(self) -> str:
        """The collection."""
        return str(self.manifest.settings["dataset"])

    @property
    def split(self) -> str:
        """The split of the collection."""
        return str(self.manifest.settings["split"])

    def input(self, parameter: str) -> Manifest | None:
        """Return the manifest of an input of `evaluate`; None where the split has none."""
        reference = self.manifest.inputs[parameter]
        return reference and must_exist(reference, self.store)

    @property
    def passages(self) -> Artifact[Any]:
        """The passages that were searched."""
        return artifact(self.manifest.inputs["passages"], self.store)

    def runs(self) -> dict[str, Artifact[Any]]:
        """Return the ranking of each system by the system's name."""
        named = zip(self.manifest.settings["names"], self.manifest.inputs["runs"], strict=True)
        return {name: artifact(reference, self.store) for name, reference in named}


@dataclass(frozen=True)
class FinishedRun:
    """A run with its report, and the store that holds it."""

    name: str
    """As the user wrote it."""
    store: Store
    report: Manifest

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """The recipe as it ran."""
        recipe: dict[str, Any] = yaml.safe_load(self.report.settings["text"])
        return recipe

    @cached_property
    def measurements(self) -> list[Measurement]:
        """One for each split and other collection, the headline's split first.

        Raises UserError where metrics are those of another version of `evaluate`.
        """
        measurements = [Measurement(self.store, must_exist(reference, self.store)) for reference in self._metrics()]
        for measurement in measurements:
            manifest = measurement.manifest
            if manifest.version != evaluate.version:
                raise UserError(
                    f"{self.name}: was measured by version {manifest.version} of {manifest.stage}, expected "
                    f"{evaluate.version}; run its recipe again, which rebuilds only what has changed"
                )
        return measurements

    def is_own(self, measurement: Measurement) -> bool:
        """Return whether a measurement is of the recipe's own collection, not of its suite of other collections."""
        return measurement.dataset == self.measurements[0].dataset

    def _metrics(self) -> Iterator[str]:
        for parameter in ("metrics", "transfer"):
            references = self.report.inputs.get(parameter)
            yield from [references] if isinstance(references, str) else references or []

    @property
    def checkpoints(self) -> dict[str, str]:
        """The references of the trained checkpoints, by round or `pre-training`."""
        references: Any = self.report.inputs["checkpoints"]
        return dict(zip(self.report.settings["trained"], references, strict=True))

    @cached_property
    def lineage(self) -> dict[str, list[str]]:
        """The report and all that it was built from: every reference with those of its inputs."""
        return lineage(self.report.reference, self.store)


def finished_run(name: str, store: Store) -> FinishedRun:
    """Return a run by a recipe's name (its newest report), by a report's key or prefix, or by a report's folder.

    A folder may belong to another store than `store`. Raises UserError where there is no such report.
    """
    if folder := _report_folder(name, store):
        return _of_folder(name, folder.resolve())
    if name in shipped_recipes():
        raise UserError(f"{name}: no report in {store.root}; `pretrieve reproduce {name}` builds it")
    try:
        _, manifest = find(name, store)
    except UserError as error:
        reported = ", ".join(published_runs(store))
        known = f"; {store.root} has reports of {reported}" if reported else ""
        raise UserError(
            f"{name}: expected a recipe's name, a report's key or a folder with {PAGE}{known} ({error})"
        ) from None
    if manifest.schema != "Report":
        raise UserError(
            f"{name}: {manifest.stage} builds {manifest.schema}, not a report; `pretrieve plan` lists the keys"
        )
    return FinishedRun(name, store, manifest)


def names_run(name: str, store: Store) -> bool:
    """Return whether a name is that of a shipped recipe, of a run with a published report, or of a report's folder."""
    return name in shipped_recipes() or _report_folder(name, store) is not None


def _report_folder(name: str, store: Store) -> Path | None:
    folders = (Path(name), store.root / "reports" / name)
    return next((folder for folder in folders if (folder / PAGE).is_file()), None)


def published_runs(store: Store) -> list[str]:
    """Return the names of the runs with a published report, such as `small/cot_mae`."""
    reports = store.root / "reports"
    names = sorted(page.parent.relative_to(reports) for page in reports.rglob(PAGE))
    return [name.as_posix() for name in names if name.parts[0] != "evaluate"]  # whose reports are of no recipe


def _of_folder(name: str, folder: Path) -> FinishedRun:
    """Return the run of a published report (STORE/reports/NAME) or of a report's artifact (STORE/report/KEY)."""
    reports = folder.parent  # a store may itself be below a folder called reports
    if reports.name != "report":  # NAME may have folders, as small/cot_mae
        reports = next((parent for parent in folder.parents if parent.name == "reports"), reports)
    try:
        content = json.loads((folder / PAGE).read_text(encoding="utf-8"))
        if "verdict" in content:
            raise UserError(_is_adaptation(name, content))
        key = content["inputs"].get("report", folder.name)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{folder / PAGE}: expected the report of a run; run its recipe again") from None
    store = Store.open_or_new(reports.parent)
    return FinishedRun(name, store, must_exist(f"report/{key}", store))


def _is_adaptation(name: str, content: dict[str, Any]) -> str:
    """Return an error for the folder of `pretrieve adapt`, by the content of its report."""
    run = Store(Path(content["index"]["store"])).folder("report", content["run"])
    return (
        f"{name}: expected a run, found the folder of an adaptation; `pretrieve.load({name!r})` and "
        f"`pretrieve search {name}` use its model; its candidates are of the run {run}"
    )
