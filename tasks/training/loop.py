"""The one training loop: AdamW, a linear schedule with warm-up, checkpoints that resume exactly.

Everything random in step s (data, masks, dropout) comes from generators seeded by (seed, s). A resumed run therefore
needs only weights, optimiser state and step to end with the weights of an unbroken one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from models.model_files import first_names, is_finite
from models.objective import Batch, Losses
from tasks.runtime import distributed
from tasks.runtime.ahead import made_ahead
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
from tasks.training.prefetch import num_batch_workers, prefetch
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
    with _deterministic(device):
        objective.to(device).train()
        if execution().compile:
            compile_layers(objective)
        training = _Training(objective, steps, out, settings, seed, frozen, device)
        training.run(batch_of, probe)
        training.end()
        objective.to("cpu").eval()


@contextlib.contextmanager
def _deterministic(device: torch.device) -> Iterator[None]:
    """Have PyTorch use deterministic algorithms on a CPU while a block runs."""
    deterministic: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(device.type == "cpu")
    deterministic.fill_uninitialized_memory = False  # no such memory is read, so filling it would only take time
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        deterministic.fill_uninitialized_memory = before[1]


class _Training:
    """The state of a training: objective, optimiser, averages of weights, and what was measured since the last log."""

    def __init__(
        self, objective: nn.Module, steps: int, out: Path, settings: OptimisationSettings, seed: int,
        frozen: Frozen | None, device: torch.device,
    ) -> None:  # fmt: skip
        self.objective, self.steps, self.out, self.settings, self.seed = objective, steps, out, settings, seed
        self.frozen, self.device, self.interval = frozen, device, Interval()
        self.optimiser = Optimiser(objective, settings, steps, device)
        self.average = WeightAverage(objective, settings.average, steps) if settings.average else None
        self.first = restore(out, objective, self.optimiser.adamw, self.optimiser.scaler, self.average)
        # This also waits until all processes have loaded what the first one will replace.
        distributed.check_replicas_equal(objective)
        self.last_saved, self.writes = time.monotonic(), distributed.rank() == 0

    def run(self, batch_of: Callable[[int], Batch], probe: Probe) -> None:
        """Make all steps that are left, with a log, a progress bar and checkpoints."""
        with (
            MetricsLogger(self.out / "logs", self.first) if self.writes else NullLogger() as metrics,
            bar(what="training", unit="steps", total=self.steps, done=self.first, shown=self.writes) as counter,
            DeferredSigterm() as sigterm,
            _batches(batch_of, range(self.first, self.steps), self.device) as batches,
        ):
            if self.writes and not self.first and (initial := probe(0)):
                metrics.write(0, initial)
            for step in range(self.first, self.steps):
                self.interval.begin()
                values, losses = self._step(step, batches)
                if values:
                    counter.set_postfix({name: f"{values[name]:.3f}" for name in losses}, refresh=False)
                if self.writes and (values := values | probe(step + 1)):
                    metrics.write(step + 1, values)
                counter.update(1)
                self._save_if_due(step + 1, sigterm)

    def _step(self, step: int, batches: Iterator[Batch]) -> tuple[dict[str, float], Losses]:
        """Make one step; return what is logged after it, {} for nothing, and its losses."""
        settings, optimiser, values = self.settings, self.optimiser, dict[str, float]()
        rate, batch = optimiser.begin(step), next(batches)
        scale = optimiser.scaler.scale
        losses = gradients(self.objective, batch, settings.chunk, (self.seed, step), settings.precision, scale)
        if self.frozen is not None:
            self.frozen.clear_gradients(self.objective, step)
        norms = optimiser.clip()
        self.interval.add(batch, losses, norms["gradient_norm"], may_skip=settings.precision == "float16")
        if logged := (step + 1) % execution().log_steps == 0 or step + 1 == self.steps:
            measured = {**losses, **norms, **getattr(self.objective, "observed", {})}
            values = self.interval.read(measured, losses, f"step {step + 1} of {self.steps}")
        optimiser.step()
        if self.average is not None:
            self.average.update(step + 1)
        if logged:
            values |= {"learning_rate": rate, **self.interval.rates()}
        return values, losses

    def _save_if_due(self, step: int, sigterm: DeferredSigterm) -> None:
        """Save a checkpoint where the last one is old, or before a SIGTERM in any process takes effect."""
        due = self.writes and time.monotonic() - self.last_saved > SECONDS_BETWEEN_CHECKPOINTS
        due, ending = distributed.any_rank(due, sigterm.noted)
        if due or ending:
            distributed.check_replicas_equal(self.objective)
            must_be_finite(self.objective, step, self.steps)
            if self.writes:
                optimiser = self.optimiser
                save_state(self.out, step, self.objective, optimiser.adamw, optimiser.scaler, self.average)
            self.last_saved = time.monotonic()
        if ending:
            distributed.barrier()  # a process that ends earlier would have the one ended that still saves
            sigterm.deliver()

    def end(self) -> None:
        """Replace the weights by their averages, if there are any. Raises `Diverged` where one is not finite."""
        if self.average is not None:
            self.average.apply()
        distributed.check_replicas_equal(self.objective)
        must_be_finite(self.objective, self.steps, self.steps)


def _batches(
    batch_of: Callable[[int], Batch], steps: range, device: torch.device
) -> AbstractContextManager[Iterator[Batch]]:
    """Return the batches of steps, which are built ahead of time on a GPU, or where workers are requested."""
    on_gpu = device.type == "cuda"
    if isinstance(batch_of, StepBatches):
        return prefetch(batch_of, steps, workers=num_batch_workers(device), pinned=on_gpu)
    return made_ahead(map(batch_of, steps)) if on_gpu else prefetch(batch_of, steps, workers=0)


def must_be_finite(objective: nn.Module, step: int, steps: int) -> None:
    """Raise `Diverged` where an update has made weights infinite or NaN; they are neither saved nor published."""
    if broken := [name for name, value in objective.named_parameters() if not is_finite(value.detach())]:
        raise Diverged(
            f"step {step} of {steps}: {first_names(broken)}: infinite or not a number; lower the learning rate"
        )
