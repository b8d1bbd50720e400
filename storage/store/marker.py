"""The marker of a store: the file `.pretrieve-store`, which names the version of the store's format.

A store without it, written before the marker existed, is recognised by its manifests, or by having only folders that a
store has. Its next write adds the marker. Any other folder is refused, so that no command moves or deletes the files
of other programs.
"""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

from storage.errors import UserError
from storage.files import is_system_file, write_atomically
from storage.store.manifest_checks import MANIFEST

MARKER = ".pretrieve-store"
FORMAT = 1
KEY = re.compile(r"[0-9a-f]{24}")
OWN_FOLDERS = {".work", ".locks", ".damaged", ".prefect", ".rebuilds", ".runs", "ledger", "reports"}
URL = re.compile(r"[a-z][a-z0-9+]*:/")  # as a path has it, which keeps one of its slashes
SYSTEM_FOLDERS = {"lost+found", ".snapshot"}  # which a new file system has


def recognise(root: Path) -> bool:
    """Return whether there is a store at `root`; False where there is no folder, or an empty one.

    Raises UserError for a folder that is not a store, cannot be read, or has a format that is not known here.
    """
    if URL.match(str(root)):
        raise UserError(
            f"{root}: expected a folder of a POSIX file system, since a store needs its renames and locks, and this is "
            "a URL; object stores can have collections and exports"
        )
    try:
        root = root.resolve()
        if not root.exists():
            return False
        if not root.is_dir():
            raise UserError(f"{root}: expected the folder of a store, and this is a file; name another with --store")
        if (root / MARKER).exists():
            _check_format(root / MARKER)
            return True
        names = {path.name for path in root.iterdir() if not is_system_file(path.name)} - SYSTEM_FOLDERS
        names = {name for name in names if not name.startswith(f".{MARKER}.")}  # temporary file of a killed process
        if names <= OWN_FOLDERS or any(is_artifact(path.parent) for path in root.glob(f"[!.]*/*/{MANIFEST}")):
            return bool(names)
    except (OSError, ValueError, RuntimeError) as error:  # for a null character, and for circular links
        reason = error.strerror if isinstance(error, OSError) else str(error)
        path = getattr(error, "filename", None) or root
        raise UserError(f"{path}: the store cannot be read ({reason}); check --store and its permissions") from None
    raise UserError(
        f"{root}: this folder is not a store: expected {MARKER}, a manifest below STAGE/KEY, or an empty folder, and "
        f"it has {_shortened(names)}; nothing was touched; name another folder with --store"
    )


def mark(root: Path) -> None:
    """Write the marker where there is none. Raises UserError where the store cannot be written."""
    if is_read_only(root):
        raise unwritable(root, "no write permission, or mounted read-only")
    if not (root / MARKER).exists():
        try:
            write_atomically(root / MARKER, json.dumps({"format": FORMAT}) + "\n")
        except OSError as error:
            raise unwritable(root, error.strerror) from None


def is_read_only(root: Path) -> bool:
    """Return whether the folder exists and this process may not write to it."""
    return root.exists() and not os.access(root, os.W_OK | os.X_OK)


def unwritable(root: Path, reason: str | None) -> UserError:
    """Return the error for a store that this process cannot write to."""
    if reason == os.strerror(errno.ENOSPC):
        return UserError(f"{root}: the disk is full; make room and run the same command again")
    return UserError(
        f"{root}: the store cannot be written ({reason}); only commands that read work here; name another with --store"
    )


def is_artifact(folder: Path) -> bool:
    """Return whether a folder has a manifest of this pipeline: whether it is an artifact, intact or damaged.

    Other programs have files called manifest.json too. One that cannot be parsed counts if the folder's name is a key.
    """
    path = folder / MANIFEST
    if path.is_symlink() or not path.is_file():
        return False
    if KEY.fullmatch(folder.name):
        return True
    try:
        value: Any = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(value, dict) and {"stage", "key", "inputs", "files", "hash"} <= value.keys()


def _check_format(marker: Path) -> None:
    try:
        value: Any = json.loads(marker.read_bytes())
        version = value["format"]
    except (ValueError, KeyError, TypeError, RecursionError):
        version = None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise UserError(
            f'{marker}: damaged: expected {{"format": {FORMAT}}}; restore it, or delete it: the store is then '
            "recognised by its manifests"
        )
    if version > FORMAT:
        raise UserError(
            f"{marker}: the store has format {version}, and this pretrieve knows format {FORMAT}; nothing was touched; "
            "use the version that wrote it, or a newer one"
        )


def _shortened(names: set[str]) -> str:
    first = ", ".join(sorted(names)[:3])
    return first if len(names) <= 3 else f"{first} and {len(names) - 3} more"
