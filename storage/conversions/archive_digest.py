"""Check an archive by its files: a publisher may pack it again for each download, so that its own bytes change."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

from storage.errors import UserError
from storage.formats.archives import reading_archive


def files_digest(files: Iterable[tuple[str, bytes]]) -> str:
    """Return the SHA-256 of the lines "PATH, tab, SHA-256" of all files in the order of their paths."""
    lines = (f"{path}\t{hashlib.sha256(content).hexdigest()}\n" for path, content in sorted(files))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def checked_files(archive: Path, path_of: Callable[[str], str | None], expected: str) -> dict[str, bytes]:
    """Return the files of an archive by their paths; `path_of` gives a member's path, or None for what is not read.

    Raises UserError for other files than those with the expected digest, and removes such an archive.
    """
    with reading_archive(archive) as members:
        files = {path: content.read() for name, content in members if (path := path_of(name)) is not None}
    if (actual := files_digest(files.items())) != expected:
        archive.unlink()
        raise UserError(
            f"{archive.name}: not the expected files (sha256 of their list {actual}, expected {expected}); try again "
            "later"
        )
    return files
