"""Runs that are finished: found by what people call them, with what they measured and what they were made of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from flows.store_commands import find
from storage.artifact import Artifact, Manifest
from storage.errors import UserError
from storage.store.store import Store
from tasks.evaluation.evaluate import evaluate

PAGE = "report.json"


@dataclass(frozen=True)
class Measured:
    """What was measured on one split of a collection."""

    store: Store
    made: Manifest

    @property
    def path(self) -> Path:
        """The folder of its tables, whose contents have been checked. Raises DamagedArtifact."""
        return self.store.check(_artifact(f"{self.made.stage}/{self.made.key}", self.store))

    @property
    def name(self) -> str:
        """Collection and split."""
        return f"{self.made.settings['dataset']}/{self.made.settings['split']}"

    def input(self, parameter: str) -> Manifest | None:
        """The manifest of one of its inputs; None where it has none."""
        reference = self.made.inputs[parameter]
        return reference and whole(reference, self.store)

    @property
    def passages(self) -> Artifact[Any]:
        """What was searched."""
        return _artifact(self.made.inputs["passages"], self.store)

    def runs(self) -> dict[str, Artifact[Any]]:
        """Each run that was measured, by its row's name."""
        named = zip(self.made.settings["names"], self.made.inputs["runs"], strict=True)
        return {name: _artifact(reference, self.store) for name, reference in named}


@dataclass(frozen=True)
class Finished:
    """A run with its report, in the store where it lies."""

    name: str
    """What the user called it."""
    store: Store
    report: Manifest

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """The recipe as it ran."""
        found: dict[str, Any] = yaml.safe_load(self.report.settings["text"])
        return found

    @cached_property
    def measured(self) -> list[Measured]:
        """What was measured, the headline's split first."""
        found = [Measured(self.store, whole(reference, self.store)) for reference in self._metrics()]
        for each in found:
            if each.made.version != evaluate.version:
                raise UserError(
                    f"{self.name}: was measured by version {each.made.version} of {each.made.stage}, expected "
                    f"{evaluate.version}; run its recipe again, which rebuilds only what has changed"
                )
        return found

    def _metrics(self) -> Iterator[str]:
        for name in ("metrics", "transfer"):
            given = self.report.inputs.get(name)
            yield from [given] if isinstance(given, str) else given or []

    @cached_property
    def lineage(self) -> dict[str, list[str]]:
        """All that it was made of: references, each with those of its inputs; a source and what is lost have none."""
        found: dict[str, list[str]] = {}
        waiting = [f"{self.report.stage}/{self.report.key}"]
        while waiting:
            reference = waiting.pop()
            if reference not in found:
                made = self.store.manifest(*reference.split("/", 1))
                found[reference] = made.references() if made else []
                waiting += found[reference]
        return found


def finished(run: str, store: Store) -> Finished:
    """The run called `run`: a recipe's newest report, a report's key or its beginning, or a folder with report.json.

    A folder may belong to another store than `store`. Raises UserError where there is none.
    """
    for folder in (Path(run), store.root / "reports" / run):
        if (folder / PAGE).is_file():
            return _of_folder(run, folder.resolve())
    named = sorted(page.parent.name for page in (store.root / "reports").glob(f"*/{PAGE}"))
    try:
        _, made = find(run, store)
    except UserError as error:
        known = f"; {store.root} has reports of {', '.join(named)}" if named else ""
        raise UserError(
            f"{run}: expected a recipe's name, a report's key or a folder with {PAGE}{known} ({error})"
        ) from None
    if made.schema != "Report":
        raise UserError(f"{run}: {made.stage} made {made.schema}, not a report; `pretrieve plan` lists the keys")
    return Finished(run, store, made)


def _of_folder(run: str, folder: Path) -> Finished:
    """Of a report where people look (STORE/reports/NAME), or of its artifact (STORE/report/KEY)."""
    store = Store.open_or_new(folder.parent.parent)
    try:
        content = json.loads((folder / PAGE).read_text())
        key = content["inputs"].get("report", folder.name)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{folder / PAGE}: expected the report of a run; run its recipe again") from None
    return Finished(run, store, whole(f"report/{key}", store))


def whole(reference: str, store: Store) -> Manifest:
    """The manifest of an artifact that must be there."""
    stage, _, key = reference.partition("/")
    if (made := store.manifest(stage, key)) is None:
        raise UserError(
            f"{store.folder(stage, key)}: the artifact is not there, or damaged; run the recipe again to rebuild it"
        )
    return made


def _artifact(reference: str, store: Store) -> Artifact[Any]:
    made = whole(reference, store)
    return Artifact(made.stage, made.key, store.folder(made.stage, made.key))
