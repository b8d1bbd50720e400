"""The facts of a manifest about the machine that built an artifact, and the costs of the build."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import resource
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from storage.errors import masked, printable
from tasks.machine import free_memory, num_cores, num_gpus
from tasks.runtime.formatting import in_units
from tasks.session import Execution

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "pyarrow",
    "faiss-cpu",
    "pyseismic-lsr",
    "pyserini",
    "ranx",
    "prefect",
    "sentencex",
)


def describe_build(execution: Execution) -> dict[str, Any]:
    """Return how a stage ran, its process' and children's peak memory, the device it may use, machine and packages.

    Addresses are without credentials, since manifests are shared and shown.
    """
    return {
        "execution": json.loads(masked(execution.model_dump_json())),
        "peak_memory_mib": _peak_memory_mib(),
        "device": _device_name(execution.device),
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "system": platform.platform(),
            "python": platform.python_version(),
        },
        "versions": _versions(),
    }


def describe_execution(execution: Execution) -> str:
    """Return a line with the processes and threads that a run uses, and the cores, memory and GPUs that it may use."""
    memory = free_memory()
    gpus = 0 if execution.device == "cpu" else num_gpus()
    machine = [f"{num_cores()} cores", *([f"{in_units(memory)} of free memory"] if memory is not None else [])]
    machine.append(f"{gpus} GPUs" if gpus else "no GPU is used" if execution.device == "cpu" else "no GPU")
    line = f"execution: {execution.workers} workers, {execution.threads} threads ({', '.join(machine)})"
    if gpus > execution.processes == 1 and execution.device in ("auto", "cuda"):
        line += f"; training uses 1 GPU: execution.processes={gpus} uses all and changes last digits"
    return line + _other_threads(execution.threads)


def _other_threads(threads: int) -> str:
    """Return that OMP_NUM_THREADS has no effect where it states another number; empty where it does not.

    It is not followed, since results should not differ in their last digits between shells.
    """
    stated = os.environ.get("OMP_NUM_THREADS", "")
    if stated in ("", str(threads)):
        return ""
    return f"; OMP_NUM_THREADS={printable(stated)} is ignored: --set execution.threads=N sets the threads"


def cpu_seconds() -> float:
    """Return the CPU seconds that this process and its finished children have taken."""
    return sum(os.times()[:4])


def _peak_memory_mib() -> int:
    own, children = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return max(own, children) // (1 << 20 if sys.platform == "darwin" else 1 << 10)  # macOS counts in bytes


def _device_name(wanted: str) -> str:
    torch = sys.modules.get("torch")
    if torch is not None and wanted != "cpu" and torch.cuda.is_available():
        return str(torch.cuda.get_device_name(None if wanted == "auto" else wanted))
    return platform.processor() or platform.machine()


@cache
def _processor() -> str:
    """Return the processor's model, on which last digits depend, or its architecture where no model is named."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


@cache
def _versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions
