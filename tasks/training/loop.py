"""The one training loop: AdamW, a linear schedule with warm-up, checkpoints that resume exactly.

Everything random in step s (data, masks, dropout) comes from generators seeded by (seed, s). A resumed run therefore
needs only weights, optimiser state and step to end with the weights of an unbroken one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch import nn

from models.model_files import first_names, is_finite
from models.objective import Batch
from tasks.runtime import distributed
from tasks.runtime.device import choose_device
from tasks.runtime.progress import bar
from tasks.runtime.signals import DeferredSigterm
from tasks.session import execution
from tasks.training.averaging import WeightAverage
from tasks.training.checkpoints import restore, save_state
from tasks.training.compilation import compile_layers
from tasks.training.frozen import Frozen
from tasks.training.grad_cache import gradients
from tasks.training.interval import Diverged, Interval
from tasks.training.metrics_log import MetricsLogger, NullLogger
from tasks.training.optimiser import OptimisationSettings, Optimiser
from tasks.training.prefetch import num_batch_workers, prefetch, prefetch_in_thread
from tasks.training.step_batch import StepBatches

SECONDS_BETWEEN_CHECKPOINTS = 60.0


Probe = Callable[[int], dict[str, float]]
"""Returns what else to log after a number of steps; {} for nothing."""


def fit(
    objective: nn.Module, batch_of: Callable[[int], Batch], steps: int, *, out: Path, settings: OptimisationSettings,
    seed: int, probe: Probe = lambda steps: {}, frozen: Frozen | None = None,
) -> None:  # fmt: skip
    """Train the objective in place; `batch_of(step)` returns the batch of a step, which depends on `step` only.

    `frozen` parameters keep their values in the first steps. With `settings.average` the objective ends with averages
    of its weights; probes and losses are those of the weights that are trained.

    Resumes from the newest intact checkpoint below `out`. Losses, gradient norms by part, tokens per second, what the
    objective observes and what `probe` returns are logged to `out/logs/metrics.jsonl` and to TensorBoard's files next
    to it, every `execution.log_steps` steps. Only then are numbers read from the device, all of them together. Of
    several processes only the first writes. Raises `Diverged` at the next logged step where a loss or a gradient is not
    finite, and before a checkpoint is saved with weights that are not finite. On SIGTERM in any process all complete
    their step and save a checkpoint before the signal takes effect.
    """
    device = choose_device()
    torch.use_deterministic_algorithms(device.type == "cpu")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # costs time, saves from nothing
    objective.to(device).train()
    if execution().compile:
        compile_layers(objective)
    optimiser = Optimiser(objective, settings, steps, device)
    average = WeightAverage(objective, settings.average, steps) if settings.average else None
    first = restore(out, objective, optimiser.adamw, optimiser.scaler, average)
    distributed.check_replicas_equal(objective)  # also waits until all have loaded what the first process will replace
    last_saved, writes, interval = time.monotonic(), distributed.rank() == 0, Interval()
    with (
        MetricsLogger(out / "logs", first) if writes else NullLogger() as metrics,
        bar(what="training", unit="steps", total=steps, done=first, shown=writes) as counter,
        DeferredSigterm() as sigterm,
        _batches(batch_of, range(first, steps), device) as batches,
    ):
        if writes and not first and (initial := probe(0)):
            metrics.write(0, initial)
        for step in range(first, steps):
            interval.begin()
            rate, batch = optimiser.begin(step), next(batches)
            losses = gradients(
                objective, batch, settings.chunk, (seed, step), settings.precision, optimiser.scaler.scale
            )
            if frozen is not None:
                frozen.clear_gradients(objective, step)
            norms = optimiser.clip()
            interval.add(batch, losses, norms["gradient_norm"], may_skip=settings.precision == "float16")
            logged = (step + 1) % execution().log_steps == 0 or step + 1 == steps
            values: dict[str, float] = {}
            if logged:
                values = interval.read({**losses, **norms, **getattr(objective, "observed", {})})
                interval.check(values, losses, f"step {step + 1} of {steps}")
            optimiser.step()
            if average is not None:
                average.update(step + 1)
            if logged:
                values |= {"learning_rate": rate, **interval.rates()}
                counter.set_postfix({name: f"{values[name]:.3f}" for name in losses}, refresh=False)
            if writes and (values := values | probe(step + 1)):
                metrics.write(step + 1, values)
            counter.update(1)
            checkpoint_due = writes and time.monotonic() - last_saved > SECONDS_BETWEEN_CHECKPOINTS
            checkpoint_due, ending = distributed.any_rank(checkpoint_due, sigterm.noted)
            if checkpoint_due or ending:
                distributed.check_replicas_equal(objective)
                must_be_finite(objective, step + 1, steps)
                if writes:
                    save_state(out, step + 1, objective, optimiser.adamw, optimiser.scaler, average)
                last_saved = time.monotonic()
            if ending:
                distributed.barrier()  # a process that ends earlier would have the one ended that still saves
                sigterm.deliver()
    if average is not None:
        average.apply()
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
