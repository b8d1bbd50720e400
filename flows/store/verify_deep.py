"""`pretrieve verify --deep`: rebuild a sample of artifacts in a scratch folder, and compare the hashes.

The stages read the store's artifacts and write to a scratch store, which is deleted at the end: nothing in the store
changes.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from flows.finished_runs import published_runs
from flows.plan.plan import planned
from flows.recipe.load import load_recipe
from flows.recipe.shipped import recipe_name
from flows.terminal import say, unwrapped
from storage.artifact import Manifest
from storage.errors import UserError, one_line
from storage.store.store import Store
from tasks.job import Job
from tasks.runtime.environment import describe_build
from tasks.runtime.formatting import duration
from tasks.session import Execution, Session, session
from tasks.stage import build_artifact

FILES_SHOWN = 3
DIFFERS = "differs"
FAILED = "cannot be built again"


@dataclass(frozen=True)
class Sampling:
    """The sample to rebuild: `number` artifacts, drawn by `seed` from those that took `seconds` at most."""

    number: int
    seconds: float
    seed: int


@dataclass(frozen=True)
class Rebuildable:
    """An artifact of the store, and the job of its recipe that builds it."""

    job: Job
    manifest: Manifest
    execution: Execution


def verify_deep(names: Sequence[str], changes: Sequence[str], folder: Path, sampling: Sampling) -> None:
    """Rebuild a sample of the artifacts of the named recipes, or of the recipes with a report in the store.

    Exit code 1 where an artifact differs on a machine like the one that built it, or cannot be built again.
    """
    store = Store.open(folder)
    rebuild_sample(_artifacts(names or _of_reports(store), changes, store, must_work=bool(names)), sampling)


def rebuild_sample(known: Mapping[str, Rebuildable], sampling: Sampling) -> None:
    """Rebuild a sample of artifacts, and print each outcome. Exit code 1 as in `verify_deep`."""
    chosen, outcomes = drawn(known, sampling), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="pretrieve-verify-") as scratch:
        for number, candidate in enumerate(chosen, 1):
            outcome, words = rebuilt(
                candidate, Session(Store(Path(scratch)), candidate.execution, print_line=unwrapped(stderr=True).print)
            )
            outcomes[outcome] += 1
            say(f"{number} of {len(chosen)}: {candidate.job.label}: {words}")
    say(", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()) or "nothing was built again")
    if outcomes[DIFFERS] or outcomes[FAILED]:
        raise typer.Exit(1)


def _of_reports(store: Store) -> list[str]:
    """Return the names of the recipes that the store has reports of. Raises UserError where there is none."""
    if not (names := published_runs(store)):
        reports = store.root / "reports"
        raise UserError(f"{reports}: expected the report of a recipe there; else name a recipe with --recipe")
    return names


def _artifacts(
    names: Sequence[str], changes: Sequence[str], store: Store, *, must_work: bool
) -> dict[str, Rebuildable]:
    """Return the artifacts of some recipes that the store has, by reference, in the order of the chains.

    Raises UserError for a recipe that cannot be planned here if it `must_work`; else this is only printed.
    """
    rebuildable: dict[str, Rebuildable] = {}
    for name in names:
        try:
            recipe, path = load_recipe(name, changes)
            plan = planned(recipe, recipe_name(path, fast=recipe.fast), store)
        except UserError as error:
            if must_work:
                raise
            unwrapped(stderr=True).print(f"{name}: its artifacts cannot be built again: {error}")
            continue
        for reference, job in plan.jobs.items():
            if manifest := store.manifest(job.stage.name, job.key):
                rebuildable[reference] = Rebuildable(job, manifest, as_built(manifest, recipe.execution))
    return rebuildable


def as_built(manifest: Manifest, here: Execution) -> Execution:
    """Return how to run here, with as many threads and processes as the build had.

    Both change the order in which floating-point numbers are added, and so the bytes, on the same machine.
    """
    try:
        before = Execution.model_validate(manifest.built["execution"])
    except (KeyError, ValueError):  # of a version that recorded less, or other names
        return here
    return here.model_copy(update={"threads": before.threads, "processes": before.processes * before.hosts})


def drawn(known: Mapping[str, Rebuildable], sampling: Sampling) -> list[Rebuildable]:
    """Return the sample, in the order of the chains; print from how many it was drawn.

    The draw depends on the seed and the keys only, so that it is the same on every machine.
    """
    short = [
        reference for reference, candidate in known.items() if candidate.manifest.built["seconds"] <= sampling.seconds
    ]
    order = sorted(short, key=lambda reference: hashlib.sha256(f"{sampling.seed}:{reference}".encode()).digest())
    chosen = set(order[: sampling.number])
    unwrapped(stderr=True).print(
        f"{len(chosen)} of {len(short)} artifacts that took at most {duration(sampling.seconds)} each are built again; "
        f"{len(known) - len(short)} took longer (seed {sampling.seed})"
    )
    return [candidate for reference, candidate in known.items() if reference in chosen]


def rebuilt(candidate: Rebuildable, current: Session) -> tuple[str, str]:
    """Build an artifact again in a session with another store; return the outcome, in short and in full."""
    job, manifest = candidate.job, candidate.manifest
    unwrapped(stderr=True).print(f"{job.label}: built in {duration(manifest.built['seconds'])} before …")
    try:
        with session(current):
            again = build_artifact(job, current)
    except Exception as error:  # noqa: BLE001  (whatever a stage raises, the others are still compared)
        return FAILED, f"{FAILED}: {type(error).__name__}: {one_line(str(error))}"
    if again.hash == manifest.hash:
        return "equal", f"equal, built again in {duration(again.built['seconds'])}"
    files = sorted(
        name for name in {**manifest.files, **again.files} if manifest.files.get(name) != again.files.get(name)
    )
    what = f"hash {again.hash}, expected {manifest.hash}; {len(files)} files differ: {', '.join(files[:FILES_SHOWN])}"
    if others := _differences(manifest.built, describe_build(current.execution)):
        return f"{DIFFERS}, from another machine", (
            f"differs: {what}; it was built elsewhere, where floating-point numbers may be rounded otherwise: {others}"
        )
    return DIFFERS, f"differs: {what}; it was built on a machine like this, with the same versions"


def _differences(built: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Return how the machine that built an artifact differs from this one; "" where nothing is known to differ."""
    before = {"device": built["device"], **built["machine"], **built["versions"]}
    now = {"device": here["device"], **here["machine"], **here["versions"]}
    return ", ".join(
        f"{name} {before.get(name, 'not recorded')}, here {now.get(name, 'none')}"
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    )
