"""Read the files in a zip or a tar archive, one after the other."""

from __future__ import annotations

import contextlib
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from storage.errors import UserError


@contextlib.contextmanager
def reading_archive(archive: Path) -> Iterator[Iterator[tuple[str, IO[bytes]]]]:
    """Yield the names and contents of the files, in the archive's order. A content is read before the next is taken.

    Raises UserError for a file that is no archive or is cut off.
    """
    try:
        yield _members(archive)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise UserError(f"{archive.name}: the download is no complete archive ({error}); try again later") from None


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
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
