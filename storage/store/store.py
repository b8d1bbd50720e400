"""The store: a folder of artifacts, each whole or absent.

    STORE/.pretrieve-store          the version of this format (storage.store.marker)
    STORE/<stage>/<key>/            a published artifact with its manifest.json
    STORE/.work/<stage>-<key>/      one being built, or kept from a build that was cut off
    STORE/.damaged/<stage>-<key>/   one whose bytes were not those of its manifest
    STORE/.locks/                   who builds what (storage.store.locks)
    STORE/ledger/                   what generators have written (storage.ledger.ledger)
    STORE/reports/                  pages for people

A stage builds in `.work`, the manifest is written last, and one rename publishes the folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from storage.artifact import Artifact, File, InvalidManifest, Manifest
from storage.errors import DamagedArtifact, UserError
from storage.files import drop_unfinished, flush, follow_umask, full_disk_in_words, sha256_of, write_atomically
from storage.store.locks import Check, Locks
from storage.store.manifest_checks import (
    LOGS,
    MANIFEST,
    TABLES,
    changed_contents,
    contradictions,
    listed,
    read_manifest,
)
from storage.store.marker import KEY, is_artifact, is_read_only, mark, recognise
from storage.store.store_locks import store_locks

SCRATCH = "scratch"
NO_STAGES = ("reports", "ledger")  # folders of the store that hold no artifacts
PROBLEMS_SHOWN = 3  # of a damaged artifact, in an error's line
LEASE = 60.0  # seconds after which another host may take over what a host that died was building


@dataclass(frozen=True)
class Damage:
    """What is wrong with an artifact, a line for each problem, and what was done with it."""

    problems: list[str]
    outcome: str

    def in_one_line(self) -> str:
        """Return the first problems and the outcome."""
        more = len(self.problems) - PROBLEMS_SHOWN
        return "; ".join([*self.problems[:PROBLEMS_SHOWN], *([f"{more} more"] if more > 0 else []), self.outcome])


class UndeclaredFile(Exception):
    """A work folder holds a file that its stage's table does not declare. One line: which file, what was expected."""


class Store:
    """Artifacts below one folder."""

    def __init__(self, root: Path, lease: float = LEASE) -> None:
        self.root, self._lease = root.resolve(), lease
        self._held: dict[str, Check] = {}

    @classmethod
    def open(cls, folder: Path) -> Store:
        """The store at `folder`. Raises UserError where there is none, or a folder that is not a store."""
        store = cls.open_or_new(folder)
        if not recognise(store.root):
            raise UserError(
                f"{store.root}: there is no store here; name one with --store, or make one with `pretrieve reproduce`"
            )
        return store

    @classmethod
    def open_or_new(cls, folder: Path) -> Store:
        """The store at `folder`, or one that the first write creates there. Raises UserError for a foreign folder."""
        recognise(folder)
        return cls(folder)

    @property
    def is_read_only(self) -> bool:
        """Whether the store is there and this process may not write it; root neither, where it is mounted read-only."""
        return is_read_only(self.root)

    def mark(self) -> None:
        """Make the folder a store before anything else is written. Raises UserError where it cannot be written."""
        mark(self.root)

    def folder(self, stage: str, key: str) -> Path:
        """Where the artifact lies once it is whole."""
        return self.root / stage / key

    def work(self, stage: str, key: str) -> Path:
        """Where it is built."""
        return self.root / ".work" / f"{stage}-{key}"

    def manifest(self, stage: str, key: str) -> Manifest | None:
        """Return the manifest of a published artifact; None where there is none, or where the artifact is damaged.

        The manifest is checked against itself, its folder and the sizes of the files; contents are not read.
        """
        folder = self.folder(stage, key)
        try:
            manifest = read_manifest(folder)
            return manifest if manifest and next(contradictions(folder, manifest), None) is None else None
        except (InvalidManifest, FileNotFoundError, NotADirectoryError):  # or it was moved while it was looked at
            return None

    def manifests(self) -> Iterator[tuple[Path, Manifest | None]]:
        """Yield every artifact's folder with its manifest, or None where it is damaged or may not be read.

        Folders that are no artifacts of this pipeline are left out.
        """
        for folder in self._folders():
            try:
                manifest = self.manifest(folder.parent.name, folder.name)
                if manifest or is_artifact(folder):
                    yield folder, manifest
            except UserError:
                yield folder, None

    def foreign_folders(self) -> Iterator[Path]:
        """Yield the folders where artifacts are expected that have no manifest of ours. No command touches them."""
        for stage, folders in groupby(self._folders(), key=lambda folder: folder.parent):
            foreign = [folder for folder in folders if not is_artifact(folder)]
            yield from foreign if any(map(is_artifact, stage.iterdir())) else [stage]

    def without_manifest(self) -> Iterator[Path]:
        """Yield the folders whose names are artifacts' keys and which have no manifest, as a copy that was cut off."""
        return (folder for folder in self._folders() if KEY.fullmatch(folder.name) and not is_artifact(folder))

    def _folders(self) -> Iterator[Path]:
        """Yield the folders STAGE/KEY, whatever they hold, sorted."""
        for folder in sorted(self.root.glob("[!.]*/*/")):
            if folder.parent.name not in NO_STAGES:
                yield folder

    def damage(self, folder: Path) -> list[str]:
        """Return what is wrong with an artifact's folder, a line for each problem; every byte is read.

        Raises UserError where something may not be read: that is not damage.
        """
        try:
            manifest = read_manifest(folder)
            if manifest is None:
                return [f"{folder / MANIFEST}: the manifest is missing"]
            return list(contradictions(folder, manifest)) or list(changed_contents(folder, manifest))
        except InvalidManifest as error:
            return [f"{folder / MANIFEST}: not a manifest: {error}"]
        except FileNotFoundError:
            return [f"{folder}: the artifact was moved or deleted while it was read"]

    def check(self, artifact: Artifact[Any]) -> Path:
        """Compare every byte of an artifact with its manifest before it is used; return its folder.

        Whatever reads an artifact calls this first; a file is read for it once in a process. A damaged artifact is
        moved to `.damaged`, and DamagedArtifact is raised.
        """
        if damage := self.quarantine(artifact.path):
            raise DamagedArtifact(f"{damage.in_one_line()}; run its recipe again to rebuild it")
        return artifact.path

    def quarantine(self, folder: Path) -> Damage | None:
        """Move an artifact that is damaged to `.damaged`, as it is; return what is wrong with it, or None."""
        before = _inode(folder)
        if not (problems := self.damage(folder)):
            return None
        if before is None or _inode(folder) != before:  # another process has moved it, and may have built it again
            return Damage(problems, "another process has moved the artifact meanwhile")
        try:
            return Damage(problems, f"the artifact was moved to {self.set_aside(folder.parent.name, folder.name)}")
        except OSError as error:
            return Damage(problems, f"the artifact stays, since the store cannot be written ({error.strerror})")

    def set_aside(self, stage: str, key: str) -> Path:
        """Move a damaged artifact where no stage looks."""
        aside = self.root / ".damaged" / f"{stage}-{key}-{time.time_ns()}"
        aside.parent.mkdir(parents=True, exist_ok=True)
        os.rename(self.folder(stage, key), aside)
        return aside

    @contextlib.contextmanager
    def lock(self, stage: str, key: str, waiting: Callable[[], None]) -> Iterator[None]:
        """Hold the right to build an artifact; `waiting` is called once if another process has it.

        Raises `storage.store.locks.LeaseLost` within the block where hosts share the store and another may build it.
        """
        name = self.work(stage, key).name
        self.mark()
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
        return store_locks(self.root / ".locks", self._lease)

    def begin(self, stage: str, key: str) -> Path:
        """The work folder, with whatever an earlier build that was cut off has left in it."""
        work = self.work(stage, key)
        with full_disk_in_words(work):
            work.mkdir(parents=True, exist_ok=True)
        drop_unfinished(work)
        return work

    def publish(
        self, stage: str, key: str, describe: Callable[[dict[str, File], dict[str, File]], Manifest]
    ) -> Manifest:
        """List the work folder's files, write the manifest last, and rename the folder to its place."""
        work, folder = self.work(stage, key), self.folder(stage, key)
        shutil.rmtree(work / SCRATCH, ignore_errors=True)
        (work / MANIFEST).unlink(missing_ok=True)
        drop_unfinished(work)  # of a process that was killed while it wrote a shard
        found = sorted(path for path in work.rglob("*") if not path.is_dir() or path.is_symlink())
        if links := [path for path in found if path.is_symlink() or not path.is_file()]:
            raise UndeclaredFile(f"{links[0]}: {stage} may not publish a link or a device; delete it and run again")
        follow_umask(found, work)
        files = {path.relative_to(work).as_posix(): File(path.stat().st_size, sha256_of(path)) for path in found}
        logs = {name: file for name, file in files.items() if name.startswith(f"{LOGS}/")}
        manifest = describe({name: file for name, file in files.items() if name not in logs}, logs)
        _refuse_undeclared(manifest, work)
        for path in found:
            flush(path)
        write_atomically(work / MANIFEST, manifest.as_json())
        folder.parent.mkdir(parents=True, exist_ok=True)
        if not self._rename(work, folder):
            return read_manifest(folder) or manifest
        flush(folder.parent)
        return manifest

    def _rename(self, work: Path, folder: Path) -> bool:
        """Give a finished work folder its place; False where an intact artifact has it, which stays.

        A process may be stopped between its last look at the lease and the rename, and another may have built the
        artifact by then. So nothing is moved out of the way but what is damaged, and the kernel decides who was
        first: it refuses to rename over a folder with files.
        """
        check = self._held.get(work.name, lambda: None)
        check()
        while True:
            try:
                os.rename(work, folder)
                return True
            except OSError as error:
                check()
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            before = _inode(folder)
            if (damage := self.quarantine(folder)) is None:
                shutil.rmtree(work)
                return False
            if before is not None and _inode(folder) == before:  # it could not be moved: renaming would fail for ever
                raise DamagedArtifact(damage.in_one_line())


def _refuse_undeclared(manifest: Manifest, work: Path) -> None:
    """Raise UndeclaredFile where a work folder holds what the stage's table does not declare. All stays there."""
    table = TABLES.get(manifest.schema or "")
    if table and (others := [name for name in listed(manifest) if not table.declares(name)]):
        raise UndeclaredFile(
            f"{work / others[0]}: {manifest.stage} may not publish this file: {table.__name__} has "
            f"{', '.join(table.files)} and logs/. Delete the file, if the stage did not write it, and run the same "
            "command again"
        )


def _inode(folder: Path) -> int | None:
    try:
        return folder.stat().st_ino
    except OSError:
        return None


def bytes_below(folder: Path) -> int:
    """Return the sizes of a folder's files, added up; files and folders that disappear meanwhile do not count."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += (Path(parent) / name).stat().st_size
    return total
