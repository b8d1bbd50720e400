"""`pretrieve study`: run what the claims still need, one run after the other, within a time budget.

A run reproduces a recipe with a seed, so an interrupted run resumes, and runs share artifacts through the store. Its
results are kept in small files (`storage/results/study_runs.py`), whichever day and machine they are from.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import typer

from flows.finished_runs import FinishedRun
from flows.plan import planned
from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from flows.recipe.shipped import CLAIMS, PROJECT, recipe_name
from flows.reproduce import build
from flows.store_lookup import must_exist
from flows.study.claims import check, load_study, measured_rows, runs
from flows.terminal import Terminal, unwrapped
from storage.artifact import Artifact
from storage.errors import UserError
from storage.results.study_runs import (
    Facts,
    StudyRun,
    read_study_run,
    read_study_runs,
    study_run_folder,
    write_study_run,
)
from storage.store import sources
from storage.store.run_notes import noted
from storage.store.store import Store
from tasks.flops import Costs
from tasks.job import Job
from tasks.report.page.training_curves import averaged
from tasks.report.report import CURVES
from tasks.runtime.formatting import duration
from tasks.session import Done, Session
from tasks.training.loop import Diverged
from tasks.training.metrics_log import seconds_in_steps

RESULTS = PROJECT / "results" / "study"
POINTS = 40  # of a stored curve
PROBED = "pre-training, retrieval probe"


@dataclass(frozen=True)
class PlannedRun:
    """A recipe with a seed, and its plan."""

    name: str
    """The recipe's name, as in the claims."""
    seed: int
    recipe: Recipe[Any]
    title: str
    store: Store
    jobs: Mapping[str, Job]
    steps: Sequence[Done]

    @staticmethod
    def of(name: str, seed: int, store: Store, changes: Sequence[str] = ()) -> PlannedRun:
        """Plan a run, so that its report's key is known."""
        recipe, path = load_recipe(name, [f"seed={seed}", *changes])
        title = recipe_name(path)
        plan = planned(recipe, title, store)
        return PlannedRun(name, seed, recipe, title, store, plan.jobs, list(plan.done.values()))

    @property
    def report(self) -> str:
        """The key of its report."""
        return next(step.key for step in reversed(self.steps) if step.stage == "report")

    @property
    def words(self) -> str:
        """The recipe and the seed, for messages."""
        return f"{self.title}, seed {self.seed}"


def run(
    hours: float, folder: Path, results: Path = RESULTS, *, only: Sequence[str] = (), changes: Sequence[str] = (),
    claims: Path = CLAIMS,
) -> None:  # fmt: skip
    """Run what is missing, claim by claim, for `hours` at most. Exit code 1 where a run failed."""
    if wrong := [change for change in changes if not change.startswith("execution.")]:
        raise UserError(f"--set {wrong[0]}: a study's recipes run without changes; expected execution.KEY=VALUE")
    study, store, end = load_study(claims), Store.open_or_new(folder), time.monotonic() + 3600 * hours
    check(study)
    console, failed = unwrapped(stderr=True), 0
    for name, seed in runs(study.chosen(only)):
        plan = PlannedRun.of(name, seed, store, changes)
        if (stored := read_study_run(results, name, seed)) and stored.facts.report == plan.report:
            continue
        if stored:
            console.print(
                f"{plan.words}: the stored results are of report {stored.facts.report}, built by other code or "
                f"data; running it again as {plan.report}"
            )
        expected, remaining = expected_seconds(plan, list(read_study_runs(results))), end - time.monotonic()
        if expected > remaining or remaining <= 0:
            console.print(
                f"not started: {plan.words} takes about {duration(expected)}, and {duration(max(remaining, 0))} "
                "remain; the same command resumes the study"
            )
            break
        console.print(f"{plan.words}: about {duration(expected)}" if expected else f"{plan.words}: duration unknown")
        try:
            reproduce(plan, results, measured_rows(study, name), console)
        except (Diverged, RuntimeError) as error:
            failed += 1
            console.print(f"{plan.words} failed: {type(error).__name__}: {error}; the next run starts")
    else:
        console.print("nothing is missing: `make results` writes docs/results.md")
    if failed:
        raise typer.Exit(1)


def reproduce(plan: PlannedRun, results: Path, rows: Mapping[str, Sequence[str]], console: Terminal) -> None:
    """Run a recipe from corpus to report, and store its results."""
    with noted(plan.store, "study run", plan.words, [f"{step.stage}/{step.key}" for step in plan.steps]) as note:
        current = Session(plan.store, plan.recipe.execution, print_line=console.print, note=note)
        build(plan.jobs, plan.title, current)
        _keep(plan, results, rows, current)
        note.finish()
    console.print(f"{plan.words}: kept in {study_run_folder(results, plan.name, plan.seed)}")


def _keep(plan: PlannedRun, results: Path, rows: Mapping[str, Sequence[str]], current: Session) -> None:
    """Write the small files with the results of a run."""
    finished = FinishedRun(plan.title, plan.store, must_exist(f"report/{plan.report}", plan.store))
    first, done = finished.measurements[0], list(current.done.values())
    report: Artifact[Any] = Artifact("report", plan.report, plan.store.folder("report", plan.report))
    curves = json.loads((plan.store.check(report) / CURVES).read_text())
    facts = Facts(
        plan.name, plan.seed, plan.recipe.title, plan.report, collection_of(plan.recipe),
        done[-1].built["versions"], pretraining(plan, done),
    )  # fmt: skip
    write_study_run(
        study_run_folder(results, plan.name, plan.seed), facts, scores=scores(first.path / "queries.parquet", rows),
        curves=list(points(curves)), keys=[key(step, plan.store) for step in done],
    )  # fmt: skip


def expected_seconds(plan: PlannedRun, known: Sequence[StudyRun]) -> float:
    """Estimate a run's duration: for each missing stage the median of the most similar stages of earlier runs."""
    seconds_of: dict[tuple[str, ...], list[float]] = {}
    for stored in known:
        for stage in stored.stages:
            names = (stage["stage"], stage["round"])
            for kind in ((Path(stored.facts.recipe).stem, *names), names, names[:1]):
                seconds_of.setdefault(kind, []).append(stage["seconds"])
    total = 0.0
    for step in plan.steps:
        names = (step.stage, step.round)
        kinds = ((Path(plan.name).stem, *names), names, names[:1])  # the most similar first
        similar = next((seconds_of[kind] for kind in kinds if kind in seconds_of), [])
        total += 0.0 if step.cached or not similar else median(similar)
    return total


def collection_of(recipe: Recipe[Any]) -> str:
    """Return the collection and the evaluation split, as claims name them."""
    return f"{Path(recipe.dataset.path or recipe.dataset.reader).stem}/{recipe.dataset.eval_splits[0]}"


def pretraining(plan: PlannedRun, done: Sequence[Done]) -> dict[str, float]:
    """Return the cost per step of the pre-training; {} where nothing is pre-trained."""
    settings, step = plan.recipe.pretrain, next((stage for stage in done if stage.stage == "pretrain"), None)
    if settings is None or step is None:
        return {}
    texts = next(stage for stage in done if f"{stage.stage}/{stage.key}" == step.inputs[0]).rows or 0
    steps = settings.num_steps(texts)
    costs = Costs(sources.weights(plan.recipe.backbone.weights).path, plan.recipe.backbone)
    per_step = costs.pretraining(settings).times(settings.batch)
    cost = {"steps": steps, "tokens": per_step.tokens, "flops": per_step.flops}
    log = plan.store.folder(step.stage, step.key) / "logs" / "metrics.jsonl"
    rows = settings.batch * getattr(settings.objective, "rows_per_text", 1)
    if step.built["seconds"] >= seconds_in_steps(log.read_text(), rows):  # else only its last attempt was timed
        cost["cpu_seconds"] = step.built["cpu_seconds"] / steps
    return cost


def scores(path: Path, rows: Mapping[str, Sequence[str]]) -> pa.Table:
    """Return the values by query of the rows and metrics that claims compare."""
    table = pq.read_table(path)
    selected = [
        table.filter(pc.and_(pc.equal(table["run"], row), pc.equal(table["metric"], metric)))
        for row, metrics in rows.items() for metric in metrics
    ]  # fmt: skip
    return pa.concat_tables(selected or [table.slice(0, 0)]).rename_columns({"run": "row"})


def points(curves: Mapping[str, Mapping[str, Sequence[Sequence[float]]]]) -> Iterator[dict[str, Any]]:
    """Yield the points of every training's losses and of the pre-training's probe, averaged to `POINTS` per curve."""
    for training, lines in curves.items():
        if ", " not in training or training == PROBED:
            for name, line in lines.items():
                for step, value in averaged(line, POINTS):
                    yield {"training": training, "name": name, "step": step, "value": value}


def key(step: Done, store: Store) -> dict[str, Any]:
    """Return what is stored of a stage."""
    built = step.built
    return {
        "stage": step.stage, "round": step.round, "key": step.key,
        "version": must_exist(f"{step.stage}/{step.key}", store).version, "rows": step.rows, "cached": step.cached,
        "seconds": built["seconds"], "cpu_seconds": built["cpu_seconds"], "at": built["at"],
        "device": built["device"], "cores": built["machine"]["cores"],
    }  # fmt: skip


def show_status(folder: Path, results: Path = RESULTS, claims: Path = CLAIMS) -> None:
    """Print which runs of each claim are stored and which are missing."""
    study, store = load_study(claims), Store.open_or_new(folder)
    console = unwrapped()
    with sources.assuming_present() as absent:
        states = {(name, seed): state(name, seed, store, results) for name, seed in runs(study.claims)}
    for claim in study.claims:
        own = [states[name, seed] for name, seed in runs([claim])]
        console.print(f"{claim.name}: {own.count('kept')} of {len(own)} runs kept")
        for name, seed in runs([claim]):
            if (current := states[name, seed]) != "kept":
                console.print(f"  {Path(name).stem}, seed {seed}: {current}")
    all_states = list(states.values())
    console.print(f"{all_states.count('kept')} of {len(all_states)} runs kept")
    for problem in absent:
        console.print(f"missing data, so keys could not be compared: {problem}")


def state(name: str, seed: int, store: Store, results: Path) -> str:
    """Return whether a run is kept, missing, or built by other code or data."""
    if (stored := read_study_run(results, name, seed)) is None:
        return "missing"
    plan = PlannedRun.of(name, seed, store)
    unknown = any("absent:" in str(step.inputs) for step in plan.steps)
    return "kept" if unknown or stored.facts.report == plan.report else "built by other code or data"
