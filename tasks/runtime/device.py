"""The devices that a run works on, and the precision of its products."""

from __future__ import annotations

from typing import Literal

import torch

from storage.errors import UserError
from tasks.machine import num_cores, num_gpus
from tasks.runtime.distributed import local_rank
from tasks.session import Execution, execution

Precision = Literal["float32", "bfloat16", "float16"]
"""The number format of a network's products."""
ON_GPU: Precision = "bfloat16"
"""The precision on a GPU where the settings name none; on a CPU it is float32."""


def autocast(device: torch.device, precision: Precision | None) -> torch.autocast:
    """Return the context in which products have a precision; None is float32 on a CPU and else bfloat16."""
    chosen = precision or default_precision(device)
    dtype = torch.bfloat16 if chosen == "float32" else getattr(torch, chosen)
    return torch.autocast(device.type, dtype=dtype, enabled=chosen != "float32")


def default_precision(device: torch.device) -> Precision:
    """Return the precision on a device where the settings name none."""
    return "float32" if device.type == "cpu" else ON_GPU


def choose_device() -> torch.device:
    """Return the device that `execution.device` names; `auto` is a GPU where there is one.

    In processes that train together, each process has the GPU of its number on this host. PyTorch is set to
    `execution.threads` threads.
    """
    torch.set_num_threads(execution().threads)
    wanted = execution().device
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and local_rank() is not None:
        wanted = f"cuda:{local_rank()}"
    return torch.device(wanted)


def num_host_threads() -> int:
    """Return the number of threads for work on the host whose result does not depend on it.

    This is `execution.threads`, or more where GPUs compute: each GPU's process then has its share of the cores.
    """
    wanted = execution()
    gpus = 0 if wanted.device == "cpu" else num_gpus()
    return max(wanted.threads, num_cores() // gpus) if gpus else wanted.threads


def num_model_processes(wanted: Execution) -> int:
    """Return the number of processes that encode or generate shards: their bytes do not depend on it.

    This is `processes` where the user sets it; else one a GPU or, on a CPU, as many as `workers` cores hold with
    `threads` threads each.
    """
    if wanted.processes > 1 or wanted.device not in ("auto", "cpu", "cuda"):
        return wanted.processes
    gpus = 0 if wanted.device == "cpu" else num_gpus()
    return gpus or max(1, wanted.workers // wanted.threads)


def devices_for(processes: int) -> list[str]:
    """Return the value of `execution.device` for each of several processes of this host.

    Each has a GPU of its own, or all have the CPU. Raises `UserError` if there are fewer GPUs than processes.
    """
    wanted = execution().device
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return ["cpu"] * processes
    if wanted not in ("auto", "cuda"):
        raise UserError(
            f"execution.device: {processes} processes take a GPU each; expected auto or cuda, found {wanted}"
        )
    if (available := torch.cuda.device_count()) < processes:
        raise UserError(
            f"execution.processes: expected at most {available}, one for each GPU that is here, found {processes}"
        )
    return [f"cuda:{number}" for number in range(processes)]
