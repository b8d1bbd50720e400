"""The steps between two lines of a training's log: what is measured on the device, and read from it once."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

import torch
from torch import Tensor

from models.objective import Batch, Losses
from models.tokens import num_tokens
from tasks.training.step_batch import StepBatch

SUM, SKIPPED = "sum of losses and norms", "skipped_steps"
LOSS_SCALE, LEAST_SCALE = "loss_scale", 2.0**-16


class Diverged(Exception):
    """A loss, a gradient or a weight is infinite or not a number."""


class Interval:
    """Rows, tokens and time since the last line of the log, and whether all losses and gradients were finite."""

    _started: float | None
    _rows: int
    _tokens: int
    _sums: list[Tensor]
    _skipped: list[Tensor]

    def __init__(self) -> None:
        self._restart()

    def begin(self) -> None:
        """Start the clock if this is the first step of the interval."""
        self._started = self._started or time.monotonic()

    def add(self, batch: Batch, losses: Losses, norm: Tensor, *, may_skip: bool) -> None:
        """Count a step; `may_skip` says that an infinite gradient only skips its update, as in float16."""
        tokens = batch.num_tokens() if isinstance(batch, StepBatch) else num_tokens(batch)
        self._rows, self._tokens = self._rows + len(batch), self._tokens + tokens
        terms = [loss.detach().float() for loss in losses.values()]
        self._sums.append(torch.stack(terms if may_skip else [*terms, norm.float()]).sum())
        if may_skip:
            self._skipped.append(~norm.isfinite())

    def read(self, values: Mapping[str, Tensor], losses: Losses, where: str) -> dict[str, float]:
        """Return values of the device as numbers, transferred together; steps that float16 skipped are counted too.

        Raises `Diverged` where a loss or a gradient norm of the interval was not finite. In float16 it is also raised
        where the loss scale shrinks and shrinks, since every gradient is infinite.
        """
        skipped = {SKIPPED: torch.stack(self._skipped).sum()} if self._skipped else {}
        named = {**values, **skipped, SUM: torch.stack(self._sums).sum()}
        numbers = torch.stack([value.detach().double() for value in named.values()]).tolist()
        read = dict(zip(named, numbers, strict=True))
        if not math.isfinite(read.pop(SUM)) or read.get(LOSS_SCALE, 1.0) < LEAST_SCALE:
            of_losses = {name: read[name] for name in losses}
            measured = f"the losses are {of_losses}, the gradient norm is {read['gradient_norm']}"
            raise Diverged(f"{where}: {measured}; lower the learning rate")
        return read

    def rates(self) -> dict[str, float]:
        """Return rows and tokens per second of the interval, and begin the next."""
        seconds = time.monotonic() - (self._started or 0.0)
        rates = {"rows_per_second": self._rows / seconds, "tokens_per_second": self._tokens / seconds}
        self._restart()
        return rates

    def _restart(self) -> None:
        self._started, self._rows, self._tokens, self._sums, self._skipped = None, 0, 0, [], []
