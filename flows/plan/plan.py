"""`pretrieve plan`: a recipe's stages and their costs, without building any.

Neither data nor weights need be present. Rows are counted in the collection's files where they are on this machine.
Tokens and FLOPs are upper bounds, since every text counts as if it had `max_tokens`. Disk and hours are those of a
similar artifact in the store; without one, hours follow from FLOPs and the measured rate of this machine. They are
marked with ~, and a note below the table names their origin.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from flows.chain.chain import chain
from flows.plan.cost_history import CostHistory
from flows.plan.costs import CostEstimate, in_powers, passes_texts
from flows.plan.counts import Count, in_words
from flows.plan.gpu_needs import Need, gpu_needs, gpu_table
from flows.plan.gpus import Gpu, find_gpu
from flows.plan.hours import MachineHours
from flows.recipe.load import load_recipe
from flows.recipe.schema import STARTS, Recipe
from flows.recipe.shipped import recipe_name
from flows.terminal import Terminal, say, say_json
from storage.errors import UserError, suggestion
from storage.files import bytes_below
from storage.settings import without_seeds
from storage.store import sources
from storage.store.store import Store
from tasks.corpus.select_vocabulary import check as check_vocabulary
from tasks.corpus.select_vocabulary import check_kind
from tasks.cross_encoder.train_teacher import check as check_teacher
from tasks.finetuning.train import check as check_training
from tasks.job import Job
from tasks.pretraining.initialise import check_tokenizer
from tasks.pretraining.pretrain import check as check_pretraining
from tasks.retrieval.encode import check_dimensions
from tasks.runtime.formatting import in_units, short
from tasks.session import Done, Session, session

COLUMNS = ("stage", "round", "key", "state", "tokens", "flops", "disk", "hours")
UNCHECKED = {"title", "dataset", "execution"}  # of a recipe, which no check of lengths and layers reads
WIDTH = 150  # columns that keys and the names of rounds need to be shown complete

_accepted: set[tuple[str, ...]] = set()


def planned(recipe: Recipe[Any], name: str, store: Store) -> Session:
    """Return a session with every stage of the recipe in order: its call, its key, and whether it is cached.

    Raises UserError for settings that a stage which is still to be built would refuse.
    """
    with session(Session(store, recipe.execution, planning=True)) as plan:
        chain(recipe, name, store)
    if not all(step.cached for step in plan.done.values()):
        _check_once(recipe)
    return plan


def _check_once(recipe: Recipe[Any]) -> None:
    """Check a recipe's lengths and layers, unless this process has accepted the same ones for the same weights.

    The runs of a matrix or a study differ mostly in seeds and splits, and a check takes longer than the rest of a plan.
    """
    names = [recipe.backbone.weights, recipe.teacher and recipe.teacher.weights]
    weights = [sources.weights(name).reference for name in names if name]
    checked = (*weights, json.dumps(without_seeds(recipe.model_dump(mode="json", exclude=UNCHECKED))))
    if checked not in _accepted:
        _check_lengths_and_layers(recipe)
        _accepted.add(checked)


def _check_lengths_and_layers(recipe: Recipe[Any]) -> None:
    """Raise UserError for settings that do not fit the backbone's shape, which a stage would refuse hours later."""
    weights = sources.weights(recipe.backbone.weights)
    check_tokenizer(weights.path)
    check_vocabulary(recipe.backbone.vocabulary, weights.path)
    if recipe.queries is not None and recipe.queries.train is not None:
        check_kind("queries.train", weights.path, "name a generator in queries.model")
    if recipe.pretrain is not None:
        check_pretraining(recipe.pretrain, recipe.backbone, weights.path)
    if recipe.teacher is not None:
        check_teacher(sources.weights(recipe.teacher.weights or recipe.backbone.weights).path)
    for round_ in recipe.rounds:
        dense = round_.train.retriever.dense if round_.train else None
        location, projected = f"rounds: {round_.name}: truncate_dims", dense.dim if dense else None
        check_dimensions(location, round_.truncate_dims, projected, weights.path)
        if round_.train is not None:
            check_training(
                round_.name, round_.train, recipe.encode, recipe.backbone, weights.path,
                starts_there=round_.start in STARTS,
            )  # fmt: skip


def needed_for(plan: Session, goal: str) -> Mapping[str, Job]:
    """Return the jobs of a stage or a round and all that they depend on, in the plan's order.

    Raises UserError where the recipe has no stage or round of this name.
    """
    return with_inputs(plan.jobs, named_jobs(plan.jobs, goal))


def with_inputs(jobs: Mapping[str, Job], references: Sequence[str]) -> dict[str, Job]:
    """Return the jobs of these references and all that they depend on, in the plan's order."""
    waiting, needed = list(references), set[str]()
    while waiting:
        if (name := waiting.pop()) not in needed:
            needed.add(name)
            waiting += jobs[name].needs()
    return {name: job for name, job in jobs.items() if name in needed}


def named_jobs(jobs: Mapping[str, Job], goal: str) -> list[str]:
    """Return the references of the jobs of a stage or a round. Raises UserError where there is none of this name."""
    named = [reference for reference, job in jobs.items() if goal and goal in (job.stage.name, job.round)]
    if not named:
        names = dict.fromkeys(name for job in jobs.values() for name in (job.stage.name, job.round) if name)
        raise UserError(f"{goal!r}: this recipe has no such stage or round; {suggestion(goal, names)}")
    return named


def show_plan(name: str, folder: Path, changes: Sequence[str], as_json: bool = False, gpu: str | None = None) -> None:
    """Print the plan as a table or as JSON, with what is missing and what the numbers are based on.

    With the name of a GPU, memory and hours of the stages that run an encoder follow.
    """
    figures = find_gpu(gpu) if gpu is not None else None
    plan = estimated(name, folder, changes, figures)
    steps, rows = plan.steps, plan.rows
    table = Table(title=f"{plan.recipe.title} ({plan.name})", title_justify="left")
    for heading in ("stage", "round", "key", "state"):
        table.add_column(heading, no_wrap=heading != "round", overflow="fold")
    for heading in ("tokens ≤", "FLOPs ≤", "disk", "hours"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row.values())
    if as_json:
        plan_as_json: dict[str, Any] = {
            "stages": rows,
            "not_here": plan.absent,
            "counted": plan.counted,
            "notes": plan.notes,
        }
        if gpu is not None and figures is not None:
            needs = [need.as_json() for need in plan.needs]
            plan_as_json["gpu"] = {"name": gpu, **figures.model_dump(), "stages": needs}
        say_json(plan_as_json)
        return
    console = Terminal()
    console.width = max(console.width, WIDTH)
    console.print(table)
    missing = sum(not step.cached for step in steps)
    print(f"{len(steps)} stages: {len(steps) - missing} cached, {missing} to build; nothing was built")
    if total := total_hours(rows):
        print(total)
    if gpu is not None and figures is not None:
        console.print(gpu_table(Path(gpu).stem, plan.needs))
        say(figures.rates(Path(gpu).stem))
        say("memory and bytes moved are counted on a CPU and unmeasured on a GPU; every text has its full length")
    for note in (*(f"not here: {what}" for what in plan.absent), *in_words(plan.counted), *plan.notes):
        say(note)


@dataclass(frozen=True)
class EstimatedPlan:
    """A recipe's stages with their estimated costs."""

    recipe: Recipe[Any]
    name: str
    steps: Sequence[Done]
    rows: Sequence[dict[str, str]]
    """By stage: stage, round, key, state, tokens, flops, disk, hours. A key that is not known yet is a dash."""
    absent: Sequence[str]
    """A message for each data set or model that is not on this machine."""
    counted: list[Count]
    """The rows of the collection's parts that are on this machine."""
    notes: Sequence[str]
    """Remarks on the origin of the numbers."""
    needs: list[Need]
    """Memory and hours of stages on a GPU, where one was given."""


def estimated(name: str, folder: Path, changes: Sequence[str], figures: Gpu | None = None) -> EstimatedPlan:
    """Return the plan of a recipe with its costs; on a GPU, too, where its figures are given."""
    recipe, path = load_recipe(name, changes)
    title, store = recipe_name(path, fast=recipe.fast), Store.open_or_new(folder)
    with sources.assuming_present() as absent:
        steps = list(planned(recipe, title, store).done.values())
        estimate, history = CostEstimate(recipe, steps), CostHistory(store)
        machine, counted = MachineHours(store, recipe.execution), estimate.counts.all()
        needs = gpu_needs(estimate, steps, figures) if figures is not None else []
    unknown, rows = without_key(steps), []
    for step in steps:
        key = "–" if step.reference in unknown else step.key
        values = (step.stage, step.round, key, *_numbers(step, store, estimate, history, machine))
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    notes = [*estimate.notes, *history.notes, *machine.notes]
    if unestimated := [row["stage"] for row in rows if row["state"] == "to build" and not row["hours"]]:
        notes.append(f"no hours are estimated for {', '.join(dict.fromkeys(unestimated))}: no rate is known for them")
    return EstimatedPlan(recipe, title, steps, rows, absent, counted, notes, needs)


def total_hours(rows: Sequence[dict[str, str]]) -> str:
    """Return the sum of the hours of the stages to build, and how many have no estimate; empty without any hours."""
    to_build = [row["hours"] for row in rows if row["state"] == "to build"]
    hours = [float(text.strip("~").replace(",", "")) for text in to_build if text]
    return f"in total: ~{short(sum(hours))} hours, for {len(hours)} of {len(to_build)} stages to build" if hours else ""


def without_key(steps: Sequence[Done]) -> set[str]:
    """Return the stages that depend on something that is not here, so that their keys are not known yet."""
    unknown: set[str] = set()
    for step in steps:
        inputs = [
            name
            for references in step.inputs
            if references
            for name in ([references] if isinstance(references, str) else references)
        ]
        if any(name.startswith("absent:") or name in unknown for name in inputs):
            unknown.add(step.reference)
    return unknown


def _numbers(
    step: Done, store: Store, estimate: CostEstimate, history: CostHistory, machine: MachineHours
) -> tuple[str, str, str, str, str]:
    cost = estimate.of(step) if passes_texts(step) else None
    tokens, flops = (in_powers(cost.tokens), in_powers(cost.flops)) if cost else ("", "")
    if passes_texts(step) and cost is None:
        tokens = flops = "?"
    if step.cached:
        return "cached", tokens, flops, in_units(bytes_below(store.folder(step.stage, step.key))), ""
    disk, hours = history.disk_and_hours(step, cost)
    if not hours and cost is not None:
        hours = machine.of(step, cost)
    return "to build", tokens, flops, disk, hours
