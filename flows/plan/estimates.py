"""The estimated costs of a recipe's stages: tokens, FLOPs, disk and hours.

Neither data nor weights need be present. Rows are counted in the collection's files where they are on this machine.
Tokens and FLOPs are upper bounds, since every text counts as if it had `max_tokens`. Disk and hours are those of a
similar artifact in the store; without one, hours follow from FLOPs and the measured rate of this machine. Where a GPU
is given, its hours are counted instead, and this machine is not measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.plan.cost_history import CostHistory
from flows.plan.costs import CostEstimate, passes_texts
from flows.plan.counts import Count
from flows.plan.generator_costs import WRITING, GeneratorCosts, Writing, runs_generator
from flows.plan.gpu_needs import Need, gpu_needs
from flows.plan.gpus import Gpu
from flows.plan.hours import MachineHours
from flows.plan.labels import detail, system
from flows.plan.plan import planned, without_key
from flows.recipe.changes import given_collection
from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from flows.recipe.shipped import recipe_name
from storage.files import bytes_below
from storage.store import sources
from storage.store.store import Store
from tasks.estimates.flops import Cost
from tasks.session import Done

UNKNOWN_KEY = "–"


@dataclass(frozen=True)
class StageEstimate:
    """A stage of a plan with its estimated costs."""

    stage: str
    round: str
    key: str
    """A dash where it is not known yet."""
    cached: bool
    """Whether the store has the artifact; else it is to be built."""
    tokens: float | None = None
    """The most tokens that pass through an encoder or a generator; None where none do, or their number is not known."""
    flops: float | None = None
    """The most FLOPs of these tokens."""
    disk_bytes: int | None = None
    """The size of the artifact, or, if it is to be built, of a similar one; None where there is none."""
    hours: float | None = None
    """The hours of building it; None where no rate is known, and for a cached artifact."""
    detail: str = ""
    """What tells it apart from other stages of its name: the split and the representation."""
    is_counted: bool = False
    """Whether it runs an encoder or a generator, so that it has tokens where the number of its texts is known."""
    system: str = ""
    """The round or, for a search without one, the variant of BM25."""


@dataclass(frozen=True)
class EstimatedPlan:
    """A recipe's stages with their estimated costs."""

    recipe: Recipe[Any]
    name: str
    rows: Sequence[StageEstimate]
    absent: Sequence[str]
    """A message for each data set or model that is not on this machine."""
    counted: list[Count]
    """The rows of the collection's parts that are on this machine."""
    notes: Sequence[str]
    """Remarks on the origin of the numbers."""
    needs: list[Need]
    """Memory and hours of stages on a GPU, where one was given."""
    collection: str | None = None
    """The name of the collection that the user gave in place of the recipe's own; None for the recipe's."""


def estimated(
    name: str, folder: Path, changes: Sequence[str], figures: Gpu | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> EstimatedPlan:  # fmt: skip
    """Return the plan of a recipe with its costs: on this machine, or on a GPU whose figures are given.

    `report` prints which stage is counted for the GPU, and what is measured on this machine.
    """
    recipe, path = load_recipe(name, changes)
    title, store = recipe_name(path, fast=recipe.fast), Store.open_or_new(folder)
    with sources.assuming_present() as absent:
        plan = planned(recipe, title, store)
        steps = list(plan.done.values())
        estimate, history = CostEstimate(recipe, steps), CostHistory(store)
        machine = MachineHours(store, recipe.execution, report) if figures is None else None
        counted = estimate.counts.all()
        generators = GeneratorCosts(estimate, plan.jobs)
        costs = {step.reference: estimate.of(step) for step in steps if passes_texts(step)}
        costs |= {step.reference: generators.of(step) for step in steps if runs_generator(plan.jobs[step.reference])}
        writing = {
            step.reference: generators.work(step) for step in steps
            if step.stage in WRITING and costs.get(step.reference) is not None
        }  # fmt: skip
        needs = gpu_needs(estimate, generators, steps, figures, report) if figures is not None else []
    unknown = without_key(steps)
    rows = [
        dataclasses.replace(
            _of_stage(
                step, step.reference in unknown, store, costs.get(step.reference), history, machine,
                of_equal_cost(step, steps, costs), writing.get(step.reference),
            ),
            is_counted=step.reference in costs, detail=detail(plan.jobs[step.reference], plan.jobs),
            system=system(plan.jobs[step.reference], plan.jobs),
        )
        for step in steps
    ]  # fmt: skip
    notes = [*estimate.notes, *history.notes, *(machine.notes if machine else {}), *_without_hours(rows, needs)]
    return EstimatedPlan(recipe, title, rows, absent, counted, notes, needs, given_collection(recipe, changes))


def _without_hours(rows: Sequence[StageEstimate], needs: Sequence[Need]) -> list[str]:
    """Return a line with the stages that have hours neither on this machine nor on the GPU."""
    on_gpu = {need.stage for need in needs if need.hours is not None}
    stages = dict.fromkeys(row.stage for row in rows if not row.cached and row.hours is None)
    stages = {stage: None for stage in stages if stage not in on_gpu}
    return [f"no hours are estimated for {', '.join(stages)}: no rate is known for them"] if stages else []


def of_equal_cost(step: Done, steps: Sequence[Done], costs: Mapping[str, Cost | None]) -> list[Done]:
    """Return the other stages of a plan with the name and the cost of a stage; none where its cost is not known."""
    cost = costs.get(step.reference)
    return [
        other for other in steps
        if cost is not None and other is not step and other.stage == step.stage and costs.get(other.reference) == cost
    ]  # fmt: skip


def _of_stage(
    step: Done,
    has_no_key: bool,
    store: Store,
    cost: Cost | None,
    history: CostHistory,
    machine: MachineHours | None,
    alike: Sequence[Done],
    writing: Writing | None,
) -> StageEstimate:
    disk: int | None
    if step.cached:
        disk, hours = bytes_below(store.folder(step.stage, step.key)), None
    else:
        disk, hours = history.disk_and_hours(step, cost, alike)
        if hours is None and cost is not None and machine is not None:
            hours = machine.of(step, cost) if writing is None else machine.of_writing(step, writing)
    key = UNKNOWN_KEY if has_no_key else step.key
    tokens, flops = (cost.tokens, cost.flops) if cost is not None else (None, None)
    return StageEstimate(step.stage, step.round, key, step.cached, tokens, flops, disk, hours)
