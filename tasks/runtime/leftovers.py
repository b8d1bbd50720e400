"""Files that an interrupted attempt left in a work folder are used again only if their bytes are unchanged.

When a file or folder that a later attempt may use is complete, its hashes are recorded below `scratch`. A file
without a record was not finished, or a version that kept none wrote it; a file that differs from its record is
damaged. Both are built again: a flipped bit would otherwise be published under hashes of its own.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from storage.files import sha256_of, write_atomically
from tasks.runtime.work_folder import RECORDS
from tasks.session import print_line


def record(out: Path, *names: str, at: Path | None = None) -> None:
    """Record the hashes of complete files or folders by their names below `out`.

    `at` is the current path of one that is moved there later.
    """
    for name in names:
        write_atomically(_record(out, name), json.dumps(_hashes(at or out / name)))


def is_intact(out: Path, name: str) -> bool:
    """Return whether a file or folder below `out` exists with the recorded bytes."""
    try:
        recorded = json.loads(_record(out, name).read_text(encoding="utf-8"))
        return bool(recorded) and recorded == _hashes(out / name)
    except (OSError, ValueError):  # a record or a file that cannot be read is as good as none
        return False


def unfinished(out: Path, names: Sequence[str]) -> list[str]:
    """Return the names of the files and folders to build; incomplete and damaged ones are deleted and reported."""
    wanted = [name for name in names if not is_intact(out, name)]
    remains = [name for name in wanted if (out / name).exists()]
    for name in remains:
        discard(out, name)
    if remains:
        print_line(
            f"{out.name}: {len(remains)} of {len(names)} files that an earlier attempt left are damaged or unfinished "
            f"(first {remains[0]}); they are built again"
        )
    return wanted


def discard(out: Path, name: str) -> None:
    """Delete a file or folder below `out`, and its record."""
    _record(out, name).unlink(missing_ok=True)
    shutil.rmtree(out / name) if (out / name).is_dir() else (out / name).unlink(missing_ok=True)


def _record(out: Path, name: str) -> Path:
    return out / RECORDS / f"{name.replace('/', '-')}.json"


def _hashes(path: Path) -> dict[str, str]:
    """Return the sha256 of a file, or of all files in a folder, by relative path."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return {file.relative_to(path).as_posix(): sha256_of(file) for file in files}
