"""The command line in this process: what a user would see of a command, without the seconds that a start takes."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from flows.cli import main


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """The lines on standard error that are errors."""
        return [line for line in self.err.splitlines() if line.startswith("pretrieve: ")]


def command(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Ended:
    """Run `pretrieve` with these arguments to its end."""
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["pretrieve", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
    return Ended(int(ended.value.code or 0), *capsys.readouterr())


def tree(folder: Path) -> dict[str, bytes | None]:
    """Every path below a folder, with the contents of files."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Mount a folder read-only over itself, which stops root too; skip the test where that is not permitted."""
    if os.geteuid() or not shutil.which("mount"):
        pytest.skip("a read-only file system needs root and mount")
    mounted = subprocess.run(["mount", "--bind", "-o", "ro", folder, folder], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a read-only file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
