"""What an attempt that was cut off has left in a work folder: used again only where its bytes are those it wrote.

When a file or folder that a later attempt may use is complete, its hashes are recorded below `scratch`. What has no
record was not finished, or is of a version that kept none; what differs from its record was damaged. Both are built
again: a flipped bit would otherwise be published under hashes of its own.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from storage.files import sha256_of, write_atomically
from storage.store.store import SCRATCH
from tasks.session import print_line

RECORDS = Path(SCRATCH) / "records"


def record(out: Path, *names: str, at: Path | None = None) -> None:
    """Note the hashes of complete files or folders, by the names below `out` that they have, or get when they are `at`
    another place.
    """
    for name in names:
        write_atomically(_record(out, name), json.dumps(_hashes(at or out / name)))


def is_intact(out: Path, name: str) -> bool:
    """Whether a file or folder below `out` is there with the bytes that were recorded."""
    try:
        recorded = json.loads(_record(out, name).read_text())
        return bool(recorded) and recorded == _hashes(out / name)
    except (OSError, ValueError):  # a record or a file that cannot be read is as good as none
        return False


def unfinished(out: Path, names: Sequence[str]) -> list[str]:
    """Those of the files and folders below `out` that are to be built; their remains are deleted and reported."""
    wanted = [name for name in names if not is_intact(out, name)]
    left = [name for name in wanted if (out / name).exists()]
    for name in left:
        discard(out, name)
    if left:
        print_line(
            f"{out.name}: {len(left)} of {len(names)} files that an earlier attempt left are damaged or unfinished "
            f"(first {left[0]}); they are built again"
        )
    return wanted


def discard(out: Path, name: str) -> None:
    """Delete a file or folder below `out`, and its record."""
    _record(out, name).unlink(missing_ok=True)
    shutil.rmtree(out / name) if (out / name).is_dir() else (out / name).unlink(missing_ok=True)


def _record(out: Path, name: str) -> Path:
    return out / RECORDS / f"{name.replace('/', '-')}.json"


def _hashes(path: Path) -> dict[str, str]:
    """The sha256 of a file, or of all files in a folder, by their names in it."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return {file.relative_to(path).as_posix(): sha256_of(file) for file in files}
