"""The one training loop: AdamW, a linear schedule with warm-up, checkpoints that resume exactly.

Everything random in step s (data, masks, dropout) comes from generators seeded by (seed, s). A resumed run therefore
needs only weights, optimiser state and step to end with the weights of an unbroken one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import nn

from models.model_files import first_names, is_finite
from models.objective import Batch
from models.tokens import num_tokens
from storage.settings import Settings
from tasks.runtime import distributed
from tasks.runtime.device import choose_device
from tasks.runtime.progress import bar
from tasks.runtime.signals import DeferredSigterm
from tasks.training.checkpoints import restore, save_state
from tasks.training.grad_cache import gradient_norms, gradients
from tasks.training.metrics_log import MetricsLogger, NullLogger
from tasks.training.prefetch import num_batch_workers, prefetch, prefetch_in_thread
from tasks.training.step_batch import StepBatch, StepBatches

SECONDS_BETWEEN_CHECKPOINTS = 60.0


class OptimisationSettings(Settings):
    """The optimiser's settings, and how much of a batch passes through the model at a time."""

    learning_rate: float = Field(gt=0)
    warmup_ratio: float = Field(ge=0, le=1)
    """Share of the steps in which the learning rate rises linearly from 0; then it falls linearly to 0."""
    weight_decay: float = Field(ge=0)
    """Of all parameters but biases and LayerNorms."""
    max_gradient_norm: float | None = Field(gt=0)
    """Gradients with a greater norm are scaled down to it; null for no clipping."""
    chunk: int | None = Field(gt=0)
    """Rows that pass through the model at a time; null for the complete batch. The gradients are the same."""


class Diverged(Exception):
    """A loss, a gradient or a weight is infinite or not a number."""


Probe = Callable[[int], dict[str, float]]
"""Returns what else to log after a number of steps; {} for nothing."""


def fit(
    objective: nn.Module, batch_of: Callable[[int], Batch], steps: int, *, out: Path, settings: OptimisationSettings,
    seed: int, probe: Probe = lambda steps: {},
) -> None:  # fmt: skip
    """Train the objective in place; `batch_of(step)` returns the batch of a step, which depends on `step` only.

    Resumes from the newest intact checkpoint below `out`. Losses, gradient norms by part, tokens per second, what the
    objective observes and what `probe` returns are logged to `out/logs/metrics.jsonl` and to TensorBoard's files next
    to it. Of several processes only the first writes. Raises `Diverged` where a loss, a gradient or a weight is not
    finite. On SIGTERM in any process all complete their step and save a checkpoint before the signal takes effect.
    """
    device = choose_device()
    torch.use_deterministic_algorithms(device.type == "cpu")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # costs time, saves from nothing
    objective.to(device).train()
    groups = parameter_groups(objective, settings.weight_decay)
    optimiser = torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)
    first = restore(out, objective, optimiser)
    distributed.check_replicas_equal(objective)  # also waits until all have loaded what the first process will replace
    last_saved, writes = time.monotonic(), distributed.rank() == 0
    with (
        MetricsLogger(out / "logs", first) if writes else NullLogger() as metrics,
        bar(what="training", unit="steps", total=steps, done=first, shown=writes) as counter,
        DeferredSigterm() as sigterm,
        _batches(batch_of, range(first, steps), device) as batches,
    ):
        if writes and not first and (initial := probe(0)):
            metrics.write(0, initial)
        for step in range(first, steps):
            started, rate = time.monotonic(), settings.learning_rate * schedule(step, steps, settings.warmup_ratio)
            for group in optimiser.param_groups:
                group["lr"] = rate
            batch = next(batches)
            tokens = batch.num_tokens() if isinstance(batch, StepBatch) else num_tokens(batch)
            batch = batch.to(device)
            losses = gradients(objective, batch, settings.chunk, (seed, step))
            values = {name: loss.item() for name, loss in losses.items()}
            norms = gradient_norms(objective)
            norm = nn.utils.clip_grad_norm_(objective.parameters(), settings.max_gradient_norm or math.inf).item()
            if not all(math.isfinite(value) for value in (*values.values(), norm)):
                measured = f"the losses are {values}, the gradient norm is {norm}"
                raise Diverged(f"step {step + 1} of {steps}: {measured}; lower the learning rate")
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            seconds = time.monotonic() - started
            rates = {
                "rows_per_second": len(batch) / seconds,
                "tokens_per_second": tokens / seconds,
                "gradient_norm": norm,
            }
            if writes:
                observed = {**getattr(objective, "observed", {}), **probe(step + 1)}
                metrics.write(step + 1, {**values, "learning_rate": rate, **rates, **norms, **observed})
            counter.set_postfix({name: f"{value:.3f}" for name, value in values.items()}, refresh=False)
            counter.update(1)
            checkpoint_due = writes and time.monotonic() - last_saved > SECONDS_BETWEEN_CHECKPOINTS
            checkpoint_due, ending = distributed.any_rank(checkpoint_due, sigterm.noted)
            if checkpoint_due or ending:
                distributed.check_replicas_equal(objective)
                must_be_finite(objective, step + 1, steps)
                if writes:
                    save_state(out, step + 1, objective, optimiser)
                last_saved = time.monotonic()
            if ending:
                distributed.barrier()  # a process that ends earlier would have the one ended that still saves
                sigterm.deliver()
    distributed.check_replicas_equal(objective)
    must_be_finite(objective, steps, steps)
    objective.to("cpu").eval()


def _batches(
    batch_of: Callable[[int], Batch], steps: range, device: torch.device
) -> AbstractContextManager[Iterator[Batch]]:
    """Return the batches of steps, which are built ahead of time on a GPU, or where workers are requested."""
    on_gpu = device.type == "cuda"
    if isinstance(batch_of, StepBatches):
        return prefetch(batch_of, steps, workers=num_batch_workers(device), pinned=on_gpu)
    return prefetch_in_thread(batch_of, steps) if on_gpu else prefetch(batch_of, steps, workers=0)


def must_be_finite(objective: nn.Module, step: int, steps: int) -> None:
    """Raise `Diverged` where an update has made weights infinite or NaN; they are neither saved nor published."""
    if broken := [name for name, value in objective.named_parameters() if not is_finite(value.detach())]:
        raise Diverged(
            f"step {step} of {steps}: {first_names(broken)}: infinite or not a number; lower the learning rate"
        )


def schedule(step: int, steps: int, warmup_ratio: float) -> float:
    """Return the share of the learning rate at a step counted from 0: a linear rise from 0, then a linear fall."""
    warmup = math.ceil(steps * warmup_ratio)
    if step < warmup:
        return step / warmup
    return max(0.0, (steps - step) / max(1, steps - warmup))


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return the parameter groups of an optimiser: matrices with weight decay; biases and LayerNorms without."""
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for parameter in module.parameters():
        if parameter.requires_grad:
            groups[parameter.ndim > 1].append(parameter)
    return [{"params": groups[True], "weight_decay": weight_decay}, {"params": groups[False], "weight_decay": 0.0}]
