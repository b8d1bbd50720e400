"""What must not be left behind: processes of a command that has ended, and files that no artifact should have."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Iterable
from pathlib import Path

MARK = "STORM_COMMAND"
"""An environment variable by which the processes that a command has started are known."""
EVENTS = re.compile(r"(?<=tfevents).*")
"""What follows in the names of TensorBoard's files is a time, a host and a process."""
MANIFEST = "manifest.json"
SECONDS_TO_DIE = 30.0
NO_ARTIFACTS = ("reports", "ledger")


def processes(session: int | None, mark: str) -> dict[int, str]:
    """The processes of a session, or with this mark in their environment, and their command lines."""
    alive = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            marked = f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0")
            if fields[0] not in "ZX" and (int(fields[3]) == session or marked):
                alive[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
    return alive


def kill(pids: Iterable[int]) -> None:
    """Kill processes, and wait until they are gone: until then they may write."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + SECONDS_TO_DIE
    while any(is_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether there is such a process that has not ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def files(store: Path) -> list[str]:
    """What a finished store should not have: work folders, damaged artifacts, temporary and unlisted files."""
    problems = [f"{folder.relative_to(store)} is left" for name in (".work", ".damaged")
                for folder in sorted((store / name).glob("*"))]  # fmt: skip
    for folder in sorted(store.glob("[!.]*/*/")):
        if folder.parent.name in NO_ARTIFACTS:
            continue
        name = folder.relative_to(store)
        if not (folder / MANIFEST).exists():
            problems.append(f"{name} has no manifest")
            continue
        manifest = json.loads((folder / MANIFEST).read_text())
        there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        listed = {MANIFEST, *manifest["files"], *manifest["logs"]}
        problems += [f"{name}/{file} is not listed" for file in sorted(there - listed)]
        problems += [f"{name}/{file} is missing" for file in sorted(listed - there)]
    temporary = [path for path in store.rglob("*") if path.is_file() and is_temporary(path)]
    return problems + [f"{path.relative_to(store)} is temporary" for path in sorted(temporary)]


def is_temporary(path: Path) -> bool:
    """Whether a file's name is one that is given to files while they are written."""
    return path.name.endswith(".tmp") or path.name.startswith(".tmp")


def artifacts(store: Path) -> dict[str, dict[str, object]]:
    """Of every artifact what a second build must repeat: its hash, its files and their hashes, and its rows."""
    values = {}
    for file in store.glob("[!.]*/*/manifest.json"):
        manifest = json.loads(file.read_text())
        values[f"{file.parent.parent.name}/{file.parent.name}"] = {
            name: manifest[name] for name in ("hash", "files", "rows", "inputs", "settings", "stage", "version")
        } | {"logs": sorted({EVENTS.sub("", name) for name in manifest["logs"]})}
    return values
