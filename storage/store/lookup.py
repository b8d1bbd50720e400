"""Finding artifacts in a store: by the beginning of a key, by reference, and by what an artifact was built from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from storage.artifact import Artifact, Manifest
from storage.errors import UserError
from storage.store.manifest_checks import find_damage
from storage.store.store import Store

LISTED = 5  # matches that an error names


def matching(prefix: str, store: Store, schema: str | None = None) -> list[tuple[Path, Manifest | None]]:
    """Return the folders of artifacts whose keys begin with `prefix`, each with its manifest, or None if damaged.

    Where a table's `schema` is given, only intact artifacts of it count.
    """
    return [
        (folder, manifest)
        for folder, manifest in store.manifests()
        if folder.name.startswith(prefix) and (schema is None or (manifest is not None and manifest.schema == schema))
    ]


def find(prefix: str, store: Store) -> tuple[Path, Manifest]:
    """Return the folder and manifest of the only artifact whose key begins with `prefix`.

    Raises UserError where no or several artifacts match, or where the artifact is damaged.
    """
    matches = matching(prefix, store)
    if len(matches) != 1:
        names = ", ".join(str(folder.relative_to(store.root)) for folder, _ in matches[:LISTED])
        if not matches and (keys := _keys_of_stage(prefix, store)):
            listed = ", ".join(keys[:LISTED]) + (f" and {len(keys) - LISTED} more" if len(keys) > LISTED else "")
            raise UserError(f"{prefix}: this is a stage; expected a key, and in {store.root} it has {listed}")
        counted = (
            f"{len(matches)} artifacts match this prefix: {names}" if matches else "no artifact has a key like this"
        )
        raise UserError(
            f"{prefix}: in {store.root} {counted}; expected one key or its beginning, as `pretrieve plan RECIPE` lists "
            "keys"
        )
    folder, manifest = matches[0]
    if manifest is None:
        raise UserError(
            f"{folder}: the artifact is damaged ({'; '.join(find_damage(folder))}); run its recipe again to rebuild it"
        )
    return folder, manifest


def _keys_of_stage(name: str, store: Store) -> list[str]:
    """Return the keys of the intact artifacts of a stage, the newest first; none where there is no such stage."""
    built = [(str(manifest.built["at"]), manifest.key) for _, manifest in store.manifests()
             if manifest is not None and manifest.stage == name]  # fmt: skip
    return [key for _, key in sorted(built, reverse=True)]


def lookup(reference: str, store: Store) -> Manifest | None:
    """Return the manifest of `STAGE/KEY`; None for a source, and where the artifact is missing or damaged."""
    stage, _, key = reference.partition("/")
    return None if stage == "source" else store.manifest(stage, key)


def must_exist(reference: str, store: Store) -> Manifest:
    """Return the manifest of `STAGE/KEY`. Raises UserError where the artifact is missing or damaged."""
    if (manifest := lookup(reference, store)) is None:
        raise UserError(
            f"{store.root / reference}: the artifact is missing or damaged; run its recipe again to rebuild it"
        )
    return manifest


def artifact(reference: str, store: Store) -> Artifact[Any]:
    """Return the artifact `STAGE/KEY`. Raises UserError where it is missing or damaged."""
    manifest = must_exist(reference, store)
    return Artifact(manifest.stage, manifest.key, store.folder(manifest.stage, manifest.key))


def missing_artifacts(references: Iterable[str], store: Store) -> list[str]:
    """Return the references (STAGE/KEY) of the artifacts among these that a run must build."""
    return [reference for reference in references if store.up_to_date(*reference.split("/")) is None]


def newest_vectors(checkpoint: Manifest, store: Store) -> Manifest | None:
    """Return the manifest of the newest vectors that a checkpoint has encoded, or None where there are none."""
    encoded = stored_vectors(checkpoint, store)
    return encoded[-1] if encoded else None


def stored_vectors(checkpoint: Manifest | Artifact[Any], store: Store) -> list[Manifest]:
    """Return the manifests of all vectors that a checkpoint has encoded, the oldest first.

    Truncated vectors, which a measurement makes of these, are left out.
    """
    reference = checkpoint.reference
    encoded = [
        manifest
        for _, manifest in store.manifests()
        if manifest and manifest.stage == "encode" and manifest.inputs["checkpoint"] == reference
    ]
    return sorted(encoded, key=lambda manifest: str(manifest.built["at"]))


def parameter_inputs(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield each input of an artifact as parameter and reference; a parameter of several inputs has a pair for each."""
    for parameter, references in manifest.inputs.items():
        for reference in references if isinstance(references, list) else [references]:
            if reference is not None:
                yield parameter, reference


def lineage(reference: str, store: Store) -> dict[str, list[str]]:
    """Return an artifact and all that it was built from: every reference with those of its inputs.

    Sources and artifacts that are no longer in the store have no inputs.
    """
    inputs: dict[str, list[str]] = {}
    waiting = [reference]
    while waiting:
        current = waiting.pop()
        if current not in inputs:
            manifest = lookup(current, store)
            inputs[current] = manifest.references() if manifest else []
            waiting += inputs[current]
    return inputs
