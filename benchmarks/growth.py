"""Measure how each stage's time and memory grow with the collection: `make growth`.

`python -m benchmarks.growth [FOLDER]` does the same. Every stage runs at three sizes, a factor of four apart, and at
one so small that only its start-up counts. Each run has its own process and one thread of the CPU. It records CPU
seconds, the peak of anonymous memory, and the artifact's bytes. Anonymous memory excludes memory-mapped vectors, whose
pages the kernel can drop. FOLDER (`artifacts/growth`, a few GB) keeps the measurements until all are complete, so an
interrupted run resumes with its stage. The collection and the models are synthetic (`invented.py`). The models are so
small that growth shows; their seconds say nothing about real models.

The command writes `benchmarks/results/growth.json`, its figure and `docs/scale.md`. `--only "pair contexts" evaluate`
measures these stages and keeps the other measurements; their inputs are built before, and not measured.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import growing, invented, results, scale
from benchmarks.__main__ import ONE_THREAD, PACKAGES
from benchmarks.contest import clock
from storage.files import bytes_below, write_atomically
from storage.store.store import Store
from tasks.session import Execution, Session, session

ROOT = Path(__file__).resolve().parent.parent
START, SIZES = 256, (4_000, 16_000, 64_000)  # documents
BESIDE = {"ingest_queries", "ingest_qrels", "initialise", "index"}  # built beside a stage in no time
EXECUTION = Execution(workers=1, threads=1, device="cpu")
BUILD, ONLY = "build", "--only"
INTERVAL = 0.02  # seconds between two looks at the memory


def main(folder: Path, only: Sequence[str] = ()) -> None:
    """Measure what is not measured yet, of some stages or of all, then write the result and what is made of it."""
    prepare(folder, (START, *SIZES))
    started, before = time.monotonic(), results.read(results.path_of("growth", "cpu"))["stages"] if only else {}
    if only:
        for size in (START, *SIZES):
            run_process(folder, json.dumps(only), size, BUILD)
    stages = dict(before)
    for name in only or growing.STAGES:
        stages[name] = [measurement(folder, name, size) for size in (START, *SIZES)]
    machine = results.machine("cpu", PACKAGES)
    minutes = sum(row["process_seconds"] for rows in stages.values() for row in rows) / 60
    result = {"start": START, "stages": stages, "machine": machine, "minutes": round(minutes, 1)}
    write_atomically(results.path_of("growth", "cpu"), json.dumps(result, indent=1) + "\n")
    scale.write()
    shutil.rmtree(folder)
    print(f"{minutes:.0f} minutes of CPU, {(time.monotonic() - started) / 60:.0f} minutes in this run")


def prepare(folder: Path, sizes: tuple[int, ...]) -> None:
    """Make the collections and models that are not there yet."""
    makers: dict[str, Callable[[Path], None]] = {"models": invented.make_models}
    makers |= {f"{size}/collection": partial(invented.make_collection, documents=size) for size in sizes}
    for name, make in makers.items():
        if not (folder / name).exists():
            building = folder / "building"
            shutil.rmtree(building, ignore_errors=True)
            building.mkdir(parents=True)
            make(building)
            (folder / name).parent.mkdir(exist_ok=True)
            building.rename(folder / name)


def measurement(folder: Path, name: str, size: int) -> dict[str, Any]:
    """Return the measurement of a stage at a size, made in a process of its own now or in an earlier run."""
    record = folder / "measured" / f"{name}-{size}.json"
    if not record.exists():
        before = clock("cpu")
        last_line = run_process(folder, name, size)
        row = {**json.loads(last_line), "process_seconds": round(clock("cpu") - before, 2)}
        record.parent.mkdir(exist_ok=True)
        write_atomically(record, json.dumps(row))
        print(name, ", ".join(f"{what} {value:,}" for what, value in row.items()), flush=True)
    return results.read(record)


def run_process(folder: Path, *arguments: object) -> str:
    """Run this module in a process of its own, for one stage at one size; return the last line that it prints."""
    command = [sys.executable, "-m", "benchmarks.growth", str(folder), *map(str, arguments)]
    done = subprocess.run(command, env=os.environ | ONE_THREAD, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {done.stderr[-2000:]}")
    return str((done.stdout.splitlines() or [""])[-1])


def build(folder: Path, names: Sequence[str], size: int) -> None:
    """Build some stages, and what they need, without a measurement."""
    chain = growing.Chain(folder / str(size), folder / "models")
    with session(Session(Store(folder / str(size) / "store"), EXECUTION)):
        for name in names:
            growing.STAGES[name](chain)


def measured(folder: Path, name: str, size: int) -> dict[str, Any]:
    """Run a stage in this process, after dropping what an earlier attempt left of it."""
    torch.set_num_threads(1)
    store = Store(folder / str(size) / "store")
    chain = growing.Chain(folder / str(size), folder / "models")
    with session(Session(store, EXECUTION, planning=True)):
        artifact = growing.STAGES[name](chain)
    for path in (artifact.path, store.work(artifact.stage, artifact.key)):
        shutil.rmtree(path, ignore_errors=True)
    if artifact.stage == "generate_queries":
        shutil.rmtree(store.root / "ledger", ignore_errors=True)
    with session(Session(store, EXECUTION)) as ran, Peak() as peak:
        started = clock("cpu")
        growing.STAGES[name](chain)
        seconds = clock("cpu") - started
    built = {job.stage for job in ran.done.values() if not job.cached and job.key != artifact.key}
    if built - BESIDE:
        raise SystemExit(f"{folder} was begun by other code and lacks {', '.join(built)}: remove it and run again")
    return {"documents": size, "seconds": round(seconds, 3), "peak_mib": peak.mebibytes,
            "bytes": bytes_below(artifact.path)}  # fmt: skip


class Peak:
    """The most anonymous memory that this process has in a block."""

    mebibytes = 0.0

    def __enter__(self) -> Peak:
        self._most, self._over = anonymous(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()
        self.mebibytes = round(self._most / 2**10, 1)

    def _watch(self) -> None:
        while not self._over.wait(INTERVAL):
            self._most = max(self._most, anonymous())


def anonymous() -> int:
    """Return the anonymous memory of this process in KiB (RssAnon of /proc)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


if __name__ == "__main__":
    position = sys.argv.index(ONLY) if ONLY in sys.argv else len(sys.argv)
    arguments, names = sys.argv[1:position], sys.argv[position + 1 :]
    folder = Path(arguments[0] if arguments else ROOT / "artifacts" / "growth").resolve()
    if arguments[3:] == [BUILD]:
        build(folder, json.loads(arguments[1]), int(arguments[2]))
    elif len(arguments) > 2:
        print(json.dumps(measured(folder, arguments[1], int(arguments[2]))))
    else:
        main(folder, names)
