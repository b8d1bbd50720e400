"""Write a benchmark's results, `results/NAME.json`, and compare its ratios with recorded ones.

Each ratio has a `recorded` ratio: that of the first run, until `--record` replaces it. A ratio whose median is more
than a quarter below it has `fallen`. Its measurements are written, but the recorded ratio stays, so that many small
losses add up to a visible one.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"
FALLEN_BELOW = 0.75  # of the recorded ratio

Result = dict[str, Any]


def path_of(name: str, device: str) -> Path:
    """Return the path of a benchmark's result."""
    return FOLDER / (f"{name}.json" if device == "cpu" else f"{name}.{device}.json")


def read(path: Path) -> Result:
    """Return a result, or {} without a file."""
    return json.loads(path.read_text()) if path.exists() else {}


def write(path: Path, result: Result, *, record: bool) -> Result:
    """Write a result with the recorded ratios: those of the file that was there, or its own where it `record`s."""
    known = {} if record else {(case, peer): ratio.get("recorded") for case, peer, ratio in ratios(read(path))}
    for case, peer, ratio in ratios(result):
        ratio["recorded"] = known.get((case, peer)) or ratio["median"]
    path.parent.mkdir(exist_ok=True)
    building = path.with_suffix(".building")
    building.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    building.replace(path)
    return result


def ratios(result: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield each speedup with its case and its baseline."""
    for name, case in result.get("cases", {}).items():
        for peer, ratio in case["times_faster"].items():
            yield name, peer, ratio


def fallen(result: Mapping[str, Any]) -> list[str]:
    """Return a line for each speedup that has fallen by more than a quarter."""
    return [
        f"{result['benchmark']}, {case}: the speedup over {peer} is {ratio['median']}, recorded was {ratio['recorded']}"
        for case, peer, ratio in ratios(result)
        if ratio["median"] < FALLEN_BELOW * ratio["recorded"]
    ]


def lost(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a line for each recorded speedup that is no longer measured."""
    there = {(case, peer) for case, peer, _ in ratios(now)}
    return [
        f"{before['benchmark']}, {case}: {peer} is measured no more; --record takes what is measured now"
        for case, peer, _ in ratios(before)
        if (case, peer) not in there
    ]


def machine(device: str, packages: Sequence[str]) -> dict[str, Any]:
    """Return the machine of a benchmark, its load and the versions of the packages."""
    facts = {
        "cores": os.cpu_count(), "processor": _processor(), "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(), "load": round(os.getloadavg()[0], 1),
        "versions": {package: importlib.metadata.version(package) for package in packages if _installed(package)},
    }  # fmt: skip
    if device == "cuda":
        import torch

        facts["gpu"] = torch.cuda.get_device_name()
    return facts


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
