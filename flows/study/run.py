"""`pretrieve study`: run what the claims still need, one run after the other, within a time budget.

A run reproduces a recipe with a seed, so an interrupted run resumes, and runs share artifacts through the store. Its
results are kept in small files (`flows/study/keep.py`), whichever day and machine they are from.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import typer

from flows.recipe.shipped import CLAIMS, PROJECT
from flows.reproduce import build
from flows.study.claims import Study, check, load_study, measured_rows, runs
from flows.study.keep import keep
from flows.study.planned_run import PlannedRun
from flows.terminal import Terminal, unwrapped
from storage.errors import UserError
from storage.results.study_runs import StudyRun, Trial, read_study_run, read_study_runs
from storage.store import sources
from storage.store.run_notes import noted
from storage.store.store import Store
from tasks.runtime.formatting import duration
from tasks.session import Session
from tasks.training.loop import Diverged

RESULTS = PROJECT / "results" / "study"
CURVES = "curves"  # the name of the learning curves, for --only and in the status


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
    for trial in _needed(study, only):
        plan = PlannedRun.of(trial, store, changes)
        if (stored := read_study_run(trial.folder(results))) and stored.facts.report == plan.report:
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
            reproduce(plan, results, measured_rows(study, trial.recipe), console)
        except (Diverged, RuntimeError) as error:
            failed += 1
            console.print(f"{plan.words} failed: {type(error).__name__}: {error}; the next run starts")
    else:
        console.print("nothing is missing: `make results` writes docs/results.md")
    if failed:
        raise typer.Exit(1)


def _needed(study: Study, only: Sequence[str]) -> list[Trial]:
    """Return the runs of the claims of these names, then those of the learning curves; all where no name is given."""
    claims = study.chosen([name for name in only if name != CURVES or not study.curves])
    needed = runs(claims) if not only or set(only) != {CURVES} else []
    drawn = study.curves.runs() if study.curves and (not only or CURVES in only) else []
    return list(dict.fromkeys([*needed, *drawn]))


def reproduce(plan: PlannedRun, results: Path, rows: Mapping[str, Sequence[str]], console: Terminal) -> None:
    """Run a recipe from corpus to report, and store its results."""
    with noted(plan.store, "study run", plan.words, [f"{step.stage}/{step.key}" for step in plan.steps]) as note:
        current = Session(plan.store, plan.recipe.execution, print_line=console.print, note=note)
        build(plan.jobs, plan.title, current)
        keep(plan, results, rows, current)
        note.finish()
    console.print(f"{plan.words}: kept in {plan.trial.folder(results)}")


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
        kinds = ((Path(plan.trial.recipe).stem, *names), names, names[:1])  # the most similar first
        similar = next((seconds_of[kind] for kind in kinds if kind in seconds_of), [])
        total += 0.0 if step.cached or not similar else median(similar)
    return total


def show_status(folder: Path, results: Path = RESULTS, claims: Path = CLAIMS) -> None:
    """Print which runs of each claim are stored and which are missing."""
    study, store = load_study(claims), Store.open_or_new(folder)
    console = unwrapped()
    with sources.assuming_present() as absent:
        states = {trial: state(trial, store, results) for trial in _needed(study, ())}
    needs = {claim.name: runs([claim]) for claim in study.claims}
    for name, trials in (needs | ({CURVES: study.curves.runs()} if study.curves else {})).items():
        own = [states[trial] for trial in trials]
        console.print(f"{name}: {own.count('kept')} of {len(own)} runs kept")
        for trial in trials:
            if (current := states[trial]) != "kept":
                console.print(f"  {Path(trial.recipe).stem}, {trial.words}: {current}")
    all_states = list(states.values())
    console.print(f"{all_states.count('kept')} of {len(all_states)} runs kept")
    for problem in absent:
        console.print(f"missing data, so keys could not be compared: {problem}")


def state(trial: Trial, store: Store, results: Path) -> str:
    """Return whether a run is kept, missing, or built by other code or data."""
    if (stored := read_study_run(trial.folder(results))) is None:
        return "missing"
    plan = PlannedRun.of(trial, store)
    unknown = any("absent:" in str(step.inputs) for step in plan.steps)
    return "kept" if unknown or stored.facts.report == plan.report else "built by other code or data"
