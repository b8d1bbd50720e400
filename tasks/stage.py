"""The stage mechanism: a function that fills a folder becomes a cached, resumable step.

`@stage(version=1, table=Passages)` turns `body(out, *inputs, settings)` into a call that returns an
`Artifact[Passages]`. The artifact is looked up in the store by its key. If it is missing, it is built, by one process
at a time, from what an earlier attempt has left. Inside a Prefect flow the call is a task of that flow with the same
key; without Prefect it is a plain function with the same artifacts. Raise `version` when the meaning of a stage
changes: its code is not part of the key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from storage.artifact import Artifact, File, Manifest, hash_of
from storage.files import full_disk_explained
from storage.rows import num_rows
from storage.settings import Settings
from storage.store.store import Store
from storage.tables import Table
from tasks.job import Input, Job, StageDefinition, needed_references
from tasks.runtime.attempts import Attempt
from tasks.runtime.environment import describe_build
from tasks.runtime.prefect_progress import in_flow_run
from tasks.session import Done, Session, current_round, current_session, execution

T = TypeVar("T", bound=Table)


def stage(
    *, version: int, table: type[T], trains: bool = False, gpu: bool | Callable[[Any], bool] = False
) -> Callable[[Callable[..., None]], Stage[T]]:
    """Turn `body(out, *inputs, settings=...)` into a stage that writes one `table`.

    A stage that `trains` runs in several processes where the execution says so. `gpu` says whether workers with a GPU
    run it; it may be a function of the settings.
    """
    return lambda body: Stage(body, version, table, trains, gpu if callable(gpu) else lambda settings: gpu)


class Stage(StageDefinition[T]):
    """A step of the chain: call it with its inputs to get its artifact."""

    def __call__(self, *only: Input, settings: Settings | None = None, **inputs: Input) -> Artifact[T]:
        """Return the artifact of these inputs and settings: from the store if it is complete there, else built.

        Inputs are given by name; a stage with a single input takes it without. Those that are None may be left out.
        """
        job, current = Job(self, self.bind(*only, **inputs), settings, current_round()), current_session()
        if job.reference not in current.done:
            if current.note:
                current.note.uses(needed_references([job]))
            current.jobs[job.reference] = job
            current.done[job.reference] = look_up(job, current) if current.planning else run_job(job, current)
        return Artifact(self.name, job.key, current.store.folder(self.name, job.key))


def run_job(job: Job, current: Session) -> Done:
    """Build the artifact of a job, or find it complete; inside a Prefect flow, as a task of that flow."""
    manifest = current.store.up_to_date(job.stage.name, job.key)
    cached = manifest is not None
    if not cached:
        current.print_line(f"{job.label} …{current.progress()}")
    if in_flow_run():
        from tasks.runtime.prefect_task import run_as_task

        return report_done(job, current, run_as_task(job, lambda: build_artifact(job, current), cached), cached)
    return report_done(job, current, manifest or build_artifact(job, current), cached)


def look_up(job: Job, current: Session) -> Done:
    """Return what the store knows of the artifact of a job."""
    manifest = current.store.up_to_date(job.stage.name, job.key)
    return _done(job, manifest, manifest is not None)


def report_done(job: Job, current: Session, manifest: Manifest, cached: bool) -> Done:
    """Print that the artifact of a job is complete, and return its record for the report."""
    rows = f", {manifest.rows:,} rows" if manifest.rows is not None else ""
    how = "cached" if cached else f"built in {manifest.built['seconds']:.1f} s{_attempts(manifest)}"
    current.print_line(f"{job.label}: {how}{rows}")
    return _done(job, manifest, cached)


def _attempts(manifest: Manifest) -> str:
    """Return the number of attempts in words where earlier ones were interrupted: their time is included."""
    number = manifest.built.get("attempts", 1)  # absent in what older versions built
    return f" in {number} attempts" if number > 1 else ""


def _done(job: Job, manifest: Manifest | None, cached: bool) -> Done:
    return Done(
        job.stage.name, job.round, job.key, cached,
        float(manifest.built["seconds"]) if manifest else 0.0, manifest.rows if manifest else None,
        list(job.references.values()), manifest.built if manifest else {},
    )  # fmt: skip


def build_artifact(job: Job, current: Session) -> Manifest:
    """Build the artifact of a job, unless another process has built it by the time that the lock is free."""
    name, store = job.stage.name, current.store
    with store.lock(name, job.key, lambda: current.print_line(f"{name} {job.key[:8]}: another run builds it; waiting")):
        if manifest := store.up_to_date(name, job.key):
            return manifest
        earlier = store.manifest(name, job.key)
        if (folder := store.folder(name, job.key)).exists() and (damage := store.quarantine_if_damaged(folder)):
            current.print_line(f"{job.label}: damaged, so it is built again: {damage.in_one_line()}")
        for artifact in job.artifacts():
            store.check(artifact)
        work = store.begin(name, job.key)
        with full_disk_explained(work):
            with Attempt(work) as attempt:
                _fill(work, job, current)
            manifest = store.publish(name, job.key, lambda files, logs: _manifest(job, work, files, logs, attempt))
            for line in compare_rebuilt(earlier, manifest, store) if earlier else []:
                current.print_line(f"{job.label}: {line}")
            return manifest


def compare_rebuilt(earlier: Manifest, manifest: Manifest, store: Store) -> Iterator[str]:
    """Yield what a rebuild has changed, and which other artifacts were built from the earlier content."""
    if manifest.hash == earlier.hash:
        yield "rebuilt, equal to the artifact that it replaces"
        return
    names = sorted(earlier.files.keys() | manifest.files.keys())
    changed = [name for name in names if earlier.files.get(name) != manifest.files.get(name)]
    yield f"rebuilt, DIFFERS from the artifact that it replaces in {len(changed)} of {len(names)} files: {changed[0]}"
    reference = manifest.reference
    built = [other for _, other in store.manifests() if other and reference in other.references()]
    if kept := [f"{other.stage}/{other.key[:8]}" for other in built if store.up_to_date(other.stage, other.key)]:
        yield f"built from the earlier content and not rebuilt: {', '.join(kept)}; rebuild them with their recipes"


def _fill(work: Path, job: Job, current: Session) -> None:
    """Run the body of the stage, in several processes where it trains and the execution says so."""
    if job.stage.trains and execution().processes * execution().hosts > 1:
        from tasks.runtime.ranks import run_together

        run_together(job.stage.body, work, job.inputs, job.settings, current.store)
    else:
        job.stage.body(work, *job.inputs, **({"settings": job.settings} if job.settings else {}))


def _manifest(job: Job, work: Path, files: dict[str, File], logs: dict[str, File], attempt: Attempt) -> Manifest:
    stage, cost = job.stage, attempt.total()
    built = {
        # Two builds of one key have different manifests, by which a rebuild tells them apart.
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "seconds": round(cost.seconds, 3),
        "cpu_seconds": round(cost.cpu_seconds, 3),
        "energy_joules": {part: round(joules, 1) for part, joules in cost.energy_joules.items()},
        "attempts": attempt.number,
        **describe_build(execution()),
    }
    return Manifest(
        stage=stage.name, version=stage.version, key=job.key, settings=job.values, inputs=job.references,
        files=files, logs=logs, hash=hash_of(files), rows=num_rows(work) if stage.table.schema else None,
        schema=stage.table.__name__, seed=job.values.get("seed"), built=built,
    )  # fmt: skip
