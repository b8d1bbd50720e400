"""A recipe's stages in order, with their keys and what they depend on, without building any."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.chain.chain import chain
from flows.chain.given_inputs import inputs_reported_together
from flows.recipe.round_schema import Round, retrievers
from flows.recipe.schema import STARTS, Recipe
from storage.errors import UserError, suggestion
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
from tasks.session import Done, Session, session

UNCHECKED = {"title", "dataset", "execution"}  # of a recipe, which no check of lengths and layers reads

_accepted: set[tuple[str, ...]] = set()


def planned(recipe: Recipe[Any], name: str, store: Store) -> Session:
    """Return a session with every stage of the recipe in order: its call, its key, and whether it is cached.

    Raises UserError for all inputs that are missing, at once, and for settings that a stage which is still to be built
    would refuse.
    """
    with session(Session(store, recipe.execution, planning=True)) as plan, inputs_reported_together(plan):
        chain(recipe, name, store)
    if not all(step.cached for step in plan.done.values()):
        _check_once(recipe)
    return plan


def _check_once(recipe: Recipe[Any]) -> None:
    """Check a recipe's lengths and layers, unless this process has accepted the same ones for the same weights.

    The runs of a matrix or a study differ mostly in seeds and splits, and a check takes longer than the rest of a plan.
    """
    starts = [_given_start(round_, recipe) for round_ in recipe.rounds]
    names = [recipe.backbone.weights, recipe.teacher and recipe.teacher.weights, *starts]
    weights = [sources.weights(name).reference for name in names if name]
    checked = (*weights, json.dumps(without_seeds(recipe.model_dump(mode="json", exclude=UNCHECKED))))
    if checked not in _accepted:
        _check_lengths_and_layers(recipe)
        _accepted.add(checked)


def _check_lengths_and_layers(recipe: Recipe[Any]) -> None:
    """Raise UserError for settings that do not fit a model's shape, which a stage would refuse hours later.

    Rounds that start from a key of the store are not checked.
    """
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
        first = _first_start(round_, recipe)
        name = recipe.backbone.weights if first in STARTS else _given_start(round_, recipe)
        if round_.train is not None and name is not None:
            check_training(
                round_.name, round_.train, recipe.encode, recipe.backbone, sources.weights(name).path,
                starts_there=round_.start in STARTS,
            )  # fmt: skip


def _first_start(round_: Round, recipe: Recipe[Any]) -> str:
    """Return what a round starts from, or what the earlier rounds do from which it starts."""
    rounds, start = retrievers(recipe.rounds), round_.start
    while start in rounds:
        start = rounds[start].start
    return start


def _given_start(round_: Round, recipe: Recipe[Any]) -> str | None:
    """Return the folder or hub name of the model from which a round starts at first; None where it is another start."""
    start = _first_start(round_, recipe)
    return start if "/" in start or Path(start).is_dir() else None


def needed_for(plan: Session, goal: str) -> Mapping[str, Job]:
    """Return the jobs of a stage or a round and all that they depend on, in the plan's order.

    Raises UserError where the recipe has no stage or round of this name.
    """
    return with_inputs(plan.jobs, named_jobs(plan.jobs, goal))


def with_inputs(jobs: Mapping[str, Job], references: Sequence[str]) -> dict[str, Job]:
    """Return the jobs of these references and all that they depend on, in the plan's order.

    An input that is no job of the plan is an older artifact, such as a round's start that is named by its key.
    """
    waiting, needed = list(references), set[str]()
    while waiting:
        if (name := waiting.pop()) not in needed:
            needed.add(name)
            waiting += [need for need in jobs[name].needs() if need in jobs]
    return {name: job for name, job in jobs.items() if name in needed}


def named_jobs(jobs: Mapping[str, Job], goal: str) -> list[str]:
    """Return the references of the jobs of a stage or a round. Raises UserError where there is none of this name."""
    named = [reference for reference, job in jobs.items() if goal and goal in (job.stage.name, job.round)]
    if not named:
        names = dict.fromkeys(name for job in jobs.values() for name in (job.stage.name, job.round) if name)
        raise UserError(f"{goal!r}: this recipe has no such stage or round; {suggestion(goal, names)}")
    return named


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
