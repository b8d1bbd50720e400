"""Run the real chain of a recipe on synthetic data at two sizes, and extrapolate each stage to the real collection."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from flows.plan import WIDTH, planned
from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from flows.rehearsal.changes import COLLECTION, ENCODER, GENERATOR, changes_for
from flows.rehearsal.measurement import (
    Extrapolation,
    Measurement,
    by_stage_and_round,
    extrapolate,
    peak_memory,
    reset_peak_memory,
)
from flows.rehearsal.synthetic import tokenizer_folder, write_collection
from flows.terminal import Terminal, say, say_json, unwrapped
from storage import datasets
from storage.errors import UserError
from storage.files import bytes_below
from storage.store.store import Store
from tasks.pseudo_queries.generators.tiny_models import write_encoder, write_generator
from tasks.runtime.formatting import in_units
from tasks.session import Session, session
from tasks.stage import run_job

FEWEST = 1000
SHARE = 4  # the small size is a quarter of the large one


def rehearse(name: str, passages: int, changes: Sequence[str], as_json: bool) -> None:
    """Rehearse a recipe with a number of synthetic passages, and print what the real run would take and what breaks."""
    if passages < FEWEST * SHARE:
        raise UserError(f"--passages: expected at least {FEWEST * SHARE:,}, found {passages:,}")
    recipe, path = load_recipe(name, changes)
    full = datasets.num_rows(recipe.dataset.reader, recipe.corpora.retrieve) or passages
    sizes = passages // SHARE, passages
    progress = unwrapped(stderr=True)
    small, large = (_measure(recipe, path, changes, size, progress.print) for size in sizes)
    stages = [extrapolate(one, other, sizes, full) for one, other in zip(small, large, strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        limits = {"memory": float(_memory()), "disk": float(shutil.disk_usage(folder).free)}
    problems = [problem for stage in stages for problem in stage.problems(limits)]
    if as_json:
        say_json({"recipe": path.stem, "passages": list(sizes), "full": full,
                  "stages": [dataclasses.asdict(stage) for stage in stages], "problems": problems})  # fmt: skip
        return
    console = Terminal()
    console.width = max(console.width, WIDTH)
    console.print(_table(f"{recipe.title}: rehearsed with {passages:,} passages, extrapolated to {full:,}", stages))
    say(
        "seconds and memory are measured with tiny models; hours are of one process, and blank where a real model works"
    )
    for problem in problems or ["nothing would break on this machine"]:
        say(problem)


def _measure(
    recipe: Recipe[Any], path: Path, changes: Sequence[str], passages: int, report: Callable[[str], None]
) -> list[Measurement]:
    """Build all stages of the recipe in a temporary store, and return what each took, in the order of the chain."""
    with tempfile.TemporaryDirectory(prefix="pretrieve-rehearsal-") as name:
        folder = Path(name)
        report(f"{passages:,} synthetic passages …")
        write_collection(folder / COLLECTION, passages, recipe.dataset.train_split, recipe.dataset.eval_splits)
        write_encoder(folder / ENCODER, tokenizer_folder())
        if recipe.queries is not None:
            write_generator(folder / GENERATOR, tokenizer_folder())
        rehearsed, _ = load_recipe(str(path), [*changes, *changes_for(recipe, folder)])
        execution = rehearsed.execution.model_copy(update={"workers": 1, "processes": 1})
        store = Store.open_or_new(folder / "store")
        plan = planned(rehearsed, path.stem, store)
        current = Session(store, execution, print_line=report)
        measurements = []
        with session(current):
            for reference, job in plan.jobs.items():
                before = reset_peak_memory()
                done = current.done[reference] = run_job(job, current)
                size = bytes_below(store.folder(done.stage, done.key))
                risen = max(0, peak_memory() - before)
                measurements.append(
                    Measurement(done.stage, done.round, job.needs_gpu, done.rows, done.seconds, risen, size)
                )
        return by_stage_and_round(measurements)


def _table(title: str, stages: Sequence[Extrapolation]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("stage", no_wrap=True)
    table.add_column("round")
    for heading in ("rows", "seconds", "growth", "hours", "memory", "disk"):
        table.add_column(heading, justify="right", no_wrap=True)
    for stage in stages:
        measured = stage.measured
        table.add_row(
            measured.stage, measured.round, "" if measured.rows is None else f"{measured.rows:,}",
            f"{measured.seconds:.1f}", "" if stage.hours is None else f"N^{stage.growth:.1f}",
            "" if stage.hours is None else f"~{stage.hours:,.2f}", f"~{in_units(int(stage.memory))}",
            f"~{in_units(int(stage.disk))}",
        )  # fmt: skip
    return table


def _memory() -> int:
    """Return the bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
