"""Evidence: whether an artifact's folder is what its manifest says, and its manifest what its place and fields say.

A run does not repeat hours of work because of a manifest, so nothing in it is taken on trust: stage and key must be
those of the folder, the key must follow from stage, version, settings and inputs, the hash from the list of files, and
the folder must hold the listed files and no other.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from storage import tables
from storage.artifact import File, InvalidManifest, Manifest, hash_of, key_of
from storage.errors import UserError
from storage.files import limit_reached, sha256_of
from storage.rows import num_rows

MANIFEST = "manifest.json"
LOGS = "logs"
TABLES = {
    name: kind for name, kind in vars(tables).items() if isinstance(kind, type) and issubclass(kind, tables.Table)
}

NO_DAMAGE = {
    errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.ETIMEDOUT,
}  # fmt: skip
"""Errors that say nothing of what is on the disk; an artifact is not moved and built again because of them."""


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest in an artifact's folder, or None where there is no such file.

    Raises InvalidManifest where the file is no manifest, and UserError where it cannot be read for another reason.
    """
    path = folder / MANIFEST
    try:
        with _reading(path):
            return Manifest.from_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InvalidManifest(f"it cannot be read ({error.strerror})") from None


def contradictions(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Yield a line for each thing in which a manifest contradicts itself or its folder; no file's content is read.

    Raises UserError where the folder cannot be read for a reason that is no damage.
    """
    path, made = folder / MANIFEST, f"{manifest.stage}/{manifest.key}"
    if (place := f"{folder.parent.name}/{folder.name}") != made:
        yield f"{path}: this is the manifest of {ascii(made)[1:-1]}, expected that of {place}"
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
    yield from _different_files(folder, listed(manifest))


def _misplaced(path: Path, manifest: Manifest) -> Iterator[str]:
    """Yield a line for each listed name that is outside the folder, or among data files when it is a log's."""
    for name in listed(manifest):
        if not _stays_inside(name):
            yield f"{path}: lists {name!a}, expected a path inside the artifact's folder"
    for name in manifest.files:
        if name.startswith(f"{LOGS}/"):
            yield f"{path}: lists {name!a} among the data files, expected it among the logs"
    for name in manifest.logs:
        if not name.startswith(f"{LOGS}/"):
            yield f"{path}: lists {name!a} among the logs, expected it among the data files"


def _stays_inside(name: str) -> bool:
    """Whether a listed name is a plain relative path, as `publish` writes it."""
    parts = PurePosixPath(name).parts
    return "/".join(parts) == name and ".." not in parts and name[:1] != "/" and not set(name) & {"\\", "\0"}


def _different_files(folder: Path, expected: dict[str, File]) -> Iterator[str]:
    """Yield a line for each file that is missing, has another size, is no regular file or is not listed."""
    with _reading(folder):
        found = dict(_files_below(folder, ""))
    for name, file in expected.items():
        if not _stays_inside(name):
            continue
        path, status = folder / name, found.pop(name, None)
        if status is None:
            yield f"{path}: the manifest lists this file, but it is missing"
        elif not stat.S_ISREG(status.st_mode):
            yield f"{path}: expected a regular file, not a link, a device or a folder"
        elif status.st_size != file.bytes:
            yield f"{path}: expected {file.bytes} bytes, it has {status.st_size}"
    for name in sorted(found.keys() - {MANIFEST}):
        yield f"{folder / os.fsencode(name).decode(errors='backslashreplace')}: the manifest does not list this file"


def _files_below(folder: Path, prefix: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield all that is below a folder except folders, by relative name; links are not followed."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files_below(Path(entry.path), f"{prefix}{entry.name}/")
            else:
                yield f"{prefix}{entry.name}", entry.stat(follow_symlinks=False)


def changed_contents(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Yield a line for each listed file whose content is not the listed one, and one where the rows are not as many.

    Each file is read once in a process (`sha256_of`). For folders without `contradictions`.
    """
    intact = True
    for name, file in listed(manifest).items():
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
    """Raise UserError in place of the errors of NO_DAMAGE; others stay as they are."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_DAMAGE:
            raise
        place = error.filename or path
        if isinstance(error, PermissionError):
            wrong = "no permission to read it; expected a store whose files this user may read"
        else:
            wrong = limit_reached(error) or f"cannot be read now ({error.strerror}); run the same command again"
        raise UserError(f"{place}: {wrong}") from None


def listed(manifest: Manifest) -> dict[str, File]:
    """Return all files of a manifest, data and logs, by their path below the artifact's folder."""
    return {**manifest.files, **manifest.logs}
