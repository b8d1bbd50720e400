"""Folders of object stores, by URL through fsspec: s3://BUCKET/DIR, gs://BUCKET/DIR. file:///DIR is a local folder.

Only collections are read and exports written there. The artifact store needs a POSIX file system: it relies on renames
that appear at once, on locks, and on mapping files into memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from storage.errors import UserError, one_line, quoted, wrong_path
from storage.files import write_atomically, writing

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
FILE = "file://"
MARKS = ("etag", "md5hash", "lastmodified", "last_modified", "mtime", "updated")
"""Names of checksums and times in the stores' descriptions of a file, in lower case."""


def is_url(name: str) -> bool:
    """Return whether a name is the URL of an object store."""
    return "://" in name and not name.startswith(FILE)


def local_path(name: str) -> Path:
    """Return the path of a local folder that is given as such or as file://."""
    return Path(unquote(name.removeprefix(FILE)) if name.startswith(FILE) else name)


@contextlib.contextmanager
def remote_folder(url: str) -> Iterator[tuple[Any, str]]:
    """Yield the file system of a URL and the path in it. What goes wrong there is a UserError with the URL."""
    import fsspec

    scheme = url.partition("://")[0]
    try:
        system, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError, OSError) as error:  # the last from one that connects at once
        extra = f'; pip install "pretrieve[{EXTRAS[scheme]}]"' if scheme in EXTRAS else "; expected s3:// or gs://"
        raise UserError(f"{quoted(url)}: cannot be opened ({one_line(str(error))}){extra}") from None
    system.invalidate_cache()
    try:
        yield system, path.rstrip("/")
    except UserError:
        raise
    except Exception as error:  # each store has errors of its own, without a common class
        if not (
            isinstance(error, OSError) or type(error).__module__.partition(".")[0] in ("botocore", "gcsfs", "google")
        ):
            raise
        if local := wrong_path(error):  # stores' own errors name no path of this machine
            raise UserError(local) from None
        words = one_line(f"{type(error).__name__}: {error}")
        raise UserError(f"{url}: {words}; check the name, the credentials and the endpoint") from None


def must_be_free_at(url: str, last: str, *, shared: bool) -> None:
    """Raise UserError where an export would meet files: any, or in a shared folder its own last file `last`."""
    with remote_folder(url) as (system, path):
        if shared and system.exists(f"{path}/{last}"):
            raise UserError(f"{url}: it has this version already; delete {last} to export it again")
        if not shared and system.find(path, maxdepth=3):
            raise UserError(f"{url}: expected a folder that does not exist yet, or an empty one")


def upload(folder: Path, url: str, last: str, *, replaced: Sequence[str] = ()) -> None:
    """Copy the files of a folder to a URL, `last` after all others.

    The folders `replaced` are emptied first: an earlier or interrupted export may have files that this one lacks.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    names = sorted((path.relative_to(folder).as_posix() for path in files), key=lambda name: (name == last, name))
    with remote_folder(url) as (system, path):
        for name in replaced:
            if stale := system.find(f"{path}/{name}"):
                system.rm(stale)
        for name in names:
            if url.partition("://")[0] not in EXTRAS:  # s3fs would make a bucket of a name that was typed wrongly
                system.makedirs(f"{path}/{name}".rpartition("/")[0], exist_ok=True)
            system.put_file(str(folder / name), f"{path}/{name}")


def mirror_of(url: str, cache: Path) -> Path:
    """Return the folder that has or will have the copy of a URL."""
    return cache / hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:24]


def is_mirrored(url: str, cache: Path) -> bool:
    """Return whether a complete copy of a URL is in `cache`. It may be older than the files in the object store."""
    return _notes(mirror_of(url, cache)).exists()


def _notes(folder: Path) -> Path:
    """Return the file about the copied files, which is written after all of them."""
    return folder.with_suffix(".json")


def mirror(url: str, cache: Path) -> Path:
    """Copy the files below a URL into a folder of `cache`, and return it; what is there unchanged is not copied again.

    A file is unchanged if size and checksum or time are those of the last copy; where a store has neither checksums nor
    times, every file is copied again. Another process that copies the same URL on this machine is waited for. Raises
    UserError where no file is.
    """
    folder = mirror_of(url, cache)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = folder.with_suffix(".lock").open("w", encoding="utf-8")
    except OSError as error:
        raise UserError(wrong_path(error) or f"{cache}: {error}") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the other process's temporary files would count as deleted in the store
        _update(url, folder)
    return folder


def _update(url: str, folder: Path) -> None:
    notes = _notes(folder)
    known: dict[str, Any] = json.loads(notes.read_text(encoding="utf-8")) if notes.exists() else {}
    with remote_folder(url) as (system, path):
        details = system.find(path, detail=True)
        if not details:
            raise UserError(f"{url}: no file is there; expected the folder of a collection")
        names = {name.removeprefix(path).lstrip("/"): info for name, info in details.items() if info["type"] == "file"}
        for name, info in names.items():
            if ".." in Path(name).parts:
                raise UserError(f"{url}: cannot copy a file named {quoted(name)}")
            stamp = _stamp(info)
            if stamp is None or known.get(name) != stamp or not (folder / name).exists():
                with writing(folder / name) as temporary:
                    system.get_file(info["name"], str(temporary))
        write_atomically(notes, json.dumps({name: _stamp(info) for name, info in names.items()}))
    for file in sorted(file for file in folder.rglob("*") if file.is_file()):
        if file.relative_to(folder).as_posix() not in names:
            file.unlink()  # was deleted in the object store, or is left from an interrupted copy


def _stamp(info: dict[str, Any]) -> list[str] | None:
    """Return what changes when a file changes; None where only the size is known, which may stay the same."""
    values = {name.lower(): value for name, value in info.items()}
    marks = [str(values.get(name)) for name in MARKS]
    return [str(values.get("size")), *marks] if any(mark != "None" for mark in marks) else None
