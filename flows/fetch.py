"""`pretrieve fetch`: download and check the official files of a collection, as its dataset loader expects them.

ir_datasets downloads: it resumes after a broken connection, tries other mirrors, and compares checksums. Complete files
are not fetched again, and a file appears complete or not at all; a download that is killed starts from the beginning.
"""

from __future__ import annotations

import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from flows.terminal import say
from storage.datasets.support.official_files import Remote, beir_member, is_fetched, official
from storage.errors import UserError
from storage.files import flush, full_disk_explained, writing
from storage.formats.lines import open_plain_or_gzipped

UNFINISHED = ".fetching"


def fetch(name: str, folder: Path) -> None:
    """Fetch the official files of a collection that a folder lacks.

    Raises UserError for an unknown name, a network error, or an unexpected file.
    """
    collection = official(name)
    say(f"{name}: {collection.terms}")
    for remote in collection.remotes:
        entry, named = _entry(remote), ", ".join(remote.names) or "the collection"
        file = folder / UNFINISHED / (Path(entry["url"]).name if remote.archive else remote.names[0])
        if is_fetched(folder, remote) and not file.exists():  # else an archive was unpacked only in part
            say(f"{named}: in {folder} already")
            continue
        say(f"{named}: fetching {entry['url']}")
        _download(entry, file, f"put {named} into {folder} by hand")
        with full_disk_explained(folder):
            _unpack(remote, file, folder) if remote.archive else _take(file, folder / remote.names[0])
    shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
    say(f"{name}: complete, in {folder}")


def _entry(remote: Remote) -> dict[str, Any]:
    """Return address and checksum of a download, in the form of ir_datasets."""
    try:
        from ir_datasets.util import DownloadConfig
    except ImportError:
        raise UserError("fetch: expected the package ir_datasets; pip install 'pretrieve[fetch]'") from None
    if "://" in remote.at:
        return {"url": remote.at, "expected_md5": remote.md5}
    section, _, key = remote.at.partition("/")
    known: dict[str, dict[str, Any]] = DownloadConfig.contents()[section]
    if key not in known:
        raise UserError(f"{remote.at}: unknown collection; expected one of {', '.join(known)}")
    return known[key]


def _download(entry: dict[str, Any], file: Path, otherwise: str) -> None:
    """Download a file, unless it is complete already."""
    from ir_datasets.util import HashVerificationError, _DownloadConfig
    from requests.exceptions import RequestException

    url = entry["url"]
    try:
        with full_disk_explained(file):
            _DownloadConfig(contents={"file": entry | {"cache_path": str(file)}})["file"].path()
    except HashVerificationError as error:
        raise UserError(f"{url}: not the expected file ({error}); try again later, or {otherwise}") from None
    except RequestException as error:
        raise UserError(f"{url}: cannot be reached ({type(error).__name__}); get a network, or {otherwise}") from None
    except (OSError, RuntimeError, ValueError) as error:  # ValueError: the disk has too little room
        raise UserError(f"{url}: cannot be fetched ({error}); try again later, or {otherwise}") from None


def _take(file: Path, target: Path) -> None:
    """Move a file to its place and name."""
    try:
        with open_plain_or_gzipped(
            file, str
        ):  # some files have no checksum: an error page in place of the file is noticed here
            pass
    except UserError:
        file.unlink()
        raise
    flush(file)
    file.replace(target)


def _unpack(remote: Remote, archive: Path, folder: Path) -> None:
    """Write the needed members of an archive, and delete the archive."""
    missing = set(remote.names)
    try:
        for member, content in _members(archive):
            target = Path(Path(member).name) if remote.names else beir_member(member)
            if target is None or (remote.names and target.name not in missing):
                continue
            missing.discard(target.name)
            with writing(folder / target) as temporary, temporary.open("wb") as file:
                shutil.copyfileobj(content, file, 1 << 20)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        archive.unlink()
        raise UserError(f"{remote.at}: the download is no complete archive ({error}); try again later") from None
    archive.unlink()
    if missing or not is_fetched(folder, remote):
        names = ", ".join(sorted(missing)) or "corpus.jsonl and queries.jsonl"
        raise UserError(f"{remote.at}: expected {names} in the archive; the publisher may have changed it")


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the names and contents of the files in a zip or a tar archive."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for name in zipped.namelist():
                with zipped.open(name) as content:
                    yield name, content
        return
    with tarfile.open(archive, "r|*") as stream:
        for member in stream:
            if (file := stream.extractfile(member)) is not None:
                yield member.name, file
