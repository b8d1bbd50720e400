"""A stage as a Prefect task: its name and key, its manifest as the result, and a table of it in the UI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from storage.artifact import Manifest
from tasks.stage import Job, Session


def run_as_task(job: Job, current: Session, cached: bool) -> Manifest:
    """Build the job in this thread, where a cancelled run can interrupt it, as a task of the flow that runs."""
    state = task_of(job, cached, lambda: job.build(current))(return_state=True)
    manifest = Manifest.from_json(state.result())
    if state.name == "Cached":
        describe(job, manifest)
    return manifest


def task_of(job: Job, cached: bool, build: Callable[[], Manifest]) -> Any:
    """A task whose result is the job's manifest, under the artifact's key.

    Prefect remembers a result even when the folder is gone, so `refresh_cache` says when it is.
    """
    from prefect import task

    key = f"{job.stage.name}-{job.key}"

    def build_and_describe() -> str:
        manifest = build()
        describe(job, manifest)
        return manifest.as_json()

    return task(
        name=job.stage.name, task_run_name=job.label, cache_key_fn=lambda *_: key, refresh_cache=not cached,
        persist_result=True, result_serializer="json", tags=[job.stage.name],
    )(build_and_describe)  # fmt: skip


def describe(job: Job, manifest: Manifest) -> None:
    """Show the manifest as a table in the UI."""
    from prefect.artifacts import create_table_artifact

    key = f"{job.stage.name}-{job.key}".replace("_", "-")
    create_table_artifact(key=key, table=_manifest_table(manifest), description=f"{job.stage.name} {job.key}")


def _manifest_table(manifest: Manifest) -> list[dict[str, Any]]:
    rows = [
        {"what": "key", "value": manifest.key},
        {"what": "rows", "value": "" if manifest.rows is None else f"{manifest.rows:,}"},
        {"what": "hash", "value": manifest.hash},
        {"what": "seconds", "value": str(manifest.built["seconds"])},
    ]
    rows += [{"what": f"setting {name}", "value": str(value)} for name, value in manifest.settings.items()]
    rows += [{"what": f"input {name}", "value": str(value)} for name, value in manifest.inputs.items()]
    listed = {**manifest.files, **manifest.logs}
    rows += [
        {"what": f"file {name}", "value": f"{file.bytes:,} bytes {file.sha256[:12]}"} for name, file in listed.items()
    ]
    return rows
