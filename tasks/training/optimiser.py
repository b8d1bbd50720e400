"""The optimiser of every training: AdamW, a linear schedule with warm-up, clipping, and loss scaling for float16."""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from models.settings import omitted_at
from storage.settings import Settings
from tasks.runtime.device import Precision
from tasks.training.averaging import Average
from tasks.training.interval import LOSS_SCALE


class OptimisationSettings(Settings):
    """The optimiser's settings, and how a batch passes through the model."""

    learning_rate: float = Field(gt=0)
    warmup_ratio: float = Field(ge=0, le=1)
    """Share of the steps in which the learning rate rises linearly from 0; then it falls linearly to 0."""
    weight_decay: float = Field(ge=0)
    """The weight decay of all parameters but biases and LayerNorms."""
    max_gradient_norm: float | None = Field(gt=0)
    """Gradients with a greater norm are scaled down to it; null for no clipping."""
    chunk: int | None = Field(gt=0)
    """Rows that pass through the model at a time; null for the complete batch. The gradients are the same."""
    precision: Annotated[Precision | None, omitted_at(None)] = None
    """The number format of the layers' products; weights, losses and the optimiser are in float32. Null, as before this
    setting, is bfloat16 on a GPU and float32 on a CPU."""
    average: Annotated[Average | None, omitted_at(None)] = None
    """Replace the weights at the end of the training by an average of those during it; null for the last weights."""


class Optimiser:
    """AdamW over the parameters of an objective, with the schedule and the gradient scaler of a training."""

    def __init__(self, objective: nn.Module, settings: OptimisationSettings, steps: int, device: torch.device) -> None:
        self.objective, self.settings, self.steps = objective, settings, steps
        groups = parameter_groups(objective, settings.weight_decay)
        self.adamw = torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)
        self.scaler = torch.amp.GradScaler(device.type, enabled=settings.precision == "float16")
        """Scales losses, so that small gradients do not become 0 in float16; it does nothing in other precisions."""

    def begin(self, step: int) -> float:
        """Set the learning rate of a step, counted from 0, and return it."""
        rate = self.settings.learning_rate * schedule(step, self.steps, self.settings.warmup_ratio)
        for group in self.adamw.param_groups:
            group["lr"] = rate
        return rate

    def clip(self) -> dict[str, Tensor]:
        """Undo the scaling of the gradients and clip them; return their norms before clipping, and the scale."""
        self.scaler.unscale_(self.adamw)
        norms = gradient_norms(self.objective)
        norm = nn.utils.clip_grad_norm_(self.objective.parameters(), self.settings.max_gradient_norm or math.inf)
        scale = {LOSS_SCALE: self.scaler.scale(torch.ones_like(norm))} if self.scaler.is_enabled() else {}
        return {**norms, "gradient_norm": norm, **scale}

    def step(self) -> None:
        """Update the weights and clear the gradients; in float16 a step with infinite gradients is left out."""
        self.scaler.step(self.adamw)
        self.scaler.update()
        self.adamw.zero_grad(set_to_none=True)


def gradient_norms(objective: nn.Module) -> dict[str, Tensor]:
    """Return the gradient norm of each part of an objective, such as encoder and decoder; {} for a single part."""
    parts: dict[str, list[Tensor]] = {}
    for name, parameter in objective.named_parameters():
        if parameter.grad is not None:
            parts.setdefault(name.partition(".")[0], []).append(parameter.grad)
    if len(parts) < 2:
        return {}
    return {f"gradient_norm_{part}": nn.utils.get_total_norm(gradients) for part, gradients in parts.items()}


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
