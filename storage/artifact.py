"""Artifacts: what stages pass on, named by what made them.

The key is a hash of the stage, its version, its settings and the keys of its inputs: paths, times
and code are never in it. The manifest says all that is known of how an artifact came to be.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from storage.remembered import sha256_of_source
from storage.tables import Table

T = TypeVar("T", bound=Table, covariant=True)


@dataclass(frozen=True)
class Artifact(Generic[T]):
    """What stages pass on: never rows, never tensors."""

    stage: str
    key: str
    path: Path

    @property
    def reference(self) -> str:
        """How a key and a manifest name this input."""
        return f"{self.stage}/{self.key}"


@dataclass(frozen=True)
class Source:
    """Files from outside the store, named by their content; `path` says where they were found and is in no key."""

    key: str
    path: Path

    @property
    def reference(self) -> str:
        """How a key and a manifest name this input."""
        return f"source/{self.key}"


def source_of(path: Path, files: Sequence[Path]) -> Source:
    """The data set or model at `path`, known by the contents of the `files` of it that are read."""
    contents = [
        [file.name if file == path else str(file.relative_to(path)), sha256_of_source(file)] for file in sorted(files)
    ]
    return Source(hashlib.sha256(json.dumps(contents).encode()).hexdigest()[:24], path)


def key_of(stage: str, version: int, settings: Mapping[str, Any], inputs: Mapping[str, Any]) -> str:
    """The name of what a stage makes of these settings and inputs: 24 hexadecimal digits."""
    made_of = {"stage": stage, "version": version, "settings": settings, "inputs": inputs}
    text = json.dumps(made_of, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@dataclass(frozen=True)
class File:
    """A file of an artifact as the manifest lists it."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """How an artifact came to be and what is in it; `hash` covers `files` and leaves out `logs`."""

    stage: str
    version: int
    key: str
    settings: Mapping[str, Any]
    inputs: Mapping[str, Any]
    """Parameter name to reference, or to a list of them; null where an optional input is absent."""
    files: Mapping[str, File]
    logs: Mapping[str, File]
    """Logs, TensorBoard files and Lucene indexes: verified too, but free to differ between equal builds."""
    hash: str
    rows: int | None
    schema: str | None
    seed: int | None
    built: Mapping[str, Any]
    """When, where and at what cost: versions, seconds, CPU seconds, peak memory, device."""

    def as_json(self) -> str:
        """The text of manifest.json."""
        return json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False)

    @staticmethod
    def from_json(text: str) -> Manifest:
        """The manifest that `as_json` wrote."""
        value = json.loads(text)
        for group in ("files", "logs"):
            value[group] = {name: File(**file) for name, file in value[group].items()}
        return Manifest(**value)

    def references(self) -> list[str]:
        """The inputs' references, absent ones left out."""
        flat = [each for value in self.inputs.values() for each in (value if isinstance(value, list) else [value])]
        return [each for each in flat if each is not None]


def hash_of(files: Mapping[str, File]) -> str:
    """One hash over the names and contents of an artifact's data files."""
    listed = sorted((name, file.sha256) for name, file in files.items())
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()
