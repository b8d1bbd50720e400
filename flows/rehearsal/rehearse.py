"""Run the real chain of a recipe on synthetic data at two sizes, and extrapolate each stage to the real collection."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Any

from flows.chain.transfer import suite_of
from flows.plan.costs import CostEstimate
from flows.plan.counts import CollectionCounts
from flows.plan.plan import planned
from flows.plan.show import WIDTH
from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from flows.rehearsal.changes import (
    COLLECTION,
    CROSS_ENCODER,
    ENCODER,
    GENERATOR,
    NEGATIVES,
    SUITE,
    TOKENIZER,
    changes_for,
)
from flows.rehearsal.measurement import (
    Measurement,
    by_stage_and_round,
    extrapolate,
    peak_memory,
    problems_of,
    reset_peak_memory,
)
from flows.rehearsal.sizes import FEWEST, SHARE
from flows.rehearsal.synthetic import (
    QUERY_EVERY,
    Size,
    Splits,
    write_collection,
    write_negatives,
    write_suite,
    write_tokenizer,
)
from flows.rehearsal.tables import stages_table, steps_table, total_time
from flows.rehearsal.time_limit import OverTime, time_limit
from flows.rehearsal.true_shapes import TrueShapes, TrueStep
from flows.terminal import Terminal, say, say_json, unwrapped
from storage import datasets
from storage.errors import UserError
from storage.files import bytes_below
from storage.store import sources
from storage.store.store import Store
from tasks.pseudo_queries.generators.tiny_models import write_cross_encoder, write_encoder, write_generator
from tasks.retrieval.exact_search.upper_bounds import free_bytes, is_accelerator
from tasks.runtime.device import choose_device
from tasks.session import Session, session
from tasks.stage import run_job

MEMORY_SHARE, GPU_SHARE = 1 / 6, 0.9  # that a step of true shapes takes at most, of the host's memory or of a GPU's
STEP_SECONDS = 60.0  # the most that its measurement takes


def rehearse(
    name: str, passages: int, queries: int | None, limit: float, changes: Sequence[str], as_json: bool
) -> None:
    """Rehearse a recipe with a number of synthetic passages, and print what the real run would take and what breaks.

    There is a train query for every sixteenth passage, but at most `queries`, and no more in an evaluated split. A
    stage that takes longer than `limit` seconds ends the rehearsal; the table then has the stages before it. Where a
    stage does not accept the synthetic data, only those that need it are left out. The smallest possible run comes
    first, and is not measured: a process compiles its kernels and starts Java only once.
    """
    recipe, path = load_recipe(name, changes)
    known = num_passages(recipe)
    full = known or passages
    sizes = passages // SHARE, passages
    query_every = max(QUERY_EVERY, -(-passages // queries)) if queries else QUERY_EVERY
    inputs = Inputs(recipe, path, changes, query_every)
    progress = unwrapped(stderr=True)
    _measure(inputs, FEWEST, Bounds(limit, None), progress.print)
    runs: list[Run] = []
    for size in sizes:  # the larger size would exceed the limit where the smaller does
        stages = runs[0].calls.keys() if runs else None
        runs.append(_measure(inputs, size, Bounds(limit, stages), progress.print))
    true_steps, impossible = _true_steps(recipe, path, progress.print)
    common = sorted(runs[0].calls.keys() & runs[1].calls.keys())
    small, large = (by_stage_and_round(run.calls[number] for number in common) for run in runs)
    estimates = [extrapolate(one, other, sizes, full) for one, other in zip(small, large, strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        limits = {"memory": float(_memory()), "disk": float(shutil.disk_usage(folder).free)}
    problems = impossible + problems_of(estimates, limits)
    if known is None:
        collection = recipe.dataset.path or recipe.dataset.reader
        problems.append(f"the size of {collection} is not known here: numbers are for {passages:,} passages")
    problems += [line for run in runs for line in run.unfinished]
    if as_json:
        say_json({"recipe": path.stem, "passages": list(sizes), "query_every": query_every, "full": full,
                  "changes": list(changes),
                  "stages": [dataclasses.asdict(stage) for stage in estimates],
                  "steps": [dataclasses.asdict(step) for step in true_steps], "problems": problems})  # fmt: skip
        return
    console = Terminal()
    console.width = max(console.width, WIDTH)
    console.print(
        stages_table(f"{recipe.title}: rehearsed with {passages:,} passages, extrapolated to {full:,}", estimates)
    )
    if total := total_time(estimates, "stages"):
        say(total)
    say("seconds and memory are measured with tiny models; time is of one process, and blank where a real model works")
    if query_every > QUERY_EVERY:
        say(
            f"one passage in {query_every:,} has a train query, one in 17 of MS MARCO's: with its queries, "
            f"label_passages, the searches of mining and mine take about {query_every / 17:,.0f} times as long"
        )
    if true_steps:
        console.print(steps_table(true_steps))
        if total := total_time(true_steps, "trainings"):
            say(total)
        say("steps have the recipe's model, lengths and precision, random weights, and the chunk that fits here")
    for problem in problems or ["nothing would break on this machine"]:
        say(problem)


def num_passages(recipe: Recipe[Any]) -> int | None:
    """Return how many texts the recipe retrieves: counted in files that are here, or as published; None if unknown."""
    data, part = recipe.dataset, recipe.corpora.retrieve
    if (counted := CollectionCounts(recipe).documents(data, part)) is not None:
        return counted
    published = datasets.num_rows(data.reader, part)
    return published and round(published * (data.fraction or 1))


@dataclasses.dataclass(frozen=True)
class Bounds:
    """The bounds of a run."""

    seconds: float
    """The longest that a stage may take."""
    stages: Set[int] | None
    """The positions in the chain of the stages to build; None for all."""


@dataclasses.dataclass
class Run:
    """The measurements of a run's stages."""

    calls: dict[int, Measurement] = dataclasses.field(default_factory=dict)
    """By position in the chain."""
    unfinished: list[str] = dataclasses.field(default_factory=list)
    """A line about each stage that took too long or refused the data."""


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The recipe of a rehearsal, and how many queries its synthetic collection has."""

    recipe: Recipe[Any]
    path: Path
    """The recipe's file."""
    changes: Sequence[str]
    """The user's changes of the recipe, as `--set` takes them."""
    query_every: int
    """The number of passages for one train query."""


def _measure(inputs: Inputs, passages: int, bounds: Bounds, report: Callable[[str], None]) -> Run:
    """Build the stages of the recipe within the bounds, in a temporary store."""
    with tempfile.TemporaryDirectory(prefix="pretrieve-rehearsal-") as name:
        folder = Path(name)
        report(f"{passages:,} synthetic passages …")
        _write_inputs(inputs, folder, passages)
        rehearsed, _ = load_recipe(str(inputs.path), [*inputs.changes, *changes_for(inputs.recipe, folder)])
        execution = rehearsed.execution.model_copy(update={"workers": 1, "processes": 1})
        store = Store.open_or_new(folder / "store")
        plan = planned(rehearsed, inputs.path.stem, store)
        current, run = Session(store, execution, print_line=report), Run()
        with session(current):
            for number, (reference, job) in enumerate(plan.jobs.items()):
                wanted = bounds.stages is None or number in bounds.stages
                if not wanted or not current.done.keys() >= set(job.needs()):
                    continue
                before, stage = reset_peak_memory(), f"{job.stage.name} {job.round}".strip()
                try:
                    with time_limit(bounds.seconds):
                        done = current.done[reference] = run_job(job, current)
                except OverTime:
                    why = f"more than {bounds.seconds:,.0f} s with {passages:,} passages"
                    run.unfinished.append(f"{stage}: {why}; none after it ran")
                    break
                except UserError as error:
                    why = f"{error} (with {passages:,} passages)".replace(f"{folder}/", "")
                    run.unfinished.append(f"{stage}: {why}; what needs it was not run")
                    continue
                size = bytes_below(store.folder(done.stage, done.key))
                risen = max(0, peak_memory() - before)
                run.calls[number] = Measurement(
                    done.stage, done.round, job.needs_gpu, done.rows, done.seconds, risen, size
                )
        return run


def _write_inputs(inputs: Inputs, folder: Path, passages: int) -> None:
    """Write everything that the rehearsed recipe reads: the collection, tiny models, negatives and a suite."""
    recipe, tokenizer = inputs.recipe, folder / TOKENIZER
    size = Size(passages, inputs.query_every)
    splits = Splits(recipe.dataset.train_split, recipe.dataset.eval_splits)
    write_collection(folder / COLLECTION, write_tokenizer(tokenizer), size, splits)
    write_encoder(folder / ENCODER, tokenizer)
    if recipe.queries is not None:
        write_generator(folder / GENERATOR, tokenizer)
    if recipe.teacher is not None:
        write_cross_encoder(folder / CROSS_ENCODER, tokenizer, folder / ENCODER)
    if any(round_.given is not None for round_ in recipe.rounds):
        write_negatives(folder / NEGATIVES, size)
    if (suite := suite_of(recipe)) is not None:
        split = recipe.dataset.eval_splits[0]
        write_suite(folder / SUITE, suite, folder / COLLECTION, folder / ENCODER, split)


def _true_steps(recipe: Recipe[Any], path: Path, report: Callable[[str], None]) -> tuple[list[TrueStep], list[str]]:
    """Return the measured training steps of true shapes, and a line for each that does not fit into the memory."""
    with tempfile.TemporaryDirectory(prefix="pretrieve-rehearsal-") as name, sources.assuming_present():
        store = Store.open_or_new(Path(name))
        plan = planned(recipe, path.stem, store)
        with session(Session(store, recipe.execution)):
            shapes = TrueShapes(CostEstimate(recipe, list(plan.done.values())), _step_memory(), STEP_SECONDS, report)
            results = list(shapes.of(list(plan.done.values())))
    steps = [result for result in results if isinstance(result, TrueStep)]
    return steps, [result for result in results if isinstance(result, str)]


def _step_memory() -> int:
    """Return the bytes that a step may take: most of a GPU, which it has alone, or a part of the host's memory."""
    device = choose_device()
    return round(GPU_SHARE * free_bytes(device) if is_accelerator(device) else MEMORY_SHARE * _memory())


def _memory() -> int:
    """Return the bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
