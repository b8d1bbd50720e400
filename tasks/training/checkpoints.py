"""Checkpoints of a training: weights and optimiser state in a work folder, from which a later attempt resumes."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.amp import GradScaler

from models.model_files import check_fit, read_weights
from storage.files import flush
from tasks.runtime import distributed
from tasks.runtime.leftovers import discard, is_intact, record
from tasks.runtime.work_folder import CHECKPOINTS
from tasks.session import print_line
from tasks.training.averaging import WeightAverage

WEIGHTS, OPTIMISER, AVERAGE = "weights.safetensors", "optimiser.safetensors", "average.safetensors"
SCALER, SCALING = "scaler", ("scale", "_growth_tracker")
SECONDS_UNTIL_SEEN, SECONDS_BETWEEN_LOOKS = 120.0, 1.0
KEPT = 2  # checkpoints: if a disk damages the newest, only the minute since the one before is lost


class CheckpointNotSeen(Exception):
    """A process does not see the checkpoint from which the others resume."""


def save_state(
    out: Path, step: int, objective: nn.Module, optimiser: torch.optim.Optimizer, scaler: GradScaler,
    average: WeightAverage | None = None,
) -> None:  # fmt: skip
    """Save a checkpoint after `step` steps below `out`, and delete all but the newest two.

    The folder is flushed, recorded and renamed before older ones are deleted, so that an intact checkpoint remains
    whenever the process is killed.
    """
    folder, building = out / CHECKPOINTS, out / CHECKPOINTS / "building"
    target = folder / _name(step)
    for remains in (building, target):
        shutil.rmtree(remains, ignore_errors=True)
    building.mkdir(parents=True)
    state = {
        f"{number}.{name}": value
        for number, values in optimiser.state_dict()["state"].items()
        for name, value in values.items()
    }
    scaling = scaler.state_dict()  # {} but in float16
    state |= {f"{SCALER}.{name}": torch.tensor(scaling[name], dtype=torch.double) for name in SCALING if scaling}
    save_file(weights(objective), building / WEIGHTS)
    save_file(state, building / OPTIMISER)
    if average is not None:
        save_file({name: value.contiguous() for name, value in average.values.items()}, building / AVERAGE)
    for file in (*building.iterdir(), building):
        flush(file)
    record(out, str(CHECKPOINTS / target.name), at=building)
    os.rename(building, target)
    flush(folder)
    for older in _checkpoints(out)[:-KEPT]:
        discard(out, str(CHECKPOINTS / older))


def restore(
    out: Path, objective: nn.Module, optimiser: torch.optim.Optimizer, scaler: GradScaler,
    average: WeightAverage | None = None,
) -> int:  # fmt: skip
    """Load the newest intact checkpoint below `out`, as the process sees it that saves them; return its step, or 0.

    Damaged checkpoints are reported, and deleted when all processes have loaded theirs. Raises `CheckpointNotSeen`.
    """
    seen = int(newest_intact(out) or 0)
    step = distributed.integer_of_first(seen)
    folder = out / CHECKPOINTS / _name(step)
    damaged = [name for name in _checkpoints(out) if name > folder.name]
    if step:
        if step != seen:
            _wait_until_seen(out, folder)
        _load(folder, objective, optimiser, scaler)
        if average is not None:
            average.load(read_weights(folder / AVERAGE))
    distributed.barrier()
    if damaged and distributed.rank() == 0:
        after = f"the training resumes after step {step:,}" if step else "no other is left: the training starts again"
        print_line(f"{out.name}: the checkpoint of step {int(damaged[-1]):,} is damaged or incomplete; {after}")
        for name in damaged:
            discard(out, str(CHECKPOINTS / name))
    return step


def _wait_until_seen(out: Path, folder: Path) -> None:
    """Wait until this host sees a checkpoint that another one has: a shared disk may show it some seconds later."""
    deadline = time.monotonic() + SECONDS_UNTIL_SEEN
    while not is_intact(out, str(folder.relative_to(out))):
        if time.monotonic() > deadline:
            raise CheckpointNotSeen(
                f"{folder}: the first process has this checkpoint, and this one does not see it after "
                f"{SECONDS_UNTIL_SEEN:.0f} s; check that all hosts have the store on the same disk, and run again"
            )
        time.sleep(SECONDS_BETWEEN_LOOKS)


def newest_intact(out: Path) -> str | None:
    """Return the name of the newest intact checkpoint below `out`, which is its step; None where there is none."""
    return next((name for name in reversed(_checkpoints(out)) if is_intact(out, str(CHECKPOINTS / name))), None)


def weights(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of a module by name; one that two of its parts share is there once."""
    return {name: parameter.detach().contiguous() for name, parameter in module.named_parameters()}


def load_parameters(parameters: Mapping[str, nn.Parameter], values: Mapping[str, Tensor], path: Path) -> None:
    """Copy the weights of a file, `path`, into parameters. Raises `ValueError` where names or shapes differ."""
    check_fit(values, parameters, path, "these settings")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(values[name])


def _name(step: int) -> str:
    return f"{step:09d}"


def _checkpoints(out: Path) -> list[str]:
    """Return the names of the checkpoints below `out`, the oldest first."""
    return sorted(path.name for path in (out / CHECKPOINTS).glob("*") if path.name.isdigit())


def _load(folder: Path, objective: nn.Module, optimiser: torch.optim.Optimizer, scaler: GradScaler) -> None:
    path = folder / WEIGHTS
    load_parameters(dict(objective.named_parameters()), read_weights(path), path)
    state: dict[str, dict[str, Tensor]] = {}
    for name, value in read_weights(folder / OPTIMISER).items():
        number, _, inner = name.partition(".")
        state.setdefault(number, {})[inner] = value
    scaling = {name: value.item() for name, value in state.pop(SCALER, {}).items()}
    scaler.load_state_dict({**scaler.state_dict(), **scaling})
    numbered = {int(number): values for number, values in state.items()}
    optimiser.load_state_dict({"state": numbered, "param_groups": optimiser.state_dict()["param_groups"]})
