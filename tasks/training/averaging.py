"""Averages of the weights of a training, which replace the weights at its end.

An exponential moving average (Polyak and Juditsky 1992; with a constant decay as in Tarvainen and Valpola 2017, Mean
Teachers) follows every step: a = d a + (1 - d) w, from the initial weights. The mean of the last checkpoints (Izmailov
et al. 2018, Averaging Weights Leads to Wider Optima; Vaswani et al. 2017, section 6.1) takes the weights after the last
step, and after every so many steps before it.

Averages are in float32. They are saved with each checkpoint of the training, so a resumed training ends with the same.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from models.settings import omitted_at
from storage.errors import UserError
from storage.settings import Settings


class Average(Settings):
    """The weights that are averaged: all with an exponentially falling weight, or those of the last checkpoints."""

    decay: Annotated[float | None, Field(gt=0, lt=1), omitted_at(None)] = None
    """The decay of an exponential moving average, such as 0.999: about the last 1 / (1 - decay) steps count."""
    last: Annotated[int | None, Field(gt=1), omitted_at(None)] = None
    """Instead of a decay: the number of checkpoints, the last of which is the end of the training."""
    every: Annotated[int | None, Field(gt=0), omitted_at(None)] = None
    """The steps between two of these checkpoints."""

    @model_validator(mode="after")
    def _one_kind(self) -> Average:
        if (self.decay is None) == (self.last is None) or (self.last is None) != (self.every is None):
            raise ValueError("give either decay, or last and every")
        return self

    def check(self, steps: int) -> None:
        """Raise ValueError if a training of some steps has fewer checkpoints than are averaged."""
        least = 1 + ((self.last or 1) - 1) * (self.every or 1)
        if steps < least:
            raise ValueError(f"fit.average: {self.last} checkpoints need {least} steps or more, found {steps}")


class WeightAverage:
    """The average of the parameters of an objective during a training of some steps."""

    def __init__(self, objective: nn.Module, settings: Average, steps: int) -> None:
        self.parameters, self.settings, self.steps = dict(objective.named_parameters()), settings, steps
        try:
            settings.check(steps)
        except ValueError as error:
            raise UserError(str(error)) from None
        begins_empty = settings.decay is None
        self.values: dict[str, Tensor] = {
            name: torch.zeros_like(value) if begins_empty else value.detach().clone()
            for name, value in self.parameters.items()
        }

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the weights after `step` steps."""
        weight = self._weight(step)
        if weight is None:
            return
        for name, value in self.values.items():
            if self.settings.decay is None:
                value.add_(self.parameters[name], alpha=weight)
            else:
                value.lerp_(self.parameters[name], weight)

    def _weight(self, step: int) -> float | None:
        """Return the weight of a step's parameters in the average; None for a step that is not averaged."""
        if self.settings.decay is not None:
            return 1 - self.settings.decay
        last, every = self.settings.last or 1, self.settings.every or 1
        before_end = self.steps - step
        return 1 / last if before_end % every == 0 and before_end // every < last else None

    @torch.no_grad()
    def load(self, values: dict[str, Tensor]) -> None:
        """Continue with the average of a checkpoint."""
        for name, value in self.values.items():
            value.copy_(values[name])

    @torch.no_grad()
    def apply(self) -> None:
        """Replace the weights by their average."""
        for name, parameter in self.parameters.items():
            parameter.copy_(self.values[name])
