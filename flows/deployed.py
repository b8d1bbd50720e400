"""The flows of prefect.yaml's deployments, which the Prefect UI offers with their parameters as forms.

A worker runs these; its environment says where the store is (PRETRIEVE_STORE). Most plan a recipe and
run the stages that they need through `flows.prefect_server.child_runs`. `run_stage` runs one stage of a recipe, and
`evaluate_models` reads a suite.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from prefect import get_run_logger

from flows.build import publish_last, stage_counts
from flows.chain.given_models import check_models
from flows.plan.plan import needed_for, planned
from flows.prefect_server.child_runs import Request, run_all
from flows.prefect_server.forms import (
    Changes,
    CollectionNames,
    Fast,
    MatrixName,
    Models,
    RebuiltStage,
    RecipeName,
    Recipes,
    ResampledQueries,
    Seeds,
    SkipMissing,
    StageName,
    SuiteName,
    UntilStage,
    Varied,
    flow_with_form,
)
from flows.prefect_server.ui_artifacts import show_lineage, show_run
from flows.recipe.load import load_recipe
from flows.recipe.shipped import find_recipe, recipe_name, shipped_recipes
from flows.smoke_test import fast_changes
from flows.store.rebuild import request_rebuild
from storage.errors import UserError
from storage.store.lookup import missing_artifacts
from storage.store.rebuilds import remove_finished
from storage.store.run_notes import NotedRun, noted
from storage.store.store import Store
from tasks.job import Job, needed_references
from tasks.session import Session, session
from tasks.stage import run_job


@flow_with_form()
def reproduce(
    recipe: RecipeName = "quickstart",
    changes: Changes = [],  # noqa: B006
    until: UntilStage = "",
    rebuild: RebuiltStage = "",
    fast: Fast = False,
) -> None:
    """Run a recipe from corpus to report; artifacts in the store are reused."""
    run_recipe(recipe, fast_changes(recipe, changes) if fast else changes, until, rebuild)


@flow_with_form()
def generate_queries(
    recipe: RecipeName = "quickstart",
    changes: Changes = [],  # noqa: B006
    replace: ResampledQueries = "",
) -> None:
    """Bring a corpus of pseudo-queries up to date: split, write what is missing, filter, compare, show the page."""
    from flows.queries.build import page_heading, planned_corpus, record_version
    from flows.queries.chain import corpus
    from flows.queries.page import show_queries
    from flows.queries.regenerate import replace as replace_queries

    settings, path = load_recipe(recipe, changes)
    plan = planned_corpus(settings, _store())
    if replace:
        get_run_logger().info(replace_queries(settings, plan.store, replace, None))
        plan = planned_corpus(settings, plan.store)
    with noted(plan.store, "generate_queries", recipe, needed_references(plan.jobs.values())) as note:
        current = _run(plan, plan.jobs, recipe, changes, note)
        with session(current):
            heading = page_heading(settings, recipe_name(path), changes)
            result = record_version(corpus(settings, plan.store), recipe_name(path), plan.store, heading)
        note.finish()
    show_lineage(recipe_name(path), list(current.done.values()))
    show_queries(recipe_name(path), result.page)
    current.print_line(result.summary())


@flow_with_form()
def pretrain(recipe: RecipeName = "quickstart", changes: Changes = []) -> None:  # noqa: B006
    """Run a recipe up to the pre-trained encoder."""
    run_recipe(recipe, changes, "pretrain")


@flow_with_form()
def finetune(recipe: RecipeName = "quickstart", changes: Changes = []) -> None:  # noqa: B006
    """Run a recipe up to the retrievers of all rounds and their vectors."""
    run_recipe(recipe, changes, "encode")


@flow_with_form()
def evaluate(recipe: RecipeName = "quickstart", changes: Changes = []) -> None:  # noqa: B006
    """Run a recipe up to the metrics, without the report."""
    run_recipe(recipe, changes, "evaluate")


@flow_with_form()
def evaluate_models(
    models: Models,
    suite: SuiteName = "small",
    only: CollectionNames = [],  # noqa: B006
    skip_missing: SkipMissing = False,
) -> None:
    """Evaluate retrievers on a suite of collections, on a worker with a GPU; the first is the baseline of the tests."""
    from flows.evaluate.evaluate import evaluate_and_publish, requested, show_table

    store = _store()
    request = requested(models, suite, store.root, only, skip_missing, [])
    for why in request.absent.values():
        get_run_logger().warning("left out: %s", why)
    with noted(store, "evaluate_models", request.name) as note:
        current = Session(store, request.suite.execution, print_line=get_run_logger().info, note=note)
        page = evaluate_and_publish(request, current)
        note.finish()
    show_table(request, page)
    current.print_line(f"report: {page}")


@flow_with_form()
def matrix(
    recipes: Recipes = ["quickstart"],  # noqa: B006
    seeds: Seeds = [1, 2, 3],  # noqa: B006
    vary: Varied = [],  # noqa: B006
    changes: Changes = [],  # noqa: B006
    name: MatrixName = "",
) -> None:
    """Run recipes with several seeds and settings; what is complete is kept, and what fails does not stop the rest."""
    from flows.matrix.deployed_run import run_matrix
    from flows.matrix.planned_grid import PlannedGrid
    from flows.recipe.grid import grid_of

    plan = PlannedGrid.of(grid_of(recipes, seeds, changes, vary, name or None), _store())
    run_matrix(plan, get_run_logger().info)


@flow_with_form(named=False)
def run_stage(recipe: RecipeName, stage: StageName, changes: Changes = []) -> None:  # noqa: B006
    """Build one stage of a recipe on a worker with a GPU; its inputs must be in the store.

    The other flows start it. A repeated run resumes from the finished shards or the last checkpoint.
    """
    plan = _plan(recipe, changes)
    matches = [job for job in plan.jobs.values() if job.key.startswith(stage)]
    if len(matches) != 1:
        raise UserError(
            f"stage {stage}: {len(matches)} stages of {recipe} match this key; the recipe, its data or the code may "
            "have changed since the key was listed: start the run of the complete recipe again"
        )
    [job] = matches
    with noted(plan.store, "run_stage", f"{job.label} of {recipe}", needed_references([job])) as note:
        if missing := missing_artifacts(job.needs(), plan.store):
            raise UserError(f"{job.label}: needs {', '.join(missing)}; the store {plan.store.root} lacks them")
        with session(_building(plan, note)) as current:
            run_job(job, current)
        note.finish()


def run_recipe(recipe: str, changes: list[str], goal: str = "", rebuild: str = "") -> None:
    """Run the stages of a recipe that a goal needs, or all and publish the report."""
    plan, name = _plan(recipe, changes), _name(recipe, changes)
    jobs = needed_for(plan, goal) if goal else plan.jobs
    if rebuild:
        get_run_logger().info(request_rebuild(jobs, rebuild, name, plan.store))
        plan = _plan(recipe, changes)
    with noted(plan.store, "run", recipe, needed_references(plan.jobs.values())) as note:
        current = _run(plan, jobs, recipe, changes, note)
        done = [current.done[reference] for reference in jobs]
        page = publish_last(name, done, plan.store)
        remove_finished(plan.store.root)
        if page is None:
            show_lineage(name, done)
            return  # the note stays: no report needs what was built
        note.finish()
    show_run(name, page, done)
    current.print_line(f"report: {page}")


def _run(plan: Session, jobs: Mapping[str, Job], recipe: str, changes: list[str], note: NotedRun) -> Session:
    """Run some of a plan's jobs; the session that has."""
    missing = len(missing_artifacts(jobs, plan.store))
    check_models(jobs, plan)
    current = _building(plan, note)
    current.num_stages = len(jobs)
    current.print_line(f"{stage_counts(len(jobs), missing)}; store {plan.store.root}")
    request = Request(recipe if recipe in shipped_recipes() else str(find_recipe(recipe).resolve()), list(changes))
    with session(current):
        run_all(jobs, request, current)
    return current


def _plan(name: str, changes: list[str]) -> Session:
    return planned(load_recipe(name, changes)[0], _name(name, changes), _store())


def _name(recipe: str, changes: list[str]) -> str:
    """Return the name of a recipe's reports."""
    settings, path = load_recipe(recipe, changes)
    return recipe_name(path, fast=settings.fast)


def _store() -> Store:
    store = os.environ.get("PRETRIEVE_STORE")
    if not store:
        raise UserError("PRETRIEVE_STORE: the worker's environment must name the store; set it where workers start")
    return Store.open_or_new(Path(store))


def _building(plan: Session, note: NotedRun) -> Session:
    """Return a session that builds what a plan has planned, and writes to the run's log."""
    return Session(plan.store, plan.execution, print_line=get_run_logger().info, note=note)
