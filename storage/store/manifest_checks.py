"""Checks of an artifact's folder against its manifest, and of the manifest against itself.

A run skips hours of work because a manifest says that they are done, so nothing in a manifest is trusted: stage and key
must be those of the folder, the key must follow from stage, version, settings and inputs, the hash from the list of
files, and the folder must contain the listed files and no others. Files that operating systems put into folders
(`storage.files.is_system_file`) are ignored: no stage reads them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from storage import tables
from storage.artifact import File, InvalidManifest, Manifest, hash_of, key_of
from storage.errors import UserError
from storage.files import is_system_file, limit_reached, sha256_of
from storage.rows import num_rows

MANIFEST = "manifest.json"
LOGS = "logs"
TABLES = {
    name: kind for name, kind in vars(tables).items() if isinstance(kind, type) and issubclass(kind, tables.Table)
}

NO_DAMAGE = {
    errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.ETIMEDOUT,
}  # fmt: skip
"""Errors that say nothing about the data on the disk. No artifact is quarantined and rebuilt because of them."""
GONE = (FileNotFoundError, NotADirectoryError)
PROBLEMS_SHOWN = 3  # of a damaged artifact, in an error's line


@dataclass(frozen=True)
class Damage:
    """The problems of an artifact, a line for each, and what was done with the artifact."""

    problems: list[str]
    outcome: str

    def in_one_line(self) -> str:
        """Return the first problems and the outcome."""
        more = len(self.problems) - PROBLEMS_SHOWN
        return "; ".join([*self.problems[:PROBLEMS_SHOWN], *([f"{more} more"] if more > 0 else []), self.outcome])


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest in an artifact's folder, or None where there is no such file.

    Raises InvalidManifest where the file is no manifest, and UserError where it cannot be read at the moment.
    """
    path = folder / MANIFEST
    try:
        with _reading(path):
            return Manifest.from_json(path.read_bytes())
    except GONE:
        return None
    except OSError as error:
        raise InvalidManifest(f"it cannot be read ({error.strerror})") from None


def find_damage(folder: Path) -> list[str]:
    """Return what is wrong with an artifact's folder, a line for each problem. Every byte is read.

    Raises UserError where something cannot be read at the moment: that is no damage.
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


def contradictions(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Yield a line for each contradiction of a manifest with itself or its folder. No file's content is read.

    Raises UserError where the folder cannot be read at the moment.
    """
    path, described = folder / MANIFEST, manifest.reference
    if (actual := f"{folder.parent.name}/{folder.name}") != described:
        yield f"{path}: this is the manifest of {ascii(described)[1:-1]}, expected that of {actual}"
    key = key_of(manifest.stage, manifest.version, manifest.settings, manifest.inputs)
    if key != manifest.key:
        yield (
            f"{path}: the key does not follow from stage, version, settings and inputs: these give {key}, the manifest "
            f"says {ascii(manifest.key)[1:-1]}"
        )
    if (expected := hash_of(manifest.files)) != manifest.hash:
        yield f"{path}: the hash does not follow from the list of files: it gives {expected}, not {manifest.hash}"
    if manifest.schema is not None and manifest.schema not in TABLES:
        yield f"{path}: schema {manifest.schema} is no table that this version knows"
    if manifest.seed != manifest.settings.get("seed"):
        yield f"{path}: seed {manifest.seed} is not that of the settings, {manifest.settings.get('seed')!r}"
    yield from _misplaced(path, manifest)
    yield from _different_files(folder, all_files(manifest))


def _misplaced(path: Path, manifest: Manifest) -> Iterator[str]:
    """Yield a line for each listed path that leads outside the folder, or that is in the wrong one of the two lists."""
    for name in all_files(manifest):
        if not _stays_inside(name):
            yield f"{path}: lists {name!a}, expected a path inside the artifact's folder"
    for name in manifest.files:
        if name.startswith(f"{LOGS}/"):
            yield f"{path}: lists {name!a} among the data files, expected it among the logs"
    for name in manifest.logs:
        if not name.startswith(f"{LOGS}/"):
            yield f"{path}: lists {name!a} among the logs, expected it among the data files"


def _stays_inside(name: str) -> bool:
    """Return whether a listed name is a plain relative path, as `Store.publish` writes it."""
    parts = PurePosixPath(name).parts
    return "/".join(parts) == name and ".." not in parts and name[:1] != "/" and not set(name) & {"\\", "\0"}


def _different_files(folder: Path, expected: dict[str, File]) -> Iterator[str]:
    """Yield a line for each file that is missing, has another size, is no regular file or is not listed."""
    present = _statuses(folder)
    for name, file in expected.items():
        if not _stays_inside(name):
            continue
        path, status = folder / name, present.pop(name, None)
        if status is None:
            yield f"{path}: the manifest lists this file, but it is missing"
        elif not stat.S_ISREG(status.st_mode):
            yield f"{path}: expected a regular file, not a link, a device or a folder"
        elif status.st_size != file.bytes:
            yield f"{path}: expected {file.bytes} bytes, it has {status.st_size}"
    for name in sorted(present.keys() - {MANIFEST}):
        if not is_system_file(name.rpartition("/")[2]):
            shown = os.fsencode(name).decode(errors="backslashreplace")
            yield f"{folder / shown}: the manifest does not list this file"


def _statuses(folder: Path) -> dict[str, os.stat_result]:
    """Return the status of each file below a folder by relative path.

    Raises FileNotFoundError or NotADirectoryError where the folder is gone, and UserError for any other error: that a
    folder cannot be listed does not say that its files are damaged.
    """
    try:
        with _reading(folder):
            return dict(_files_below(folder, ""))
    except GONE:
        raise
    except OSError as error:
        raise UserError(
            f"{error.filename or folder}: the folder cannot be listed ({error.strerror}); check the disk, or restore "
            "the store from a copy"
        ) from None


def _files_below(folder: Path, prefix: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the relative path and status of everything below a folder except folders. Links are not followed."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files_below(Path(entry.path), f"{prefix}{entry.name}/")
            else:
                yield f"{prefix}{entry.name}", entry.stat(follow_symlinks=False)


def changed_contents(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Yield a line for each file whose content is not the listed one, and one for a wrong number of rows.

    Each file is read once in a process (`sha256_of`). The folder must have no `contradictions`.
    """
    intact = True
    for name, file in all_files(manifest).items():
        try:
            with _reading(folder / name):
                actual = sha256_of(folder / name)
        except OSError as error:
            actual = f"none, since it cannot be read ({error.strerror})"
        if actual != file.sha256:
            intact = False
            yield f"{folder / name}: expected sha256 {file.sha256}, it has {actual}"
    if intact and manifest.rows is not None and (rows := num_rows(folder)) != manifest.rows:
        yield f"{folder / MANIFEST}: says {manifest.rows} rows, but the files have {rows}"


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise UserError in place of the errors of NO_DAMAGE. Other errors are not changed."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_DAMAGE:
            raise
        if isinstance(error, PermissionError):
            wrong = "no permission to read it; expected a store whose files this user may read"
        else:
            wrong = limit_reached(error) or f"cannot be read now ({error.strerror}); run the same command again"
        raise UserError(f"{error.filename or path}: {wrong}") from None


def all_files(manifest: Manifest) -> dict[str, File]:
    """Return all files of a manifest, data and logs, by their path below the artifact's folder."""
    return {**manifest.files, **manifest.logs}
