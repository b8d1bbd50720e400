"""The store: a folder of artifacts, each whole or absent.

    STORE/<stage>/<key>/            a published artifact with its manifest.json
    STORE/.work/<stage>-<key>/      one being built, or kept from a build that was cut off
    STORE/.damaged/<stage>-<key>/   one whose bytes were not those of its manifest
    STORE/.locks/                   who builds what (storage.lock)
    STORE/ledger/                   what generators have written (storage.ledger)
    STORE/reports/                  pages for people

A stage builds in `.work`, the manifest is written last, and one rename publishes the folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from storage.artifact import Artifact, File, Manifest
from storage.files import flush, full_disk_in_words, sha256_of, write_atomically
from storage.lock import Check, Locks, locks_of

MANIFEST = "manifest.json"
LOGS, SCRATCH = "logs", "scratch"
NO_STAGES = ("reports", "ledger")  # folders of the store that hold no artifacts
LEASE = 60.0  # seconds after which another host may take over what a host that died was building


class DamagedArtifact(Exception):
    """An artifact's bytes are not those that its manifest lists. One line: which file, what was expected."""


class Store:
    """Artifacts below one folder."""

    def __init__(self, root: Path, lease: float = LEASE) -> None:
        self.root, self._lease = root.resolve(), lease
        self._held: dict[str, Check] = {}

    def folder(self, stage: str, key: str) -> Path:
        """Where the artifact lies once it is whole."""
        return self.root / stage / key

    def work(self, stage: str, key: str) -> Path:
        """Where it is built."""
        return self.root / ".work" / f"{stage}-{key}"

    def manifest(self, stage: str, key: str) -> Manifest | None:
        """The manifest of a published artifact; None where there is none, or files are missing or of another size."""
        folder = self.folder(stage, key)
        try:
            manifest = Manifest.from_json((folder / MANIFEST).read_text())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, TypeError, KeyError):
            return None
        for name, file in _listed(manifest).items():
            path = folder / name
            if not path.is_file() or path.stat().st_size != file.bytes:
                return None
        return manifest

    def manifests(self) -> Iterator[tuple[Path, Manifest | None]]:
        """Every published folder with its manifest, or None where it is not whole."""
        for folder in sorted(self.root.glob("[!.]*/*/")):
            if folder.parent.name not in NO_STAGES:
                yield folder, self.manifest(folder.parent.name, folder.name)

    def damage(self, folder: Path) -> list[str]:
        """What is wrong with an artifact's folder, one line a file; every byte is read."""
        try:
            manifest = Manifest.from_json((folder / MANIFEST).read_text())
        except (OSError, ValueError, TypeError, KeyError) as error:
            return [f"{folder / MANIFEST}: expected a manifest, found none that can be read ({type(error).__name__})"]
        problems = []
        for name, file in _listed(manifest).items():
            path = folder / name
            if not path.is_file():
                problems.append(f"{path}: the manifest lists this file, but it is missing")
            elif (size := path.stat().st_size) != file.bytes:
                problems.append(f"{path}: expected {file.bytes} bytes, found {size}")
            elif (found := sha256_of(path)) != file.sha256:
                problems.append(f"{path}: expected sha256 {file.sha256[:12]}…, found {found[:12]}…")
        return problems

    def check(self, artifact: Artifact[object]) -> None:  # type: ignore[type-var]
        """Read every byte of an artifact before it is used. A damaged one is set aside and named."""
        if not (problems := self.damage(artifact.path)):
            return
        aside = self.set_aside(artifact.stage, artifact.key)
        raise DamagedArtifact(
            f"{'; '.join(problems)}. The artifact was moved to {aside}; run the same command again to rebuild it"
        )

    def set_aside(self, stage: str, key: str) -> Path:
        """Move a damaged artifact where no stage looks."""
        aside = self.root / ".damaged" / f"{stage}-{key}-{int(time.time())}"
        aside.parent.mkdir(parents=True, exist_ok=True)
        os.rename(self.folder(stage, key), aside)
        return aside

    @contextlib.contextmanager
    def lock(self, stage: str, key: str, waiting: Callable[[], None]) -> Iterator[None]:
        """Hold the right to build an artifact; `waiting` is called once if another process has it.

        Raises `storage.lock.LeaseLost` within the block where hosts share the store and another may build it.
        """
        name = self.work(stage, key).name
        with self._locks().hold(name, waiting) as self._held[name]:
            try:
                yield
            finally:
                del self._held[name]

    def is_being_built(self, work: Path) -> bool:
        """Whether a process holds the lock of this work folder's artifact."""
        return self._locks().is_held(work.name)

    def _locks(self) -> Locks:
        """Asked for each time: another host may have begun to share the store."""
        return locks_of(self.root / ".locks", self._lease)

    def begin(self, stage: str, key: str) -> Path:
        """The work folder, with whatever an earlier build that was cut off has left in it."""
        work = self.work(stage, key)
        with full_disk_in_words(work):
            work.mkdir(parents=True, exist_ok=True)
        _drop_unfinished(work)
        return work

    def publish(
        self, stage: str, key: str, describe: Callable[[dict[str, File], dict[str, File]], Manifest]
    ) -> Manifest:
        """List the work folder's files, write the manifest last, and rename the folder to its place."""
        work, folder = self.work(stage, key), self.folder(stage, key)
        shutil.rmtree(work / SCRATCH, ignore_errors=True)
        (work / MANIFEST).unlink(missing_ok=True)
        _drop_unfinished(work)  # of a process that was killed while it wrote a shard
        found = sorted(path for path in work.rglob("*") if path.is_file())
        listed = {path.relative_to(work).as_posix(): File(path.stat().st_size, sha256_of(path)) for path in found}
        logs = {name: file for name, file in listed.items() if name.startswith(f"{LOGS}/")}
        manifest = describe({name: file for name, file in listed.items() if name not in logs}, logs)
        for path in found:
            flush(path)
        write_atomically(work / MANIFEST, manifest.as_json())
        folder.parent.mkdir(parents=True, exist_ok=True)
        if check := self._held.get(work.name):
            check()
        if folder.exists():
            self.set_aside(stage, key)
        os.rename(work, folder)
        flush(folder.parent)
        return manifest


def _drop_unfinished(work: Path) -> None:
    """Delete what was being written (`storage.files.writing`) when somebody died."""
    for unfinished in work.rglob(".*.tmp"):
        unfinished.unlink(missing_ok=True)


def _listed(manifest: Manifest) -> dict[str, File]:
    return {**manifest.files, **manifest.logs}


def bytes_below(folder: Path) -> int:
    """What a folder's files take."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
