"""Steps of trainings with the true shapes: width and depth of the backbone, lengths, and the chunk if the machine can.

Weights and tokens are random. One chunk and then two run on the device of the execution; all further chunks of a step
take as long as the second. A smaller chunk replaces the recipe's where memory or time do not suffice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flows.plan.costs import CostEstimate, cost_key, costs_of_models
from tasks.estimates.capacity import Capacity, TrainingStep
from tasks.estimates.memory import TrainingMemory
from tasks.runtime.device import choose_device, default_precision
from tasks.session import Done
from tasks.training.grad_cache import gradients
from tasks.training.optimiser import OptimisationSettings

STAGES = ("pretrain", "train", "train_teacher")
GPU_TURNS = 4


@dataclass(frozen=True)
class TrueStep:
    """The measurements of a training step with the true shapes, extrapolated to the batch."""

    stage: str
    round: str
    chunk: int
    """Rows that were in memory at a time."""
    rows: int
    """Rows of a step."""
    seconds: float
    """The seconds of a step."""
    counted_bytes: int
    """The peak memory of a step with this chunk by the formula of `plan --gpu`."""
    hours: float | None
    """The hours of all steps; None where their number is not known."""


@dataclass(frozen=True)
class _Work:
    """A training of the recipe."""

    memory: TrainingMemory
    step: TrainingStep
    batch: int
    fit: OptimisationSettings


class TrueShapes:
    """Measures the trainings of a recipe; equal trainings are measured once."""

    def __init__(
        self, estimate: CostEstimate, memory: int, limit: float, report: Callable[[str], None] = lambda line: None
    ) -> None:
        """`memory` is what a step may take in bytes, `limit` how many seconds its measurement takes at most.

        `report` prints a line before each measurement.
        """
        self.estimate, self.memory, self.limit, self.report = estimate, memory, limit, report
        self.capacity, self.teacher_capacity = (
            Capacity(costs, default=default_precision(choose_device()))
            for costs in costs_of_models(estimate.recipe, with_dropout=True)
        )
        self._measured: dict[str, tuple[int, float, int]] = {}

    def of(self, steps: Sequence[Done]) -> Iterator[TrueStep | str]:
        """Yield a measurement of each training, or a line that says why there is none."""
        for step in steps:
            if step.stage in STAGES:
                yield self._of(step)

    def _of(self, step: Done) -> TrueStep | str:
        settings: Any = self._settings(step)
        once = cost_key(settings)
        work = self._work(step, settings)
        total, name = work.batch * work.memory.rows_per_text, f"{step.stage} {step.round}".strip()
        if once not in self._measured:
            largest = work.memory.largest_chunk(work.batch, self.memory)
            if largest is None:
                return f"{name}: not even one row of the true shapes fits into the memory of this machine"
            self.report(f"{name}: a step with the true shapes, which takes minutes on a CPU …")
            self._measured[once] = self._measure(work, min(largest, work.fit.chunk or total))
        chunk, seconds, peak = self._measured[once]
        number = self.estimate.number(step)
        hours = None if number is None else seconds * -(-number // work.batch) / 3600
        return TrueStep(step.stage, step.round, chunk, total, seconds, peak, hours)

    def _settings(self, step: Done) -> Any:
        recipe = self.estimate.recipe
        if step.stage == "train_teacher":
            return recipe.teacher and recipe.teacher.train
        return recipe.pretrain if step.stage == "pretrain" else self.estimate.training(step)

    def _work(self, step: Done, settings: Any) -> _Work:
        if step.stage == "pretrain":
            built = self.capacity.pretraining_step(settings)
            return _Work(self.capacity.pretraining(settings), built, settings.batch, settings.fit)
        if step.stage == "train":
            built = self.capacity.training_step(settings)
            return _Work(self.capacity.training(settings), built, settings.batch_queries, settings.fit)
        built = self.teacher_capacity.teaching_step(settings)
        return _Work(self.teacher_capacity.teaching(settings), built, settings.batch_queries, settings.fit)

    def _measure(self, work: _Work, chunk: int) -> tuple[int, float, int]:
        """Return the chunk that fits into the time, the seconds of a step, and its memory by the formula."""
        objective = work.step.objective.to(choose_device()).train()
        try:
            return self._measured_here(work, chunk)
        finally:
            objective.to("cpu")  # the next training may share its encoder, whose memory is counted on the CPU

    def _measured_here(self, work: _Work, chunk: int) -> tuple[int, float, int]:
        least = work.memory.rows_per_text
        first = _seconds(work, texts=1, chunk=None)  # the first step of a process is slow
        if first > self.limit:  # as in bfloat16 on a CPU that only emulates it
            return least, first * work.batch, work.memory.peak(work.batch, least)
        one_text = first if first > self.limit / 4 else _seconds(work, texts=1, chunk=None)
        texts = max(1, min(chunk // least, int(self.limit / 4 / one_text)))
        chunk, total = texts * least, work.batch * least
        one = _seconds(work, texts, chunk=None)
        further = max(0.0, _seconds(work, 2 * texts, chunk) - one)
        seconds = one + (total / chunk - 1) * further
        return chunk, seconds, work.memory.peak(work.batch, chunk)


def _seconds(work: _Work, texts: int, chunk: int | None) -> float:
    """Return the seconds of the gradients of a batch with a number of texts.

    On a GPU it is the fastest of some turns: the first with a shape takes memory and chooses kernels, often for longer
    than it computes.
    """
    turns = 1 if choose_device().type == "cpu" else GPU_TURNS
    return min(_turn(work, texts, chunk) for _ in range(turns))


def _turn(work: _Work, texts: int, chunk: int | None) -> float:
    objective, batch = work.step.objective, work.step.batch_of(texts)
    objective.zero_grad(set_to_none=True)
    started = time.perf_counter()
    losses = gradients(objective, batch, chunk, (0, 0), work.fit.precision)
    for loss in losses.values():
        loss.item()  # waits for a GPU
    return time.perf_counter() - started
