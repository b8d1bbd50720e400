"""A stage as a Prefect task: its name and key, its manifest as the result; in the UI its progress and its manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from storage.artifact import File, Manifest
from storage.settings import flattened
from tasks.job import Job
from tasks.runtime.formatting import duration, in_units
from tasks.runtime.prefect_progress import best_effort, show_progress
from tasks.runtime.signals import building_stage

TAG = "pretrieve"  # of all our runs: by it the automations know them
EMBEDDED = "PRETRIEVE_EMBEDDED_SERVER"  # set where the server belongs to a run of this process
FILES_SHOWN, LETTERS_SHOWN = 30, 90


def run_as_task(job: Job, build: Callable[[], Manifest], cached: bool) -> Manifest:
    """Build the job in this thread, where a cancelled run can interrupt it, as a task of the flow that runs."""
    state = task_of(job, cached, build)(return_state=True)
    manifest = Manifest.from_json(state.result())
    if state.name == "Cached":
        describe(job, manifest)
    return manifest


def task_of(job: Job, cached: bool, build: Callable[[], Manifest]) -> Any:
    """Return a task whose result is the job's manifest, under the artifact's key.

    Prefect remembers a result even when the folder is gone, so `refresh_cache` says when it is.
    """
    from prefect import task

    key = f"{job.stage.name}-{job.key}"

    def build_and_describe() -> str:
        with show_progress(artifact_key(f"{job.stage.name}-{job.key[:8]}-progress")), building_stage():
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

    rows = f", {manifest.rows:,} rows" if manifest.rows is not None else ""
    words = f"{job.label}{rows}, built in {duration(manifest.built['seconds'])}. `pretrieve show {job.key}` shows more."
    with best_effort():
        key = artifact_key(f"{job.stage.name}-{job.key[:8]}")
        create_table_artifact(key=key, table=manifest_table(manifest), description=words)


def artifact_key(name: str) -> str:
    """Return a name as Prefect takes it: small letters, digits and dashes."""
    return "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in name.lower())


def manifest_table(manifest: Manifest) -> list[dict[str, str]]:
    """Return what is known of an artifact, the most useful first, in cells of a line or two."""
    built, listed = manifest.built, {**manifest.files, **manifest.logs}
    rows = [
        *([] if manifest.rows is None else [("artifact", "rows", f"{manifest.rows:,}")]),
        ("artifact", "size", in_units(sum(file.bytes for file in listed.values()))),
        ("artifact", "built in", duration(built["seconds"])),
        ("artifact", "built at", str(built["at"])),
        ("artifact", "device", str(built.get("device", ""))),
        ("artifact", "key", manifest.key),
        ("artifact", "hash", manifest.hash),
        *(("input", *row) for row in _inputs(manifest.inputs)),
        *(("setting", *row) for row in flattened(manifest.settings)),
        *(("file", *row) for row in _files(listed)),
    ]
    return [{"part": part, "name": name, "value": _short(value)} for part, name, value in rows]


def _inputs(inputs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and STAGE/KEY of each input; members of a list are named by their numbers."""
    for name, value in inputs.items():
        if isinstance(value, list):
            yield from ((f"{name}.{number}", member) for number, member in enumerate(value))
        elif value is not None:
            yield name, value


def _files(files: Mapping[str, File]) -> Iterator[tuple[str, str]]:
    for name, file in list(files.items())[:FILES_SHOWN]:
        yield name, f"{in_units(file.bytes)}, sha256 {file.sha256[:12]}"
    if more := list(files.values())[FILES_SHOWN:]:
        yield f"{len(more)} more", in_units(sum(file.bytes for file in more))


def _short(value: str) -> str:
    text = " ".join(value.split())
    return text if len(text) <= LETTERS_SHOWN else f"{text[: LETTERS_SHOWN - 1]}…"
