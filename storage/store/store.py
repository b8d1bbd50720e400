"""The store: a folder of artifacts, each complete or absent.

    STORE/.pretrieve-store          the version of this format (storage.store.marker)
    STORE/<stage>/<key>/            a published artifact with its manifest.json
    STORE/.work/<stage>-<key>/      an artifact being built, or left by a build that was interrupted
    STORE/.damaged/<stage>-<key>-<time>/   a quarantined artifact, whose files differed from its manifest
    STORE/.runs/                    which artifacts runs need (storage.store.run_notes)
    STORE/.locks/                   which process builds what (storage.store.store_locks)
    STORE/.rebuilds/                which artifacts are to be built again (storage.store.rebuilds)
    STORE/.prefect/                 results and database of the embedded server
    STORE/ledger/                   what generators have generated (storage.generation_cache.cache)
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
from itertools import groupby
from pathlib import Path
from typing import Any

from storage.artifact import Artifact, InvalidManifest, Manifest
from storage.errors import DamagedArtifact, UserError
from storage.files import drop_unfinished, exchange, flush, full_disk_explained
from storage.store.locks import Check, Locks
from storage.store.manifest_checks import Damage, contradictions, find_damage, read_manifest
from storage.store.marker import KEY, is_artifact, is_read_only, mark, recognise
from storage.store.publishing import SCRATCH, Describe, write_manifest
from storage.store.rebuilds import is_pending
from storage.store.store_locks import store_locks

NO_STAGES = ("reports", "ledger")  # folders of the store that have no artifacts
LEASE = 60.0  # seconds after which another host may take over what a host that died was building


class Store:
    """Artifacts below one folder."""

    def __init__(self, root: Path, lease: float = LEASE) -> None:
        self.root, self._lease = root.resolve(), lease
        self._held: dict[str, Check] = {}

    @classmethod
    def open(cls, folder: Path) -> Store:
        """Return the store at `folder`. Raises UserError where there is none, or a folder that is not a store."""
        store = cls.open_or_new(folder)
        if not recognise(store.root):
            raise UserError(
                f"{store.root}: there is no store here, so nothing was built; name a store with --store, or build with "
                "`pretrieve reproduce`, `pretrieve adapt` or `pretrieve queries build`"
            )
        return store

    @classmethod
    def open_or_new(cls, folder: Path) -> Store:
        """Return the store at `folder`; the first write creates it. Raises UserError for a folder that is no store."""
        recognise(folder)
        return cls(folder)

    @property
    def is_read_only(self) -> bool:
        """Return whether the store exists and this process may not write to it. A read-only mount binds root, too."""
        return is_read_only(self.root)

    def mark(self) -> None:
        """Make the folder a store before anything else is written. Raises UserError where it cannot be written."""
        mark(self.root)

    def folder(self, stage: str, key: str) -> Path:
        """Return the folder of the published artifact."""
        return self.root / stage / key

    def work(self, stage: str, key: str) -> Path:
        """Return the folder in which the artifact is built."""
        return self.root / ".work" / f"{stage}-{key}"

    def manifest(self, stage: str, key: str) -> Manifest | None:
        """Return the manifest of a published artifact, or None where the artifact is absent or damaged.

        The manifest is checked against itself, its folder and the sizes of the files. File contents are not read.
        """
        folder = self.folder(stage, key)
        try:
            manifest = read_manifest(folder)
            return manifest if manifest and next(contradictions(folder, manifest), None) is None else None
        except (InvalidManifest, FileNotFoundError, NotADirectoryError):  # or it was moved during the check
            return None

    def up_to_date(self, stage: str, key: str) -> Manifest | None:
        """Return the manifest of an artifact that a run need not build: None also where a rebuild is requested."""
        return None if is_pending(self.root, stage, key) else self.manifest(stage, key)

    def manifests(self) -> Iterator[tuple[Path, Manifest | None]]:
        """Yield every artifact's folder with its manifest, or None where it is damaged or cannot be read.

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
        """Yield the folders STAGE or STAGE/KEY without a manifest of this pipeline. No command touches them."""
        for stage, folders in groupby(self._folders(), key=lambda folder: folder.parent):
            foreign = [folder for folder in folders if not is_artifact(folder)]
            yield from foreign if any(map(is_artifact, stage.iterdir())) else [stage]

    def without_manifest(self) -> Iterator[Path]:
        """Yield the folders that are named by a key and have no manifest, as of a copy that was interrupted."""
        return (folder for folder in self._folders() if KEY.fullmatch(folder.name) and not is_artifact(folder))

    def _folders(self) -> Iterator[Path]:
        """Yield the folders STAGE/KEY, whatever is in them, sorted."""
        for folder in sorted(self.root.glob("[!.]*/*/")):
            if folder.parent.name not in NO_STAGES:
                yield folder

    def check(self, artifact: Artifact[Any]) -> Path:
        """Compare every byte of an artifact with its manifest before it is used, and return its folder.

        Every consumer of an artifact calls this first; a file is read for it once in a process. Raises DamagedArtifact
        for a damaged artifact, which is quarantined.
        """
        if damage := self.quarantine_if_damaged(artifact.path):
            raise DamagedArtifact(f"{damage.in_one_line()}; run its recipe again to rebuild it")
        return artifact.path

    def quarantine_if_damaged(self, folder: Path) -> Damage | None:
        """Move a damaged artifact to `.damaged` unchanged, and return what is wrong with it. None if it is intact."""
        before = _inode(folder)
        if not (problems := find_damage(folder)):
            return None
        if folder != self.folder(folder.parent.name, folder.name):  # only `verify --deep` reads from another store
            return Damage(problems, "the artifact stays, since it is in another store")
        if before is None or _inode(folder) != before:  # another process has moved it, and may have rebuilt it
            return Damage(problems, "another process has moved the artifact meanwhile")
        try:
            return Damage(problems, f"the artifact was moved to {self._quarantine(folder)}")
        except OSError as error:
            return Damage(problems, f"the artifact stays, since the store cannot be written ({error.strerror})")

    def _quarantine(self, folder: Path) -> Path:
        """Move an artifact to `.damaged`, where no stage looks for it, and return its new folder."""
        quarantined = self.root / ".damaged" / f"{folder.parent.name}-{folder.name}-{time.time_ns()}"
        quarantined.parent.mkdir(parents=True, exist_ok=True)
        os.rename(folder, quarantined)
        return quarantined

    @contextlib.contextmanager
    def lock(self, stage: str, key: str, waiting: Callable[[], None]) -> Iterator[None]:
        """Hold the right to build an artifact. `waiting` is called once if another process has it.

        Where hosts share the store, `storage.store.locks.LeaseLost` is raised within the block when another process may
        build the artifact.
        """
        name = self.work(stage, key).name
        self.mark()
        with self._locks().hold(name, waiting) as self._held[name]:
            try:
                yield
            finally:
                del self._held[name]

    def is_being_built(self, work: Path) -> bool:
        """Return whether a process holds the lock of this work folder's artifact."""
        return self._locks().is_held(work.name)

    def _locks(self) -> Locks:
        """Return the store's locks, determined at each use: another host may have begun to share the store."""
        return store_locks(self.root / ".locks", self._lease)

    def begin(self, stage: str, key: str) -> Path:
        """Return the work folder, with the complete files that an interrupted build has left in it.

        A process that was killed after it replaced an artifact has left the earlier one there, which must not return.
        """
        work = self.work(stage, key)
        if is_artifact(work) and self.folder(stage, key).exists():
            _discard(work)
        with full_disk_explained(work):
            work.mkdir(parents=True, exist_ok=True)
        drop_unfinished(work)
        return work

    def publish(self, stage: str, key: str, describe: Describe) -> Manifest:
        """Write the manifest of the work folder's files and rename the folder to its final name.

        Where this fails, or is killed while the manifest is written, what a build resumes from stays in the work
        folder, `SCRATCH` included.
        Returns the manifest of the published artifact: another process may have published an intact one first.
        """
        work, folder = self.work(stage, key), self.folder(stage, key)
        manifest = write_manifest(work, stage, describe)
        folder.parent.mkdir(parents=True, exist_ok=True)
        if not self._rename(work, folder):
            return read_manifest(folder) or manifest
        flush(folder.parent)
        return manifest

    def _rename(self, work: Path, folder: Path) -> bool:
        """Rename a finished work folder without its `SCRATCH`; return False where an intact artifact has the name.

        The scratch folder is deleted last, since that takes time. Where the rename fails it returns to the work folder.
        """
        check = self._held.get(work.name, lambda: None)
        check()
        scratch = _set_aside(work / SCRATCH, work) if (work / SCRATCH).exists() else None
        try:
            published = self._take_name(work, folder, check)
        except BaseException:
            if scratch and work.exists():
                scratch.rename(work / SCRATCH)
            raise
        if scratch:
            shutil.rmtree(scratch, ignore_errors=True)  # garbage collection deletes it, too
        return published

    def _take_name(self, work: Path, folder: Path, check: Callable[[], object]) -> bool:
        """Rename a work folder; return False and delete it where an intact artifact has the name already.

        A process may be suspended between its last check of the lease and the rename, and another may have built the
        artifact by then. So only a damaged artifact is moved out of the way, and the kernel decides who is first: it
        refuses to rename a folder over one that has files. An artifact that is to be rebuilt changes its name with the
        finished folder in one step, and is deleted.
        """
        while True:
            try:
                os.rename(work, folder)
                return True
            except OSError as error:
                check()
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            if is_pending(self.root, folder.parent.name, folder.name):
                if exchange(work, folder):
                    _discard(work)
                    return True
                self._quarantine(folder)  # two steps: in between the artifact is missing, and would be built again
                continue
            before = _inode(folder)
            if (damage := self.quarantine_if_damaged(folder)) is None:
                _discard(work)
                return False
            if before is not None and _inode(folder) == before:  # it cannot be moved, so the rename would never succeed
                raise DamagedArtifact(damage.in_one_line())


def _discard(work: Path) -> None:
    """Delete a work folder."""
    shutil.rmtree(_set_aside(work, work), ignore_errors=True)  # garbage collection deletes it, too


def _set_aside(folder: Path, work: Path) -> Path:
    """Rename a work folder, or a folder in it, to be deleted: no build resumes from a half of it after a kill."""
    return folder.rename(work.with_name(f"deleted-{work.name}-{time.time_ns()}"))


def _inode(folder: Path) -> int | None:
    try:
        return folder.stat().st_ino
    except OSError:
        return None
