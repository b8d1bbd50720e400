"""`pretrieve plan`: what a recipe would do, stage by stage, without doing it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from flows.chain import chain
from flows.read_recipe import load_recipe
from flows.recipe import Recipe
from storage.store import Store, bytes_below
from tasks.stage import Done, Session, session

WIDTH = 120  # columns that a key needs whole


def planned(recipe: Recipe[Any], name: str, store: Store) -> list[Done]:
    """Every stage of the recipe, in order, with its key and whether the store has it."""
    with session(Session(store, recipe.execution, planning=True)) as plan:
        chain(recipe, name, store)
    return list(plan.done.values())


def show_plan(name: str, folder: Path, changes: Sequence[str]) -> None:
    """Print the plan: expected disk and hours stand only where this store holds a stage of the same name to go by."""
    recipe, path = load_recipe(name, changes)
    store = Store(folder)
    steps, measured = planned(recipe, path.stem, store), measured_stages(store)
    table = Table(title=f"{recipe.title} ({path.stem})", title_justify="left")
    for heading in ("stage", "round", "key", "state"):
        table.add_column(heading, no_wrap=heading != "round", overflow="fold")
    table.add_column("disk", justify="right")
    table.add_column("hours", justify="right")
    for step in steps:
        table.add_row(step.stage, step.round, step.key, *_expected(step, store, measured))
    console = Console(highlight=False)
    console.width = max(console.width, WIDTH)
    console.print(table)
    missing = sum(not step.cached for step in steps)
    print(f"{len(steps)} stages: {len(steps) - missing} cached, {missing} to build; nothing was built")


def measured_stages(store: Store) -> dict[str, tuple[int, float]]:
    """Median bytes and seconds of the artifacts that the store holds, by stage."""
    sizes: dict[str, list[int]] = {}
    seconds: dict[str, list[float]] = {}
    for folder, manifest in store.manifests():
        if manifest:
            sizes.setdefault(manifest.stage, []).append(bytes_below(folder))
            seconds.setdefault(manifest.stage, []).append(manifest.built["seconds"])
    return {stage: (int(median(sizes[stage])), median(seconds[stage])) for stage in sizes}


def _expected(step: Done, store: Store, measured: dict[str, tuple[int, float]]) -> tuple[str, str, str]:
    if step.cached:
        return "cached", in_units(bytes_below(store.folder(step.stage, step.key))), ""
    if step.stage not in measured:
        return "to build", "", ""
    size, seconds = measured[step.stage]
    return "to build", f"~{in_units(size)}", f"~{seconds / 3600:.3f}"


def in_units(num_bytes: float) -> str:
    """A size as people write it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"
