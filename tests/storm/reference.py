"""What an unbroken run builds: every artifact, in which order, and how long each takes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.storm import leftovers
from tests.storm.runs import start


@dataclass(frozen=True)
class Reference:
    """The artifacts of the recipes, by their references `stage/key`."""

    artifacts: dict[str, dict[str, object]]
    built: dict[str, list[str]]
    """By recipe, in order."""
    seconds: dict[str, float]

    def named(self, short: str | None) -> tuple[str, str]:
        """The stage and the reference whose key begins so."""
        for reference in self.artifacts:
            if short and reference.partition("/")[2].startswith(short):
                return reference.partition("/")[0], reference
        return "between stages", ""

    def expected(self, recipes: Iterable[str]) -> dict[str, dict[str, object]]:
        """The artifacts that runs of these recipes leave."""
        return {name: self.artifacts[name] for recipe in recipes for name in self.built[recipe]}


def unbroken(folder: Path, recipes: Iterable[str], *arguments: str) -> Reference:
    """Run recipes one after the other, without Prefect, in a folder with their inputs."""
    built, seconds = {}, {}
    for recipe in recipes:
        run = start(folder, recipe, *arguments, environment={}, plain=True)
        try:
            code = run.wait(1800)
        finally:
            leftovers.kill(run.children())
        if code != 0:
            raise RuntimeError(f"{recipe}: an unbroken run ended with {code}: {run.text[-2000:]}")
        stages = _stages(folder / "artifacts", run.states())
        built[recipe] = [name for name, _ in stages]
        seconds |= dict(stages)
    if problems := leftovers.files(folder / "artifacts"):
        raise RuntimeError(f"an unbroken run leaves {problems}")
    return Reference(leftovers.artifacts(folder / "artifacts"), built, seconds)


def _stages(store: Path, states: Iterable[str]) -> list[tuple[str, float]]:
    """The artifacts whose keys begin so, and how long each took to build."""
    manifests: list[Any] = [json.loads(file.read_text()) for file in store.glob("[!.]*/*/manifest.json")]
    by_key = {manifest["key"][:8]: manifest for manifest in manifests}
    return [
        (f"{by_key[short]['stage']}/{by_key[short]['key']}", float(by_key[short]["built"]["seconds"]))
        for short in states
    ]
