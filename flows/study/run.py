"""`pretrieve study`: run what the claims still need, one run after the other, within a time budget.

A run reproduces a recipe with a seed, so an interrupted run resumes, and runs share artifacts through the store. Its
results are kept in small files (`flows/study/keep.py`), whichever day and machine they are from.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from flows.recipe.shipped import CLAIMS, PROJECT
from flows.reproduce import build
from flows.study.check import check
from flows.study.claims import load_study
from flows.study.costs import KnownCosts
from flows.study.data import FOLDER, write_data
from flows.study.keep import keep
from flows.study.order import measured_rows, needed
from flows.study.planned_run import PlannedRun
from flows.terminal import Terminal, unwrapped
from storage.errors import UserError
from storage.results.study_runs import read_study_run
from storage.store.run_notes import noted
from storage.store.store import Store
from tasks.runtime.formatting import duration
from tasks.session import Session
from tasks.training.loop import Diverged

RESULTS = PROJECT / "results" / "study"
PRIOR = PROJECT / "results" / "pilot", PROJECT / "results" / "earlier" / "study"
"""Runs whose stages are taken for similar until the study has its own; nothing else of them is read."""


def run(
    hours: float, folder: Path, results: Path = RESULTS, *, only: Sequence[str] = (), changes: Sequence[str] = (),
    claims: Path = CLAIMS,
) -> None:  # fmt: skip
    """Run what is missing, in the study's order, for `hours` at most. Exit code 1 where a run failed."""
    if wrong := [change for change in changes if not change.startswith("execution.")]:
        raise UserError(f"--set {wrong[0]}: a study's recipes run without changes; expected execution.KEY=VALUE")
    study, store, end = load_study(claims), Store.open_or_new(folder), time.monotonic() + 3600 * hours
    check(study)
    console, failed = unwrapped(stderr=True), 0
    if claims == CLAIMS and write_data():
        console.print(f"the study's collection is written to {FOLDER}")
    for trial in needed(study, only):
        plan = PlannedRun.of(trial, store, changes)
        if (stored := read_study_run(trial.folder(results))) and stored.facts.report == plan.report:
            continue
        if stored:
            console.print(
                f"{plan.words}: the stored results are of report {stored.facts.report}, built by other code or "
                f"data; running it again as {plan.report}"
            )
        expected, remaining = KnownCosts.of(results, *PRIOR).wall_seconds(plan), end - time.monotonic()
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


def reproduce(plan: PlannedRun, results: Path, rows: Mapping[str, Sequence[str]], console: Terminal) -> None:
    """Run a recipe from corpus to report, and store its results."""
    with noted(plan.store, "study run", plan.words, [f"{step.stage}/{step.key}" for step in plan.steps]) as note:
        current = Session(plan.store, plan.recipe.execution, print_line=console.print, note=note)
        build(plan.jobs, plan.title, current)
        keep(plan, results, rows, current)
        note.finish()
    console.print(f"{plan.words}: kept in {plan.trial.folder(results)}")
