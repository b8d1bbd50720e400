"""What makes a folder a store: the file `.pretrieve-store`, which names the version of the store's format.

A store from before this file existed is recognised by its manifests, or by holding nothing but folders that only a
store has; its next write adds the file. Any other folder is refused, so that no command moves or deletes the files of
others.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from storage.errors import UserError
from storage.files import write_atomically
from storage.store.manifest_checks import MANIFEST

MARKER = ".pretrieve-store"
FORMAT = 1
KEY = re.compile(r"[0-9a-f]{24}")
OWN_FOLDERS = {".work", ".locks", ".damaged", ".prefect", ".runs", "ledger", "reports"}
OF_THE_SYSTEM = {"lost+found", ".snapshot", ".DS_Store"}  # what a new file system or a desktop puts into a folder


def recognise(root: Path) -> bool:
    """Return whether there is a store at `root`; False where there is no folder, or an empty one.

    Raises UserError for a folder that is not a store, cannot be read, or has a format that is not known here.
    """
    try:
        root = root.resolve()
        if not root.exists():
            return False
        if not root.is_dir():
            raise UserError(f"{root}: expected the folder of a store, and this is a file; name another with --store")
        if (root / MARKER).exists():
            _check_format(root / MARKER)
            return True
        names = {path.name for path in root.iterdir()} - OF_THE_SYSTEM
        # A process that was killed may have left the temporary file of a marker.
        names = {name for name in names if not name.startswith(f".{MARKER}.")}
        if names <= OWN_FOLDERS or any(is_artifact(path.parent) for path in root.glob(f"[!.]*/*/{MANIFEST}")):
            return bool(names)
    except (OSError, ValueError, RuntimeError) as error:  # of a null character, and of links in a circle
        reason = error.strerror if isinstance(error, OSError) else str(error)
        place = getattr(error, "filename", None) or root
        raise UserError(f"{place}: the store cannot be read ({reason}); check --store and its permissions") from None
    raise UserError(
        f"{root}: this folder is not a store: expected {MARKER}, a manifest below STAGE/KEY, or an empty folder, and "
        f"it has {_some(names)}; nothing was touched; name another folder with --store"
    )


def mark(root: Path) -> None:
    """Make the folder a store by its marker, where it has none. Raises UserError where the store cannot be written."""
    if is_read_only(root):
        raise unwritable(root, "no write permission, or mounted read-only")
    if not (root / MARKER).exists():
        try:
            write_atomically(root / MARKER, json.dumps({"format": FORMAT}) + "\n")
        except OSError as error:
            raise unwritable(root, error.strerror) from None


def is_read_only(root: Path) -> bool:
    """Return whether the folder is there and this process may not write it."""
    return root.exists() and not os.access(root, os.W_OK | os.X_OK)


def unwritable(root: Path, reason: str | None) -> UserError:
    """Return the error for a store that this process cannot write."""
    return UserError(
        f"{root}: the store cannot be written ({reason}); only commands that read work here; name another with --store"
    )


def is_artifact(folder: Path) -> bool:
    """Return whether a folder is an artifact of this pipeline, intact or damaged: it has a manifest of ours.

    A manifest that cannot be parsed counts where the folder's name is a key; other programs have files of its name too.
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
            f'{marker}: damaged: expected {{"format": {FORMAT}}}; restore it, or delete it and the store is '
            "recognised by its manifests"
        )
    if version > FORMAT:
        raise UserError(
            f"{marker}: the store has format {version}, and this pretrieve knows format {FORMAT}; nothing was touched; "
            "use the version that wrote it, or a newer one"
        )


def _some(names: set[str]) -> str:
    listed = ", ".join(sorted(names)[:3])
    return listed if len(names) <= 3 else f"{listed} and {len(names) - 3} more"
