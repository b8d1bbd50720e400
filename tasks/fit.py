"""The one training loop: AdamW, a linear schedule with warm-up, checkpoints that resume exactly.

Step s draws everything (data, masks, dropout) from generators seeded by (seed, s), so a resumed run needs
weights, optimiser and step alone to end with the weights of an unbroken one.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from models.objective import Batch
from models.tokens import num_tokens
from storage.files import flush, write_atomically
from storage.settings import Settings
from tasks import world
from tasks.ahead import batches
from tasks.device import choose_device
from tasks.ending import HeldBack
from tasks.gradients import gradient_norms, gradients
from tasks.progress import bar

SECONDS_BETWEEN_CHECKPOINTS = 60.0
STATE = Path("scratch") / "training"


class Fitting(Settings):
    """How a loop optimises."""

    learning_rate: float = Field(gt=0)
    warmup_ratio: float = Field(ge=0, le=1)
    """Share of the steps in which the learning rate rises from 0; after them it falls to 0, both in a line."""
    weight_decay: float = Field(ge=0)
    """Not on biases and LayerNorms."""
    max_gradient_norm: float | None = Field(gt=0)
    chunk: int | None = Field(gt=0)
    """Rows that pass through the model at a time; null for the whole batch. The gradients are the same."""


class Diverged(Exception):
    """A loss is not a number."""


Probing = Callable[[int], dict[str, float]]
"""What to log beside a step's losses, looked at after so many steps; {} for nothing."""


def fit(
    objective: nn.Module, batch_of: Callable[[int], Batch], steps: int, *, out: Path, settings: Fitting, seed: int,
    probing: Probing = lambda steps: {},
) -> None:  # fmt: skip
    """Train the objective in place for so many steps; `batch_of(step)` gives each step's batch, from `step` alone.

    What an earlier attempt saved below `out` is taken up. Losses, gradient norms by part, tokens a second, what the
    objective observes and what `probing` finds go to `out/logs/metrics.jsonl` and to TensorBoard's files beside it.
    Of processes that train together only the first writes. Raises `Diverged` where a loss is not finite. SIGTERM, in
    any of them, has all end their step and save a checkpoint before it does what it does.
    """
    device = choose_device()
    torch.use_deterministic_algorithms(device.type == "cpu")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # costs time, saves from nothing
    objective.to(device).train()
    groups = parameter_groups(objective, settings.weight_decay)
    optimiser = torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)
    first = restore(out / STATE, objective, optimiser)
    world.check_alike(objective)  # when all have read; the first process will replace it
    saved, writes = time.monotonic(), world.rank() == 0
    with (
        Metrics(out / "logs", first) if writes else Silence() as metrics,
        bar(what="training", unit="steps", total=steps, done=first, shown=writes) as counter,
        HeldBack() as sigterm,
    ):
        if writes and not first and (probed := probing(0)):
            metrics.write(0, probed)
        coming = batches(batch_of, range(first, steps), ahead=device.type == "cuda")
        for step in range(first, steps):
            started, rate = time.monotonic(), settings.learning_rate * schedule(step, steps, settings.warmup_ratio)
            for group in optimiser.param_groups:
                group["lr"] = rate
            batch = next(coming)
            tokens, batch = num_tokens(batch), batch.to(device)
            losses = gradients(objective, batch, settings.chunk, (seed, step))
            values = {name: loss.item() for name, loss in losses.items()}
            norms = gradient_norms(objective)
            norm = nn.utils.clip_grad_norm_(objective.parameters(), settings.max_gradient_norm or math.inf).item()
            if not all(math.isfinite(value) for value in (*values.values(), norm)):
                found = f"the losses are {values}, the gradient's norm is {norm}"
                raise Diverged(f"step {step + 1} of {steps}: {found}; lower the learning rate")
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            seconds = time.monotonic() - started
            rates = {
                "rows_per_second": len(batch) / seconds,
                "tokens_per_second": tokens / seconds,
                "gradient_norm": norm,
            }
            if writes:
                seen = {**getattr(objective, "observed", {}), **probing(step + 1)}
                metrics.write(step + 1, {**values, "learning_rate": rate, **rates, **norms, **seen})
            counter.set_postfix({name: f"{value:.3f}" for name, value in values.items()}, refresh=False)
            counter.update(1)
            due = writes and time.monotonic() - saved > SECONDS_BETWEEN_CHECKPOINTS
            due, ending = world.any_says(due, sigterm.noted)
            if due or ending:
                world.check_alike(objective)
                if writes:
                    checkpoint(out / STATE, step + 1, objective, optimiser)
                saved = time.monotonic()
            if ending:
                world.wait_for_all()  # one that ended earlier would have the one ended that saves
                sigterm.deliver()
    world.check_alike(objective)
    objective.to("cpu").eval()


def schedule(step: int, steps: int, warmup_ratio: float) -> float:
    """The learning rate's share at a step counted from 0: up in a line from 0, then down in a line to 0."""
    warmup = math.ceil(steps * warmup_ratio)
    if step < warmup:
        return step / warmup
    return max(0.0, (steps - step) / max(1, steps - warmup))


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices decay; biases and LayerNorms do not."""
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for parameter in module.parameters():
        if parameter.requires_grad:
            groups[parameter.ndim > 1].append(parameter)
    return [{"params": groups[True], "weight_decay": weight_decay}, {"params": groups[False], "weight_decay": 0.0}]


def checkpoint(folder: Path, step: int, objective: nn.Module, optimiser: torch.optim.Optimizer) -> None:
    """Save what `restore` needs, as a new folder that appears whole, and then drop the older one."""
    target, building = folder / f"{step:09d}", folder / "building"
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    state = {
        f"{number}.{name}": value
        for number, values in optimiser.state_dict()["state"].items()
        for name, value in values.items()
    }
    save_file(weights(objective), building / "weights.safetensors")
    save_file(state, building / "optimiser.safetensors")
    for file in (*building.iterdir(), building):
        flush(file)
    os.rename(building, target)
    flush(folder)
    for older in folder.iterdir():
        if older != target:
            shutil.rmtree(older)


def weights(module: nn.Module) -> dict[str, Tensor]:
    """What a module learns, by name; what two of its parts have in common stands once."""
    return {name: parameter.detach().contiguous() for name, parameter in module.named_parameters()}


def take_up(own: Mapping[str, nn.Parameter], found: Mapping[str, Tensor]) -> None:
    """Put weights into parameters of the same names and shapes."""
    if {name: value.shape for name, value in own.items()} != {name: value.shape for name, value in found.items()}:
        raise ValueError(f"expected the weights {', '.join(own)}, found {', '.join(found)}, or other shapes")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(found[name])


def restore(folder: Path, objective: nn.Module, optimiser: torch.optim.Optimizer) -> int:
    """Take up the newest checkpoint and return its step; 0 where there is none."""
    found = sorted(path for path in folder.glob("*") if path.name.isdigit())
    if not found:
        return 0
    take_up(dict(objective.named_parameters()), load_file(found[-1] / "weights.safetensors"))
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in load_file(found[-1] / "optimiser.safetensors").items():
        number, _, inner = name.partition(".")
        state.setdefault(int(number), {})[inner] = value
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
    return int(found[-1].name)


class Silence:
    """What a process writes that is not the first."""

    def write(self, step: int, values: dict[str, float]) -> None:
        """Nothing."""

    def __enter__(self) -> Silence:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


class Metrics:
    """JSON lines and TensorBoard; lines of steps that will be done again are dropped."""

    def __init__(self, folder: Path, first: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        path = folder / "metrics.jsonl"
        write_atomically(path, "".join(line for line in _lines(path) if json.loads(line)["step"] <= first))
        self._file = path.open("a")
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=first + 1)

    def write(self, step: int, values: dict[str, float]) -> None:
        """Log the values of a step."""
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()
        for name, value in values.items():
            self._board.add_scalar(name, value, step)

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()
        self._board.close()


def _lines(path: Path) -> Iterator[str]:
    """The whole lines of a log; one that a crash cut off is left out."""
    if path.exists():
        yield from (line for line in path.read_text().splitlines(keepends=True) if line.endswith("}\n"))
