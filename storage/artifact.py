"""Artifacts: the outputs of stages, and their manifests.

An artifact's key is a hash of the stage, its version, its settings and the keys of its inputs. Paths, times and code
are not part of it. The manifest records how the artifact was built.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from storage.source_hashes import sha256_of_source
from storage.tables import Table

T = TypeVar("T", bound=Table, covariant=True)


@dataclass(frozen=True)
class Artifact(Generic[T]):
    """The output of a stage, a folder. Stages pass on artifacts, never rows or tensors."""

    stage: str
    key: str
    path: Path

    @property
    def reference(self) -> str:
        """The name of this input in keys and manifests."""
        return f"{self.stage}/{self.key}"


@dataclass(frozen=True)
class Source:
    """Files from outside the store. The key is a hash of their content; `path` is part of no key."""

    key: str
    path: Path

    @property
    def reference(self) -> str:
        """The name of this input in keys and manifests."""
        return f"source/{self.key}"


def source_of(path: Path, files: Sequence[Path]) -> Source:
    """Return the data set or model at `path`, identified by the contents of those of its `files` that are read."""
    contents = [
        [file.name if file == path else str(file.relative_to(path)), sha256_of_source(file)] for file in sorted(files)
    ]
    return Source(hashlib.sha256(json.dumps(contents).encode()).hexdigest()[:24], path)


def key_of(stage: str, version: int, settings: Mapping[str, Any], inputs: Mapping[str, Any]) -> str:
    """Return the key of what a stage builds from these settings and inputs: 24 hexadecimal digits."""
    identity = {"stage": stage, "version": version, "settings": settings, "inputs": inputs}
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


class InvalidManifest(ValueError):
    """The text is not a manifest. One line: which field is wrong and what was expected."""


def _check_built(built: Mapping[str, Any]) -> Mapping[str, Any]:
    """Refuse a description of a build without a field that every build records, since readers rely on these fields."""
    for name, kind in BUILT.items():
        value = built.get(name)
        if isinstance(value, bool) or not isinstance(value, kind) or (kind is not str and not _plausible(value)):
            raise ValueError(f"{name!r} is {value!a}, expected {_EXPECTED[kind]}")
    return built


def _check_references(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Refuse inputs other than null, a reference STAGE/KEY or a list of references."""
    for name, value in inputs.items():
        for reference in value if isinstance(value, list) else [value]:
            if reference is not None and not (isinstance(reference, str) and re.fullmatch(r"\w+/[^/]+", reference)):
                raise ValueError(f"{name!a} is {reference!a}, expected STAGE/KEY")
    return inputs


def _plausible(value: Any) -> bool:
    return isinstance(value, dict) or 0 <= value < 2**53


_NUMBER = (int, float)
_EXPECTED: dict[Any, str] = {str: "text", _NUMBER: "a number of at least 0", dict: "an object"}
BUILT: dict[str, Any] = {
    "at": str, "seconds": _NUMBER, "cpu_seconds": _NUMBER, "peak_memory_mib": _NUMBER, "device": str, "machine": dict,
    "versions": dict,
}  # fmt: skip

Count = Annotated[int, Field(ge=0, lt=2**63)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Name = Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$")]


@dataclass(frozen=True)
class File:
    """A file of an artifact in its manifest."""

    bytes: Count
    sha256: Digest


@dataclass(frozen=True)
class Manifest:
    """The origin and the content of an artifact. `hash` covers `files` and not `logs`."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid")

    stage: Name
    version: Annotated[int, Field(gt=0, lt=2**31)]
    key: str
    settings: Mapping[str, Any]
    inputs: Annotated[Mapping[str, Any], AfterValidator(_check_references)]
    """Parameter name to reference or list of references; null for an absent optional input."""
    files: Mapping[str, File]
    logs: Mapping[str, File]
    """Logs, TensorBoard files and Lucene indexes. They are verified, too, but may differ between equal builds."""
    hash: Digest
    rows: Count | None
    schema: Name | None
    seed: int | None
    built: Annotated[Mapping[str, Any], AfterValidator(_check_built)]
    """Time, machine and cost of the build: versions, seconds, CPU seconds, peak memory, device. Seconds and energy are
    those of all `attempts`; a manifest of an earlier version has those of the last attempt."""
    sha256: Digest | None = field(default=None, compare=False)
    """The sha256 of all other fields, so that no change goes unnoticed. Null in manifests of earlier versions."""

    @property
    def reference(self) -> str:
        """The name by which other artifacts refer to this one."""
        return f"{self.stage}/{self.key}"

    def as_json(self) -> str:
        """Return the text of manifest.json."""
        return json.dumps(vars(self) | {"sha256": self._digest()}, indent=1, ensure_ascii=False, default=vars)

    @staticmethod
    def from_json(text: str | bytes) -> Manifest:
        """Return the manifest of a text that `as_json` returned. Raises InvalidManifest for any other text."""
        try:
            manifest = _reader().validate_json(text)
            if manifest.sha256 not in (None, digest := manifest._digest()):
                raise InvalidManifest(f"its own sha256 is {manifest.sha256}, but its fields have {digest}")
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = "".join(f"{ascii(part)[1:-1] if isinstance(part, str) else part}: " for part in first["loc"])
            raise InvalidManifest(f"{where}{first['msg']}") from None
        except UnicodeError as error:
            raise InvalidManifest(f"its text is not Unicode ({error})") from None
        return manifest

    def references(self) -> list[str]:
        """Return the references of the inputs that are present."""
        values = [value if isinstance(value, list) else [value] for value in self.inputs.values()]
        return [reference for references in values for reference in references if reference is not None]

    def _digest(self) -> str:
        """Return the sha256 of all fields but `sha256`."""
        fields = {name: value for name, value in vars(self).items() if name != "sha256"}
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=vars)
        return hashlib.sha256(text.encode()).hexdigest()


@cache
def _reader() -> TypeAdapter[Manifest]:
    """Return the parser and validator of manifests, created when the first is read."""
    return TypeAdapter(Manifest)


def hash_of(files: Mapping[str, File]) -> str:
    """Return one hash over the names and contents of an artifact's data files."""
    contents = sorted((name, file.sha256) for name, file in files.items())
    return hashlib.sha256(json.dumps(contents).encode()).hexdigest()
