"""Run benchmarks: `python -m benchmarks [NAME...] [--device cuda] [--record]`. Exit code 1 where a ratio has fallen.

Prints the results and writes `results/NAME.json`, `docs/speed.md` and its figure. Each benchmark has its own process
and one thread of the CPU. On a GPU machine, benchmarks for the device `cuda` need only PyTorch and Transformers.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import NAMES, page, results
from benchmarks.contest import OURS, held

PACKAGES = (
    "torch", "transformers", "tokenizers", "sentence-transformers", "ctranslate2", "numpy", "scipy", "faiss-cpu",
    "pyserini", "bm25s", "pyseismic-lsr", "ranx", "pytrec-eval-terrier", "ir-measures", "prefect",
)  # fmt: skip
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def main(arguments: list[str]) -> int:
    """Run what is named, each in its own process, and say what has fallen."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(NAMES)}; all, if none is named")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--record", action="store_true", help="take this run's ratios as those that must not fall")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if unknown := sorted(set(given.names) - set(NAMES)):
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(NAMES)}")
    if given.here:
        return measured(given.names[0], given.device, record=given.record)
    chosen = [name for name in given.names or NAMES if runs_on(given.device, name)]
    flags = ["--here", "--device", given.device, *(["--record"] if given.record else [])]
    environment = os.environ | (ONE_THREAD if given.device == "cpu" else {})
    failed = [
        name for name in chosen
        if subprocess.run([sys.executable, "-m", "benchmarks", name, *flags], env=environment).returncode
    ]  # fmt: skip
    page.write()
    minutes = sum(results.read(results.path_of(name, given.device)).get("minutes", 0.0) for name in chosen)
    print(f"{minutes:.0f} minutes; the table is in {page.PAGE}")
    if failed:
        print(f"failed, or fallen by more than a quarter: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


def runs_on(device: str, name: str) -> bool:
    """Return whether a benchmark supports a device; one whose packages are missing does not support `cuda`."""
    try:
        return device in import_module(f"benchmarks.{name}").DEVICES
    except ModuleNotFoundError as error:
        if device == "cpu":
            raise
        print(f"{name}: left out: {error}", file=sys.stderr)
        return False


def measured(name: str, device: str, *, record: bool) -> int:
    """Run one benchmark in this process; print and write its results."""
    module, started = import_module(f"benchmarks.{name}"), time.monotonic()
    cases: dict[str, Any] = {}
    measurement: results.Result = {
        "benchmark": name, "what": (module.__doc__ or "").splitlines()[0], "device": device,
        "machine": results.machine(device, PACKAGES), "cases": cases,
    }  # fmt: skip
    for case in module.cases(device, small=False):
        cases[case.name] = result = held(case, device)
        print(f"{name}: {case.name}", flush=True)
        for contender, seconds in result["seconds"].items():
            print(f"  {contender:36} {seconds:>9.4f} s  {in_words(result['times_faster'].get(contender))}")
        for what, value in result["found"].items():
            print(f"  {what}: {value}")
    measurement["minutes"] = round((time.monotonic() - started) / 60, 2)
    path = results.path_of(name, device)
    gone = [] if record else results.lost(results.read(path), measurement)
    complaints = [*gone, *results.fallen(results.write(path, measurement, record=record))]
    print(*complaints, sep="\n", end="\n" if complaints else "", file=sys.stderr)
    return bool(complaints)


def in_words(ratio: Mapping[str, float | None] | None) -> str:
    """Return the speedup over a baseline in words; empty for `OURS` itself."""
    if ratio is None:
        return ""
    target = f", target {ratio['target']}" if ratio["target"] else ""
    return f"speedup of {OURS}: {ratio['median']} ({ratio['lowest']} to {ratio['highest']}{target})"


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    raise SystemExit(main(sys.argv[1:]))
