"""The planned runs of a study: their words, and which of them are kept."""

from __future__ import annotations

from pathlib import Path

from flows.matrix.attempts import Attempts
from flows.matrix.planned_run import PlannedRun
from storage.results.study_runs import StudyRun, Trial, read_study_run
from storage.store.store import Store

PlannedTrial = PlannedRun[Trial]


def in_words(plan: PlannedTrial) -> str:
    """Return the recipe, the fold and the seed, for messages."""
    return f"{plan.title}, {plan.definition.words}"


def kept_run(plan: PlannedTrial, results: Path) -> StudyRun | None:
    """Return the kept results of a run, also where other code or data built them."""
    return read_study_run(plan.definition.folder(results))


def is_kept(plan: PlannedTrial, results: Path) -> bool:
    """Return whether the results of a run, built by this code from these data, are kept."""
    kept = kept_run(plan, results)
    return kept is not None and kept.facts.report == plan.report


def attempts_of(store: Store) -> Attempts[Trial]:
    """Return the attempts of a study's runs in a store."""
    return Attempts(store, lambda trial: trial.folder(store.root / "reports" / "study"))
