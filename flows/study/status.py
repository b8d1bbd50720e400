"""`pretrieve study status`: which runs are kept and which are missing, and the CPU time that these need."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from flows.matrix.attempts import Attempts, State
from flows.matrix.planned_run import PlannedRun
from flows.plan.plan import without_key
from flows.recipe.shipped import CLAIMS
from flows.study.claims import RESULTS, Study, load_study
from flows.study.costs import KnownCosts
from flows.study.order import CURVES, claim_runs, curve_runs, needed
from flows.study.run import PRIOR
from flows.study.trials import PlannedTrial, attempts_of, in_words, is_kept, kept_run
from flows.terminal import Terminal, unwrapped
from storage.results.study_runs import Trial
from storage.store import sources
from storage.store.run_notes import RunNote, read_notes
from storage.store.store import Store


def show_status(folder: Path, results: Path = RESULTS, claims: Path = CLAIMS) -> None:
    """Print which runs of each claim are stored and which are missing, and the CPU hours of each system."""
    study, store = load_study(claims), Store.open_or_new(folder)
    console = unwrapped()
    with sources.assuming_present() as absent:
        plans = {trial: PlannedRun.of(trial, store) for trial in needed(study)}
    attempts, notes = attempts_of(store), read_notes(store.root)
    states = {trial: state(plan, results, attempts, notes) for trial, plan in plans.items()}
    for name, trials in _groups(study).items():
        own = [states[trial] for trial in trials]
        console.print(f"{name}: {own.count('kept')} of {len(own)} runs kept")
        for trial in trials:
            if states[trial] not in ("kept", "missing"):
                console.print(f"  {Path(trial.recipe).stem}, {trial.words}: {states[trial]}")
    _show_costs([plans[trial] for trial in plans], states, KnownCosts.of(results, *PRIOR))
    kept = list(states.values()).count("kept")
    missing = next((trial for trial in plans if states[trial] != "kept"), None)
    console.print(f"{kept} of {len(states)} runs kept" + (f"; next: {in_words(plans[missing])}" if missing else ""))
    for problem in absent:
        console.print(f"missing data, so keys could not be compared: {problem}")


def state(plan: PlannedTrial, results: Path, attempts: Attempts[Trial], notes: Sequence[RunNote]) -> str:
    """Return whether a run is kept, built by other code or data, running, interrupted, failed (and why), or missing."""
    if is_kept(plan, results) or (without_key(plan.steps) and kept_run(plan, results)):
        return "kept"
    if (current := attempts.state(plan, notes)) is State.FAILED:
        return f"failed: {attempts.failure(plan)}"
    if current in (State.RUNNING, State.INTERRUPTED):
        return str(current)
    return "built by other code or data" if kept_run(plan, results) else "missing"


def _groups(study: Study) -> dict[str, list[Trial]]:
    groups = {claim.name: claim_runs(claim) for claim in study.claims}
    return groups | ({CURVES: curve_runs(study.curves)} if study.curves else {})


def _show_costs(plans: Sequence[PlannedTrial], states: dict[Trial, str], known: KnownCosts) -> None:
    """Print the CPU hours that the missing runs of each system need; a stage that runs share counts once."""
    seconds: dict[str, float] = defaultdict(float)
    runs: dict[str, list[str]] = defaultdict(list)
    counted: set[tuple[str, str]] = set()
    for plan in plans:
        trial = plan.definition
        steps = f", {trial.steps:,} steps" if trial.steps else ""
        name = plan.title + steps
        runs[name].append(states[trial])
        if states[trial] != "kept":
            seconds[name] += known.cpu_seconds(plan, counted)
    table = Table("system", "runs kept", "CPU hours missing")
    for name, own in runs.items():
        table.add_row(name, f"{own.count('kept')} of {len(own)}", f"{seconds[name] / 3600:.2f}")
    table.add_row(
        "all", f"{list(states.values()).count('kept')} of {len(states)}", f"{sum(seconds.values()) / 3600:.2f}"
    )
    Terminal().print(table)
