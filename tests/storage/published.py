"""Artifacts that tests publish without a stage, with manifests that are as complete as a stage's."""

from collections.abc import Mapping
from typing import Any

from storage.artifact import Artifact, File, Manifest, hash_of, key_of
from storage.store.store import Store

BUILT = {
    "at": "2026-01-01T00:00:00+00:00", "seconds": 1.0, "cpu_seconds": 1.5, "peak_memory_mib": 100, "device": "cpu",
    "machine": {"cores": 2, "system": "Linux", "python": "3.12.0"}, "versions": {"torch": "2.0.0"},
}  # fmt: skip
KEY = key_of("made", 1, {}, {})


def described(files: Mapping[str, File], logs: Mapping[str, File], **changes: Any) -> Manifest:
    """Return the manifest of what a stage `made` without settings, inputs and table wrote, or with these changes."""
    values: dict[str, Any] = {
        "stage": "made", "version": 1, "settings": {}, "inputs": {}, "files": files, "logs": logs,
        "hash": hash_of(files), "rows": None, "schema": None, "built": BUILT,
    } | changes  # fmt: skip
    key = key_of(values["stage"], values["version"], values["settings"], values["inputs"])
    return Manifest(**{"key": key, "seed": values["settings"].get("seed")} | values)


def publish(store: Store, stage: str = "made", **changes: Any) -> Artifact[Any]:
    """Publish what is in the work folder `store.work(stage, "new")`; return the artifact, named by its own key."""
    key = described({}, {}, stage=stage, **changes).key
    store.work(stage, "new").rename(store.work(stage, key))
    store.publish(stage, key, lambda files, logs: described(files, logs, stage=stage, **changes))
    return Artifact(stage, key, store.folder(stage, key))
