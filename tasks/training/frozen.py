"""Parameters that keep their values in the first steps of a training, so that new heads are trained before them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import nn

from models.retrievers.bi_encoder import DenseEncoder
from storage.errors import UserError


@dataclass(frozen=True)
class Frozen:
    """The parameters, and the number of steps in which they are frozen."""

    parameters: Sequence[nn.Parameter]
    steps: int
    setting: str
    """The recipe's setting, for messages."""

    def clear_gradients(self, objective: nn.Module, step: int) -> None:
        """Remove the gradients of the parameters in a step, counted from 0, in which they are frozen.

        AdamW leaves a parameter without a gradient as it is, also its averages and its weight decay. Raises UserError
        if no parameter of the objective has another gradient.
        """
        if step >= self.steps:
            return
        for parameter in self.parameters:
            parameter.grad = None
        if not _have_gradients(objective.parameters()):
            raise UserError(f"{self.setting}: the objective trains no head; leave the setting out")


def frozen_encoders(encoder: DenseEncoder, steps: int | None, setting: str) -> Frozen | None:
    """Return the encoders without their vocabulary heads, frozen for a number of steps; None for no step."""
    if steps is None:
        return None
    parts = (encoder.passage.encoder, encoder.query.encoder)
    return Frozen([parameter for part in parts for parameter in part.parameters()], steps, setting)


def _have_gradients(parameters: Iterable[nn.Parameter]) -> bool:
    return any(parameter.grad is not None for parameter in parameters)
