"""Requests to build artifacts again under the keys that they have.

    STORE/.rebuilds/<id>.json    title, and the sha256 of each artifact's manifest at the time of the request

An artifact counts as missing for runs while its manifest is the one in a request, and is complete when it has another.
So a request needs no update while its artifacts are replaced one by one: an interrupted rebuild resumes with the
artifacts that still have their earlier manifests, also after SIGKILL. Commands that only read keep using the earlier
artifact until the new one takes its name.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from storage.errors import UserError
from storage.files import write_atomically
from storage.store.manifest_checks import MANIFEST

FOLDER = ".rebuilds"


@dataclass(frozen=True)
class Rebuild:
    """A request."""

    path: Path
    title: str
    manifests: Mapping[str, str]
    """The sha256 of the manifest that is to be replaced, by `<stage>/<key>`."""

    def pending(self) -> list[str]:
        """Return the references of the artifacts that are not replaced yet."""
        root = self.path.parent.parent
        return [reference for reference, digest in self.manifests.items() if _digest(root, reference) == digest]


def find_request(root: Path, references: Collection[str]) -> Rebuild | None:
    """Return the request for exactly these artifacts, which an earlier run has left; None where there is none.

    Nothing is pending where that run ended after its last artifact.
    """
    path = _path(root, references)
    return next((rebuild for rebuild in read_requests(root) if rebuild.path == path), None)


def request(root: Path, title: str, references: Collection[str]) -> Rebuild:
    """Record that these artifacts are to be built again.

    Artifacts that are missing are left out, since they are built in any case.
    """
    path = _path(root, references)
    manifests = {reference: digest for reference in references if (digest := _digest(root, reference))}
    write_atomically(path, json.dumps({"title": title, "manifests": manifests}, indent=1))
    return Rebuild(path, title, manifests)


def read_requests(root: Path) -> Iterator[Rebuild]:
    """Yield the requests of a store. Raises UserError for a file that is no request."""
    for path in sorted((root / FOLDER).glob("*.json")):
        with contextlib.suppress(FileNotFoundError):  # another process has finished the rebuild meanwhile
            yield _read(path)


def is_pending(root: Path, stage: str, key: str) -> bool:
    """Return whether an artifact that exists is to be built again."""
    reference = f"{stage}/{key}"
    digests = [rebuild.manifests.get(reference) for rebuild in read_requests(root)]
    return any(digests) and _digest(root, reference) in digests


def remove_finished(root: Path) -> None:
    """Delete the requests all of whose artifacts are replaced."""
    for rebuild in read_requests(root):
        if not rebuild.pending():
            rebuild.path.unlink(missing_ok=True)


def _path(root: Path, references: Collection[str]) -> Path:
    name = hashlib.sha256("\n".join(sorted(references)).encode()).hexdigest()[:24]
    return root / FOLDER / f"{name}.json"


def _read(path: Path) -> Rebuild:
    try:
        content = json.loads(path.read_bytes())
        return Rebuild(path, str(content["title"]), {str(name): str(sha) for name, sha in content["manifests"].items()})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(
            f"{path}: expected a request for a rebuild; delete the file, and give --rebuild again"
        ) from None


def _digest(root: Path, reference: str) -> str | None:
    """Return the sha256 of an artifact's manifest.json, or None where there is none."""
    try:
        return hashlib.sha256((root / reference / MANIFEST).read_bytes()).hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return None
