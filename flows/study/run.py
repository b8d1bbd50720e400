"""`pretrieve study`: run what the claims still need, one run after the other, within a time budget.

Runs are planned and attempted as those of a matrix: they share artifacts through the store, an interrupted run resumes,
a run that fails stops no other, and several processes take different runs. Their results are kept in small files
(`flows/study/keep.py`), whichever day and machine they are from.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import typer

from flows.build import build
from flows.matrix.planned_run import PlannedRun
from flows.recipe.shipped import CLAIMS, PROJECT
from flows.study.check import check
from flows.study.claims import RESULTS, load_study
from flows.study.costs import KnownCosts
from flows.study.data import FOLDER, write_data
from flows.study.keep import keep
from flows.study.order import measured_rows, needed
from flows.study.trials import PlannedTrial, attempts_of, in_words, is_kept, kept_run
from flows.terminal import Terminal, unwrapped
from storage.errors import UserError
from storage.store.run_notes import NotedRun
from storage.store.store import Store
from tasks.runtime.formatting import duration
from tasks.session import Session

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
    console, failed, attempts = unwrapped(stderr=True), 0, attempts_of(store)
    if claims == CLAIMS and write_data():
        console.print(f"the study's collection is written to {FOLDER}")
    plans = [PlannedRun.of(trial, store, changes) for trial in needed(study, only)]
    waiting = [plan for plan in plans if not is_kept(plan, results)]
    console.print(f"{len(plans)} runs, {len(plans) - len(waiting)} kept, {len(waiting)} missing")
    while waiting:
        with attempts.choosing():
            if not (chosen := attempts.next(waiting)):
                break  # other processes run what is missing
            waiting.remove(chosen)
            plan = PlannedRun.of(chosen.definition, store, changes)  # stages may have been built since
            if is_kept(plan, results):  # another process has run it
                continue
            if not _fits(plan, results, end - time.monotonic(), console):
                _exit(failed)
                return
            note = attempts.begin(plan, "study run", in_words(plan))
        if stored := kept_run(plan, results):
            console.print(
                f"{in_words(plan)}: the stored results are of report {stored.facts.report}, built by other code or "
                f"data; running it again as {plan.report}"
            )
        rows = measured_rows(study, plan.definition.recipe)
        build_and_keep = partial(reproduce, plan, store, results, rows, console)
        failed += not attempts.attempt(plan, note, build_and_keep, console.print)
    console.print(_ending(waiting, failed))
    _exit(failed)


def _exit(failed: int) -> None:
    if failed:
        raise typer.Exit(1)


def _fits(plan: PlannedTrial, results: Path, remaining: float, console: Terminal) -> bool:
    """Return whether a run is expected to end within the remaining seconds, and print it."""
    words, expected = in_words(plan), KnownCosts.of(results, *PRIOR).wall_seconds(plan)
    if expected > remaining or remaining <= 0:
        console.print(
            f"not started: {words} takes about {duration(expected)}, and {duration(max(remaining, 0))} "
            "remain; the same command resumes the study"
        )
        return False
    console.print(f"{words}: about {duration(expected)}" if expected else f"{words}: duration unknown")
    return True


def reproduce(
    plan: PlannedTrial, store: Store, results: Path, rows: Mapping[str, Sequence[str]], console: Terminal,
    note: NotedRun,
) -> None:  # fmt: skip
    """Run a recipe from corpus to report, and store its results."""
    current = Session(store, plan.recipe.execution, print_line=console.print, note=note)
    build(plan.jobs, plan.title, current)
    keep(plan, store, results, rows, current)
    console.print(f"{in_words(plan)}: kept in {plan.definition.folder(results)}")


def _ending(waiting: Sequence[PlannedTrial], failed: int) -> str:
    """Return what is left when no run can be begun."""
    if waiting:
        names = "; ".join(in_words(plan) for plan in waiting)
        return f"other processes run what is missing: {names}; the same command runs what they leave"
    if failed:
        return f"{failed} runs failed; the same command tries them again"
    return "nothing is missing: `make results` writes docs/results.md"
