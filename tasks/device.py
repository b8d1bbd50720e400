"""The device that a run works on."""

from __future__ import annotations

import torch

from tasks.stage import execution
from tasks.world import local_rank


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
