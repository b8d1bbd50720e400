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
from safetensors.torch import save_file
from torch import Tensor, nn

from models.model_files import check_fit, is_finite, read_weights, some
from models.objective import Batch
from models.tokens import num_tokens
from storage.files import flush, write_atomically
from storage.settings import Settings
from storage.store.store import SCRATCH
from tasks.runtime import distributed
from tasks.runtime.device import choose_device
from tasks.runtime.leftovers import discard, is_intact, record
from tasks.runtime.progress import bar
from tasks.runtime.signals import DeferredSigterm
from tasks.session import print_line
from tasks.training.grad_cache import gradient_norms, gradients
from tasks.training.prefetch import prefetch

SECONDS_BETWEEN_CHECKPOINTS = 60.0
STATE = Path(SCRATCH) / "training"
WEIGHTS, OPTIMISER = "weights.safetensors", "optimiser.safetensors"
KEPT = 2  # checkpoints: should a disk damage the newest, the one before costs a minute of training, not all of it


class OptimisationSettings(Settings):
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
    """A loss, a gradient or a weight is infinite or not a number."""


Probe = Callable[[int], dict[str, float]]
"""What to log beside a step's losses, looked at after so many steps; {} for nothing."""


def fit(
    objective: nn.Module, batch_of: Callable[[int], Batch], steps: int, *, out: Path, settings: OptimisationSettings,
    seed: int, probing: Probe = lambda steps: {},
) -> None:  # fmt: skip
    """Train the objective in place for so many steps; `batch_of(step)` gives each step's batch, from `step` alone.

    The newest intact checkpoint that an earlier attempt saved below `out` is resumed from. Losses, gradient norms by
    part, tokens a second, what the objective observes and what `probing` finds go to `out/logs/metrics.jsonl` and to
    TensorBoard's files beside it. Of processes that train together only the first writes. Raises `Diverged` where a
    loss, a gradient or a weight is not finite. SIGTERM, in any of them, has all end their step and save a checkpoint
    before it does what it does.
    """
    device = choose_device()
    torch.use_deterministic_algorithms(device.type == "cpu")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # costs time, saves from nothing
    objective.to(device).train()
    groups = parameter_groups(objective, settings.weight_decay)
    optimiser = torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)
    first = restore(out, objective, optimiser)
    distributed.check_replicas_equal(objective)  # when all have read; the first process will replace what they read
    checkpoints, writes = time.monotonic(), distributed.rank() == 0
    with (
        MetricsLogger(out / "logs", first) if writes else NullLogger() as metrics,
        bar(what="training", unit="steps", total=steps, done=first, shown=writes) as counter,
        DeferredSigterm() as sigterm,
    ):
        if writes and not first and (probed := probing(0)):
            metrics.write(0, probed)
        coming = prefetch(batch_of, range(first, steps), ahead=device.type == "cuda")
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
            due = writes and time.monotonic() - checkpoints > SECONDS_BETWEEN_CHECKPOINTS
            due, ending = distributed.any_rank(due, sigterm.noted)
            if due or ending:
                distributed.check_replicas_equal(objective)
                must_be_finite(objective, step + 1, steps)
                if writes:
                    checkpoint(out, step + 1, objective, optimiser)
                checkpoints = time.monotonic()
            if ending:
                distributed.barrier()  # one that ended earlier would have the one ended that saves
                sigterm.deliver()
    distributed.check_replicas_equal(objective)
    must_be_finite(objective, steps, steps)
    objective.to("cpu").eval()


def must_be_finite(objective: nn.Module, step: int, steps: int) -> None:
    """Raise `Diverged` for weights that an update has made infinite or NaN: they are neither saved nor published."""
    if broken := [name for name, value in objective.named_parameters() if not is_finite(value.detach())]:
        raise Diverged(f"step {step} of {steps}: {some(broken)}: infinite or not a number; lower the learning rate")


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


def checkpoint(out: Path, step: int, objective: nn.Module, optimiser: torch.optim.Optimizer) -> None:
    """Save what `restore` needs as a new folder that appears complete, and keep the one before it, but no older ones.

    The folder is flushed, recorded and renamed, and only then are others deleted: whenever the process is killed, an
    intact checkpoint is left.
    """
    folder, building = out / STATE, out / STATE / "building"
    target = folder / f"{step:09d}"
    for left in (building, target):
        shutil.rmtree(left, ignore_errors=True)
    building.mkdir(parents=True)
    state = {
        f"{number}.{name}": value
        for number, values in optimiser.state_dict()["state"].items()
        for name, value in values.items()
    }
    save_file(weights(objective), building / WEIGHTS)
    save_file(state, building / OPTIMISER)
    for file in (*building.iterdir(), building):
        flush(file)
    record(out, str(STATE / target.name), at=building)
    os.rename(building, target)
    flush(folder)
    for older in checkpoints(out)[:-KEPT]:
        discard(out, str(STATE / older))


def checkpoints(out: Path) -> list[str]:
    """The names of the checkpoints below `out`, the oldest first."""
    return sorted(path.name for path in (out / STATE).glob("*") if path.name.isdigit())


def weights(module: nn.Module) -> dict[str, Tensor]:
    """What a module learns, by name; what two of its parts have in common stands once."""
    return {name: parameter.detach().contiguous() for name, parameter in module.named_parameters()}


def load_parameters(own: Mapping[str, nn.Parameter], found: Mapping[str, Tensor], path: Path) -> None:
    """Put the weights of a file into parameters of the same names and shapes; a ValueError where these differ."""
    check_fit(found, own, path, "these settings")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(found[name])


def restore(out: Path, objective: nn.Module, optimiser: torch.optim.Optimizer) -> int:
    """Load the newest intact checkpoint and return its step; 0 where there is none.

    Damaged ones are reported, and discarded when all processes have read.
    """
    good = newest_intact(out)
    damaged = [name for name in checkpoints(out) if good is None or name > good]
    if good is not None:
        _load(out / STATE / good, objective, optimiser)
    distributed.barrier()
    if damaged and distributed.rank() == 0:
        after = (
            f"the training resumes after step {int(good):,}" if good else "no other is left: the training starts anew"
        )
        print_line(f"{out.name}: the checkpoint of step {int(damaged[-1]):,} is damaged or incomplete; {after}")
        for name in damaged:
            discard(out, str(STATE / name))
    return int(good or 0)


def newest_intact(out: Path) -> str | None:
    """The name of the newest intact checkpoint below `out`, which is its step; None where there is none."""
    return next((name for name in reversed(checkpoints(out)) if is_intact(out, str(STATE / name))), None)


def _load(folder: Path, objective: nn.Module, optimiser: torch.optim.Optimizer) -> None:
    path = folder / WEIGHTS
    load_parameters(dict(objective.named_parameters()), read_weights(path), path)
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in read_weights(folder / OPTIMISER).items():
        number, _, inner = name.partition(".")
        state.setdefault(int(number), {})[inner] = value
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


class NullLogger:
    """What a process writes that is not the first."""

    def write(self, step: int, values: dict[str, float]) -> None:
        """Nothing."""

    def __enter__(self) -> NullLogger:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


class MetricsLogger:
    """JSON lines and TensorBoard; lines of steps that will be done again are dropped."""

    def __init__(self, folder: Path, first: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        path = folder / "metrics.jsonl"
        write_atomically(path, "".join(line for line in _lines(path) if 0 <= _step(line) <= first and first))
        self._file = path.open("a")
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=first + 1)

    def write(self, step: int, values: dict[str, float]) -> None:
        """Log the values of a step."""
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()
        for name, value in values.items():
            self._board.add_scalar(name, value, step)

    def __enter__(self) -> MetricsLogger:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()
        self._board.close()


def _lines(path: Path) -> Iterator[str]:
    """The complete lines of a log; one that a crash cut off is left out."""
    if path.exists():
        yield from (line for line in path.read_text(errors="replace").splitlines(keepends=True) if line.endswith("}\n"))


def _step(line: str) -> int:
    """The step of a line of the log; -1 for a line that is damaged."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError):
        return -1
