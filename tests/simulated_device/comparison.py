"""A step of an objective on the CPU and on the simulated device."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from models.batch import Rows
from models.objective import Batch
from storage.store.store import Store
from tasks.runtime.device import Precision
from tasks.session import Execution, Session, session
from tasks.training.grad_cache import gradients
from tests.simulated_device.tensor import traffic

SEED = (3, 5)
Step = tuple[dict[str, float], dict[str, Tensor]]


def on_cpu(objective: nn.Module, batch: Batch, chunk: int | None) -> Step:
    """Return the losses and gradients of a step on the CPU."""
    with session(Session(Store(Path("unused")), Execution(workers=1, threads=1, device="cpu"))):
        losses = gradients(objective, batch, chunk, SEED)
    return {name: loss.item() for name, loss in losses.items()}, _gradients(objective)


def on_device(
    objective: nn.Module, batch: Batch, chunk: int | None, device: torch.device, precision: Precision | None = None
) -> Step:
    """Return the losses and gradients of a step on the simulated device; `traffic` counts only the step itself.

    As in a training, the batch is on the CPU, where its numbers of terms are known. On a GPU, PyTorch raises
    RuntimeError where the step waits for it.
    """
    objective = objective.to(device)
    traffic.clear()
    with _never_waiting(device):
        losses = gradients(objective, batch, chunk, SEED, precision)
    counted = dataclasses.replace(traffic, **{name: counts.copy() for name, counts in vars(traffic).items()})
    step = {name: loss.item() for name, loss in losses.items()}, _gradients(objective)
    vars(traffic).update(vars(counted))
    return step


@contextmanager
def _never_waiting(device: torch.device) -> Iterator[None]:
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")


def assert_moved_once(batch: Batch) -> None:
    """Check that a step with the complete batch has copied it to the device once, and nothing else."""
    sizes: list[int] = []

    def counted(part: Tensor) -> Tensor:
        sizes.append(part.numel() * part.element_size())
        return part

    assert isinstance(batch, Rows)
    batch._with_all(counted)
    assert set(traffic.to_device) == {"models/batch.py:moved"}
    assert traffic.to_device.total() == sum(sizes)


def assert_equal(step: Step, expected: Step, *, tolerance: float) -> None:
    """Check losses and gradients; a gradient's tolerance is a share of the greatest gradient."""
    assert set(step[0]) == set(expected[0])
    for name, loss in expected[0].items():
        assert step[0][name] == pytest.approx(loss, rel=tolerance, abs=tolerance), name
    assert set(step[1]) == set(expected[1])
    greatest = max(gradient.abs().max().item() for gradient in expected[1].values())
    for name, gradient in expected[1].items():
        assert (step[1][name] - gradient).abs().max().item() <= tolerance * greatest, name


def _gradients(module: nn.Module) -> dict[str, Tensor]:
    grads = {name: parameter.grad for name, parameter in module.named_parameters() if parameter.grad is not None}
    return {name: grad.cpu() for name, grad in grads.items()}
