"""`pretrieve fetch`: the official files of a collection, checked and laid out as its reader wants them.

Downloads are ir_datasets' business: it goes on after a connection that broke, looks at other mirrors, and compares
checksums. What is whole in the folder is not fetched again, and what is fetched appears whole or not at all; a file
whose download is killed begins anew.
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
    """Fetch what a folder lacks of a collection's official files.

    Raises UserError where the network, the name or what comes is not as it should be.
    """
    wanted = official(name)
    say(f"{name}: {wanted.terms}")
    for remote in wanted.remotes:
        entry, named = _entry(remote), ", ".join(remote.names) or "the collection"
        file = folder / UNFINISHED / (Path(entry["url"]).name if remote.archive else remote.names[0])
        if is_fetched(folder, remote) and not file.exists():  # else it was unpacked in part
            say(f"{named}: in {folder} already")
            continue
        say(f"{named}: fetching {entry['url']}")
        _download(entry, file, f"put {named} into {folder} by hand")
        with full_disk_explained(folder):
            _unpack(remote, file, folder) if remote.archive else _take(file, folder / remote.names[0])
    shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
    say(f"{name}: whole, in {folder}")


def _entry(remote: Remote) -> dict[str, Any]:
    """Address, checksum and manner of a download, as ir_datasets writes it down."""
    try:
        from ir_datasets.util import DownloadConfig
    except ImportError:
        raise UserError("fetch: expected the package ir_datasets; pip install 'pretrieve[fetch]'") from None
    if "://" in remote.at:
        return {"url": remote.at, "expected_md5": remote.md5}
    section, _, key = remote.at.partition("/")
    known: dict[str, dict[str, Any]] = DownloadConfig.contents()[section]
    if key not in known:
        raise UserError(f"{remote.at}: there is no such collection; expected one of {', '.join(known)}")
    return known[key]


def _download(entry: dict[str, Any], file: Path, otherwise: str) -> None:
    """Write what is at an address, once it is whole; nothing where that is done already."""
    from ir_datasets.util import HashVerificationError, _DownloadConfig
    from requests.exceptions import RequestException

    url = entry["url"]
    try:
        with full_disk_explained(file):
            _DownloadConfig(contents={"file": entry | {"cache_path": str(file)}})["file"].path()
    except HashVerificationError as error:
        raise UserError(f"{url}: not the file that is known ({error}); try again later, or {otherwise}") from None
    except RequestException as error:
        raise UserError(f"{url}: cannot be reached ({type(error).__name__}); get a network, or {otherwise}") from None
    except (OSError, RuntimeError, ValueError) as error:  # ValueError: the disk has less room than it takes
        raise UserError(f"{url}: cannot be fetched ({error}); try again later, or {otherwise}") from None


def _take(file: Path, target: Path) -> None:
    """Give a file its place and name."""
    try:
        with open_plain_or_gzipped(
            file, str
        ):  # of some no checksum is known: a web page that stands for the file shows here
            pass
    except UserError:
        file.unlink()
        raise
    flush(file)
    file.replace(target)


def _unpack(remote: Remote, archive: Path, folder: Path) -> None:
    """Write the members that are wanted, and delete the archive."""
    left = set(remote.names)
    try:
        for member, content in _members(archive):
            target = Path(Path(member).name) if remote.names else beir_member(member)
            if target is None or (remote.names and target.name not in left):
                continue
            left.discard(target.name)
            with writing(folder / target) as temporary, temporary.open("wb") as file:
                shutil.copyfileobj(content, file, 1 << 20)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        archive.unlink()
        raise UserError(f"{remote.at}: what came is no archive, or is cut off ({error}); try again later") from None
    archive.unlink()
    if left or not is_fetched(folder, remote):
        missing = ", ".join(sorted(left)) or "corpus.jsonl and queries.jsonl"
        raise UserError(f"{remote.at}: expected {missing} in the archive; the publisher may have changed it")


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """The files in a zip or a tar archive, one after another."""
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
