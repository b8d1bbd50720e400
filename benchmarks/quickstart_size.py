"""Measure the disk and the memory that the README names for installation and quickstart.

In a new clone, with an empty home folder, so that pip's downloads are those of this installation only:

    HOME=$PWD/build/home make environment data
    HOME=$PWD/build/home .venv/bin/python -m benchmarks.quickstart_size

The second command runs the quickstart into a new store. Every half second it adds up the memory of all its processes;
memory that processes share is counted once (the proportional set size). Results are in
benchmarks/results/quickstart_size.json; `make docs` writes them into the README.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks import results
from storage.files import bytes_below, write_atomically

ROOT = Path(__file__).resolve().parent.parent
INTERVAL = 0.5  # seconds between two looks at the memory
PACKAGES = ("torch", "transformers", "prefect", "numpy", "pyarrow")


def main() -> None:
    """Measure and write the result."""
    with tempfile.TemporaryDirectory(dir=ROOT) as folder:
        store = Path(folder) / "artifacts"
        memory = peak_memory([f"{sys.prefix}/bin/pretrieve", "reproduce", "quickstart", "--store", str(store)])
        disk = {
            "environment": bytes_below(Path(sys.prefix)), "downloads": bytes_below(downloads()),
            "data": bytes_below(ROOT / "data"), "artifacts": bytes_below(store),
        }  # fmt: skip
    result = {"peak_memory": memory, "disk": disk, "machine": results.machine("cpu", PACKAGES)}
    write_atomically(results.path_of("quickstart_size", "cpu"), json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def downloads() -> Path:
    """Return the folder in which pip keeps what it downloads."""
    command = [sys.executable, "-m", "pip", "cache", "dir"]
    return Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


def peak_memory(command: list[str]) -> int:
    """Run a command, and return the most bytes that it and its descendants had at one time.

    Raises subprocess.CalledProcessError if it fails.
    """
    most = 0
    with subprocess.Popen(command, cwd=ROOT) as running:
        while running.poll() is None:
            most = max(most, sum(memory_below(running.pid)))
            time.sleep(INTERVAL)
    if running.returncode:
        raise subprocess.CalledProcessError(running.returncode, command)
    return most


def memory_below(pid: int) -> Iterator[int]:
    """Yield the proportional set size in bytes of a process and each descendant; what has ended counts as 0."""
    try:
        processes = [parent := psutil.Process(pid), *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in processes:
        try:
            yield process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            yield 0


if __name__ == "__main__":
    main()
