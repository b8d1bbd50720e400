"""`pretrieve fetch`: download and check the official files of a collection, as its dataset loader expects them.

Complete files are not fetched again, an interrupted download resumes, and a file appears complete or not at all.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from flows.fetch.download import Download, Progress, discard, download_file, size_of
from flows.fetch.hub_listing import listed
from flows.fetch.official_files import Official, Remote, is_fetched, official
from flows.fetch.unpack import install
from flows.terminal import say
from storage.datasets.support.completeness import UNFINISHED
from storage.errors import UserError, suggestion
from storage.files import full_disk_explained
from storage.store import begun_runs
from tasks.runtime.formatting import in_units

MIRROR = "https://mirror.ir-datasets.com"


def fetch(name: str, folder: Path, without: Collection[str] = ()) -> None:
    """Fetch the official files of a collection that a folder lacks, except the parts in `without`.

    Raises UserError for an unknown name or part, a network error, too little room, or an unexpected file.
    """
    collection = official(name)
    say(f"{name}: {collection.terms}")
    selected = _selected(name, collection, without)
    with _only_fetch(folder):
        _fetch_all(name, collection, [file for remote in selected for file in listed(remote, folder)], folder)
    left_out = f", without {', '.join(without)}" if without else ""
    say(f"{name}: complete{left_out}, in {folder}")


def _fetch_all(name: str, collection: Official, remotes: list[Remote], folder: Path) -> None:
    """Fetch the files that are not in the folder."""
    waiting = [remote for remote in remotes if not _is_complete(remote, folder)]
    for remote in remotes:
        if remote not in waiting:
            say(f"{_named(remote)}: in {folder} already")
    progress = _announce(name, collection, waiting, folder)
    for remote in waiting:
        _fetch_one(remote, folder, progress)
    _remove_empty(folder / UNFINISHED)


@contextlib.contextmanager
def _only_fetch(folder: Path) -> Iterator[None]:
    """Create and lock a folder during a block. Raises UserError where another process fetches into it.

    The kernel's lock is on the folder itself, so it leaves no file and ends with the process.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror}); name another folder") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UserError(f"{folder}: another `pretrieve fetch` writes it; wait for its end") from None
    try:
        begun_runs.begin()
        yield
    finally:
        _remove_where_nothing_was_fetched(folder)
        os.close(descriptor)


def _selected(name: str, collection: Official, without: Collection[str]) -> list[Remote]:
    """Return the files of the parts that are not excluded. Raises UserError for an unknown part."""
    for part in without:
        if part not in collection.parts:
            known = suggestion(part, collection.parts) if collection.parts else "it has no parts"
            raise UserError(f"--without {part}: {name} has no such part; {known}")
    return [remote for remote in collection.remotes if remote.part not in without]


def _remove_empty(folder: Path) -> None:
    """Remove a folder and those below it, except for the unfinished downloads of other parts."""
    for path in (*sorted(folder.rglob("*"), reverse=True), folder):
        if path.is_dir():
            with contextlib.suppress(OSError):
                path.rmdir()


def _remove_where_nothing_was_fetched(folder: Path) -> None:
    """Remove a collection's folder without files. Where one is there, `UNFINISHED` says that others may be missing."""
    with contextlib.suppress(OSError):
        if [path.name for path in folder.iterdir()] == [UNFINISHED]:
            _remove_empty(folder / UNFINISHED)
        folder.rmdir()


def _is_complete(remote: Remote, folder: Path) -> bool:
    """Return whether all files of a download are in the folder; an archive of it would have been unpacked in part."""
    return is_fetched(folder, remote) and not _temporary(remote, folder).exists()


def _announce(name: str, collection: Official, waiting: list[Remote], folder: Path) -> Progress:
    """Print the size of each part before anything is fetched. Raises UserError where the disk has too little room."""
    waiting = [remote for remote in waiting if not _temporary(remote, folder).exists()]
    if not waiting:
        return Progress(None)
    sizes = {remote: size_of(_download(remote)) for remote in waiting}
    by_part: dict[str, list[int | None]] = {}
    for remote, size in sizes.items():
        by_part.setdefault(remote.part, []).append(size)
    listed = ", ".join(f"{part} {_sum(parts)}" for part, parts in by_part.items() if part)
    hint = "; --without PART leaves a part out" if len(by_part) > 1 else ""
    files = f"{len(waiting)} file{'s' if len(waiting) > 1 else ''}"
    say(f"{name}: {files} to fetch, {_sum(list(sizes.values()))}{f' ({listed})' if listed else ''}{hint}")
    known = [size for size in sizes.values() if size is not None]
    arrived = sum(_bytes_of_part(remote, folder) for remote in waiting)
    existing = next(above for above in (folder.absolute(), *folder.absolute().parents) if above.exists())
    free = shutil.disk_usage(existing).free
    if (needed := sum(known) - arrived) > free:
        raise UserError(f"{folder}: the files have {in_units(needed)}, and {in_units(free)} are free; make room{hint}")
    return Progress(sum(known) if len(known) == len(sizes) else None)


def _sum(sizes: list[int | None]) -> str:
    """Return the sum of sizes in words, also where some are not known."""
    known = sum(size for size in sizes if size is not None)
    if None not in sizes:
        return in_units(known)
    return f"at least {in_units(known)}" if known else "of a size that the server does not state"


def _bytes_of_part(remote: Remote, folder: Path) -> int:
    file = _temporary(remote, folder)
    part = file.with_name(f"{file.name}.part")
    return part.stat().st_size if part.exists() else file.stat().st_size if file.exists() else 0


def _fetch_one(remote: Remote, folder: Path, progress: Progress) -> None:
    """Fetch one download, from its other address where the first fails, and put its files into the folder.

    A file that was there before, such as one that was put there by hand, is used or named, and never deleted.
    """
    download, file = _download(remote), _temporary(remote, folder)
    by_hand = f"put {_named(remote)} into {folder} by hand"
    if remote.conversion:
        by_hand = f"create {file.parent}, put it there by hand as {file.name}, and run the same command again"
    was_there = file.exists()
    say(f"{_named(remote)}: " + (f"reading {file}" if was_there else f"fetching {download.url}"))
    try:
        download_file(download, file, progress, by_hand, "" if remote.conversion else remote.part)
        with full_disk_explained(folder):
            install(remote, file, folder)
    except UserError as error:
        if was_there:
            raise UserError(
                str(error) if str(file) in str(error) else f"{file}: {error}; delete or replace it"
            ) from None
        if isinstance(error.__cause__, OSError):  # as where the disk is full
            raise
        file.unlink(missing_ok=True)  # it came complete, and is of no use
        if remote.otherwise is None:
            raise
        say(f"  {error}")
        discard(file)  # the other source may have other bytes
        _fetch_one(replace(remote.otherwise, part=remote.part), folder, progress)


def _temporary(remote: Remote, folder: Path) -> Path:
    """Return the path of a download before its files are put into the folder."""
    name = remote.names[0] if remote.names and not remote.is_source else Path(_download(remote).url).name
    return folder / UNFINISHED / name


def _named(remote: Remote) -> str:
    return "the collection" if remote.conversion or not remote.names else ", ".join(remote.names)


def _download(remote: Remote) -> Download:
    """Return address, headers, checksum and size of a file. Raises UserError where ir_datasets does not know it."""
    if "://" in remote.at:
        return Download(remote.at, checksum=remote.checksum, size=remote.size)
    try:
        from ir_datasets.util import DownloadConfig
    except ImportError:
        raise UserError("fetch: expected the package ir_datasets; pip install 'pretrieve[fetch]'") from None
    section, _, key = remote.at.partition("/")
    known: dict[str, dict[str, Any]] = DownloadConfig.contents()[section]
    if key not in known:
        raise UserError(f"{remote.at}: unknown collection; expected one of {', '.join(known)}")
    entry = known[key]
    md5, headers = entry.get("expected_md5"), entry.get("download_args", {}).get("headers", {})
    url = f"{MIRROR}/{md5}" if remote.mirrored else entry["url"]
    return Download(url, headers, f"md5:{md5}" if md5 else None, entry.get("size_hint"))
