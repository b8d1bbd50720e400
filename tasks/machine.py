"""The cores, their load, the memory and the GPUs that this process may use, which may be fewer than the machine has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
GPU_DEVICES = ("nvidia[0-9]*", "dxg", "kfd")  # of NVIDIA's driver, of Windows' in WSL 2, and of AMD's ROCm
MEMORY_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Of a control group in version 2 and 1: the files of its limit and use, and the name of cached pages that it frees."""
NO_LIMIT = 2**60  # version 1 of control groups states "no limit" as a number of bytes near 2^63


def num_cores(root: Path = ROOT) -> int:
    """Return the number of cores: at least 1, at most what affinity and control groups allow."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _control_groups(root, "cpu"):
        version_1 = folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us"
        quota, period = _words(folder / "cpu.max") or _words(*version_1) or ["max", "max"]
        if quota.isdecimal() and period.isdecimal():  # "max" or -1 is no limit
            cores = min(cores, int(quota) // int(period))
    return max(1, cores)


def load_average() -> float:
    """Return how many processes used or waited for a core in the last minute; 0 where the system does not say.

    In a container it may be that of the complete machine.
    """
    try:
        return os.getloadavg()[0]
    except OSError:
        return 0.0


def free_memory(root: Path = ROOT) -> int | None:
    """Return the bytes that can be allocated without swapping; None where the system does not state them."""
    free = []
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            free.append(int(line.split()[1]) * 1024)
    for folder in _control_groups(root, "memory"):
        for limit, used, cached in MEMORY_FILES:
            most, now = _text(folder / limit).strip(), _text(folder / used).strip()
            if most.isdecimal() and now.isdecimal() and int(most) < NO_LIMIT:
                taken = max(0, int(now) - _statistic(folder / "memory.stat", cached))
                free.append(max(0, int(most) - taken))
    return min(free, default=None)


def num_gpus(root: Path = ROOT) -> int:
    """Return the number of GPUs that PyTorch can use. PyTorch is imported only where the system has a GPU's device."""
    if not any(device for pattern in GPU_DEVICES for device in (root / "dev").glob(pattern)):
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _control_groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process' control group and of the groups that contain it, of version 1 or 2.

    A container sees its own group as the root of the mounted tree, so paths that are not there are skipped.
    """
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        tree = root / "sys/fs/cgroup" / (controller if controllers else "")
        group = tree / path.strip("/")
        yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(tree) and folder.is_dir())


def _words(*files: Path) -> list[str]:
    """Return the words in files; two, or none where a file is missing."""
    words = [word for file in files for word in _text(file).split()]
    return words if len(words) == 2 else []


def _statistic(file: Path, name: str) -> int:
    """Return the number in the line of a name; 0 where there is none."""
    lines = (line.split() for line in _text(file).splitlines())
    return next((int(number) for key, number in lines if key == name), 0)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""
