"""`pretrieve study`: the runs that the claims still need, one after the other, for as long as there is time.

A run is the reproduction of a recipe with a seed, so one that is cut off goes on where it was, and its parts are shared
through the store. What it measured is kept in small files (`storage/results/study_runs.py`), which add up whichever day
and machine they are from.
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
from flows.study.claims import check, load_study, runs, wanted
from flows.terminal import Terminal, unwrapped
from storage.artifact import Artifact
from storage.errors import UserError
from storage.results.study_runs import Facts, Kept, all_kept, folder_of, keep, kept
from storage.store import sources
from storage.store.run_notes import noted
from storage.store.store import Store
from tasks.flops import Costs
from tasks.job import Job
from tasks.report.report import CURVES
from tasks.runtime.formatting import duration
from tasks.session import Done, Session
from tasks.training.loop import Diverged

RESULTS = PROJECT / "results" / "study"
POINTS = 40  # of a curve that is kept
PROBED = "pre-training, retrieval probe"


@dataclass(frozen=True)
class Asked:
    """A recipe with a seed, as it would run."""

    name: str
    """The recipe's, as its command gives it."""
    seed: int
    recipe: Recipe[Any]
    title: str
    store: Store
    jobs: Mapping[str, Job]
    steps: Sequence[Done]

    @staticmethod
    def of(name: str, seed: int, store: Store, changes: Sequence[str] = ()) -> Asked:
        """Planned, so that the report's key is known."""
        recipe, path = load_recipe(name, [f"seed={seed}", *changes])
        title = recipe_name(path)
        plan = planned(recipe, title, store)
        return Asked(name, seed, recipe, title, store, plan.jobs, list(plan.done.values()))

    @property
    def report(self) -> str:
        """The key of its report."""
        return next(step.key for step in reversed(self.steps) if step.stage == "report")

    @property
    def words(self) -> str:
        """Recipe and seed."""
        return f"{self.title}, seed {self.seed}"


def run(
    hours: float, folder: Path, results: Path = RESULTS, *, only: Sequence[str] = (), changes: Sequence[str] = (),
    claims: Path = CLAIMS,
) -> None:  # fmt: skip
    """Do what is missing, claim by claim, until the time is over; exit code 1 where a run failed."""
    if wrong := [change for change in changes if not change.startswith("execution.")]:
        raise UserError(f"--set {wrong[0]}: a study's recipes are run as they are; expected execution.KEY=VALUE")
    study, store, end = load_study(claims), Store.open_or_new(folder), time.monotonic() + 3600 * hours
    check(study)
    console, failed = unwrapped(stderr=True), 0
    for name, seed in runs(study.chosen(only)):
        asked = Asked.of(name, seed, store, changes)
        if (found := kept(results, name, seed)) and found.facts.report == asked.report:
            continue
        if found:
            console.print(f"{asked.words}: kept is report {found.facts.report}, which other code or data made; it is "
                          f"done again as {asked.report}")  # fmt: skip
        takes, left = expected_seconds(asked, list(all_kept(results))), end - time.monotonic()
        if takes > left or left <= 0:
            console.print(f"not begun: {asked.words} takes about {duration(takes)}, and {duration(max(left, 0))} is "
                          "left; the same command goes on")  # fmt: skip
            break
        console.print(
            f"{asked.words}: about {duration(takes)}" if takes else f"{asked.words}: nothing like it is known"
        )
        try:
            reproduce(asked, results, wanted(study, name), console)
        except (Diverged, RuntimeError) as error:
            failed += 1
            console.print(f"{asked.words} failed: {type(error).__name__}: {error}; the next run is begun")
    else:
        console.print("nothing is missing: `make results` writes docs/results.md")
    if failed:
        raise typer.Exit(1)


def reproduce(asked: Asked, results: Path, rows: Mapping[str, Sequence[str]], console: Terminal) -> None:
    """A run from corpus to report, and what is kept of it."""
    with noted(asked.store, "study run", asked.words, [f"{step.stage}/{step.key}" for step in asked.steps]) as note:
        current = Session(asked.store, asked.recipe.execution, tell=console.print, note=note)
        build(asked.jobs, asked.title, current)
        _keep(asked, results, rows, current)
        note.finish()
    console.print(f"{asked.words}: kept in {folder_of(results, asked.name, asked.seed)}")


def _keep(asked: Asked, results: Path, rows: Mapping[str, Sequence[str]], current: Session) -> None:
    """Write the small files that are kept of a run."""
    finished = FinishedRun(asked.title, asked.store, must_exist(f"report/{asked.report}", asked.store))
    first, done = finished.measurements[0], list(current.done.values())
    report: Artifact[Any] = Artifact("report", asked.report, asked.store.folder("report", asked.report))
    curves = json.loads((asked.store.check(report) / CURVES).read_text())
    facts = Facts(
        asked.name, asked.seed, asked.recipe.title, asked.report, collection_of(asked.recipe),
        done[-1].built["versions"], pretraining(asked, done),
    )  # fmt: skip
    keep(
        folder_of(results, asked.name, asked.seed), facts, scores=scores(first.path / "queries.parquet", rows),
        curves=list(points(curves)), keys=[key(step, asked.store) for step in done],
    )  # fmt: skip


def expected_seconds(asked: Asked, known: Sequence[Kept]) -> float:
    """How long a run may take: each missing stage as long as the same one of another seed, or the like of it."""
    same: dict[tuple[str, ...], list[float]] = {}
    for each in known:
        for stage in each.stages:
            names = (stage["stage"], stage["round"])
            for like in ((Path(each.facts.recipe).stem, *names), names, names[:1]):
                same.setdefault(like, []).append(stage["seconds"])
    total = 0.0
    for step in asked.steps:
        names = (step.stage, step.round)
        likes = ((Path(asked.name).stem, *names), names, names[:1])
        found = next((same[like] for like in likes if like in same), [])
        total += 0.0 if step.cached or not found else median(found)
    return total


def collection_of(recipe: Recipe[Any]) -> str:
    """What is searched and which split is asked, as claims name it."""
    return f"{Path(recipe.dataset.path or recipe.dataset.reader).stem}/{recipe.dataset.eval_splits[0]}"


def pretraining(asked: Asked, done: Sequence[Done]) -> dict[str, float]:
    """What a step of the pre-training costs; {} where nothing is pre-trained."""
    settings, step = asked.recipe.pretrain, next((each for each in done if each.stage == "pretrain"), None)
    if settings is None or step is None:
        return {}
    texts = next(each for each in done if f"{each.stage}/{each.key}" == step.inputs[0]).rows or 0
    steps = settings.num_steps(texts)
    costs = Costs(sources.weights(asked.recipe.backbone.weights).path, asked.recipe.backbone)
    each = costs.pretraining(settings).times(settings.batch)
    found = {"steps": steps, "tokens": each.tokens, "flops": each.flops}
    log = asked.store.folder(step.stage, step.key) / "logs" / "metrics.jsonl"
    rates = [json.loads(line).get("rows_per_second") for line in log.read_text().splitlines()]
    in_steps = sum(settings.batch / rate for rate in rates if rate)
    if step.built["seconds"] >= in_steps:  # else its last attempt alone was timed
        found["cpu_seconds"] = step.built["cpu_seconds"] / steps
    return found


def scores(path: Path, rows: Mapping[str, Sequence[str]]) -> pa.Table:
    """The values by query of the rows and metrics that claims look at."""
    table = pq.read_table(path)
    chosen = [
        table.filter(pc.and_(pc.equal(table["run"], row), pc.equal(table["metric"], metric)))
        for row, metrics in rows.items() for metric in metrics
    ]  # fmt: skip
    return pa.concat_tables(chosen or [table.slice(0, 0)]).rename_columns({"run": "row"})


def points(curves: Mapping[str, Mapping[str, Sequence[Sequence[float]]]]) -> Iterator[dict[str, Any]]:
    """The losses of every training and the probe of the pre-training, thinned."""
    for training, lines in curves.items():
        if ", " not in training or training == PROBED:
            for name, line in lines.items():
                width = -(-len(line) // POINTS)
                for start in range(0, len(line), width):
                    part = line[start : start + width]
                    step, value = (sum(column) / len(part) for column in zip(*part, strict=True))
                    yield {"training": training, "name": name, "step": step, "value": value}


def key(step: Done, store: Store) -> dict[str, Any]:
    """What is kept of a stage."""
    built = step.built
    return {
        "stage": step.stage, "round": step.round, "key": step.key,
        "version": must_exist(f"{step.stage}/{step.key}", store).version, "rows": step.rows, "cached": step.cached,
        "seconds": built["seconds"], "cpu_seconds": built["cpu_seconds"], "at": built["at"],
        "device": built["device"], "cores": built["machine"]["cores"],
    }  # fmt: skip


def show_status(folder: Path, results: Path = RESULTS, claims: Path = CLAIMS) -> None:
    """Print what is kept for each claim and what is missing, and what the next run is."""
    study, store = load_study(claims), Store.open_or_new(folder)
    console = unwrapped()
    with sources.assuming_present() as absent:
        states = {each: state(*each, store, results) for each in runs(study.claims)}
    for claim in study.claims:
        own = [states[each] for each in runs([claim])]
        console.print(f"{claim.name}: {own.count('kept')} of {len(own)} runs kept")
        for name, seed in runs([claim]):
            if (found := states[name, seed]) != "kept":
                console.print(f"  {Path(name).stem}, seed {seed}: {found}")
    ends = list(states.values())
    console.print(f"{ends.count('kept')} of {len(ends)} runs kept")
    for each in absent:
        console.print(f"not here, so keys could not be compared: {each}")


def state(name: str, seed: int, store: Store, results: Path) -> str:
    """Whether a run is kept, missing, or made by other code or data."""
    if (found := kept(results, name, seed)) is None:
        return "missing"
    asked = Asked.of(name, seed, store)
    unknown = any("absent:" in str(step.inputs) for step in asked.steps)
    return "kept" if unknown or found.facts.report == asked.report else "made by other code or data"
