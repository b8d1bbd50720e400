"""The device that a run works on."""

from __future__ import annotations

import torch

from storage.errors import UserError
from tasks.runtime.distributed import local_rank
from tasks.session import execution


def choose_device() -> torch.device:
    """The device that `execution.device` names; `auto` is a GPU where there is one.

    Of processes that train together each has a GPU of its own, by its number on this host. PyTorch gets as many
    threads as `execution.threads` says.
    """
    torch.set_num_threads(execution().threads)
    wanted = execution().device
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and local_rank() is not None:
        wanted = f"cuda:{local_rank()}"
    return torch.device(wanted)


def devices_for(processes: int) -> list[str]:
    """What `execution.device` is for each of several processes of this host: GPUs of their own, or the CPU for all.

    Raises `UserError` where there are fewer GPUs than processes.
    """
    wanted = execution().device
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return ["cpu"] * processes
    if wanted not in ("auto", "cuda"):
        raise UserError(
            f"execution.device: {processes} processes take a GPU each; expected auto or cuda, found {wanted}"
        )
    if (found := torch.cuda.device_count()) < processes:
        raise UserError(
            f"execution.processes: expected at most {found}, one for each GPU that is here, found {processes}"
        )
    return [f"cuda:{number}" for number in range(processes)]
