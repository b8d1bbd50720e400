"""Small objectives, their batches and their trainings, for tests of the loop and of its gradients."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models.objective import Batch
from models.papers.cot_mae import Pretraining, Settings, make_batch
from models.pretraining import RawBatch
from models.retrievers import objective as finetuning
from models.retrievers.examples import Examples
from models.retrievers.objective import Finetuning
from models.retrievers.retriever import Retriever
from models.retrievers.retriever_settings import RetrieverSettings
from models.retrievers.views.dense import DenseSettings
from models.row_random import RowRandom
from models.tokens import Tokenizer, pad
from tasks.training import loop
from tasks.training.loop import fit
from tasks.training.optimiser import OptimisationSettings
from tests.tiny import PIECES, start, tiny_tokenizer

FITTING = OptimisationSettings(
    learning_rate=3e-3, warmup_ratio=0.1, weight_decay=0.01, max_gradient_norm=1.0, chunk=None
)
KINDS = ["ar", "ae", "contrast"]
BatchOf = Callable[[int], Batch]


class BrokenOff(Exception):
    """Stands for a kill."""


class Breaking:
    """Batches that break off at some of their calls, counted from 1; `visited` has the step of each call."""

    def __init__(self, batch_of: BatchOf, *calls: int) -> None:
        self.visited: list[int] = []
        self._batch_of, self._calls = batch_of, calls

    def __call__(self, step: int) -> Batch:
        self.visited.append(step)
        if len(self.visited) in self._calls:
            raise BrokenOff
        return self._batch_of(step)


def break_off_twice(train: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Train until it breaks off, with a checkpoint after each step, and again without: what followed it is lost."""
    for seconds in (0.0, math.inf):
        monkeypatch.setattr(loop, "SECONDS_BETWEEN_CHECKPOINTS", seconds)
        with pytest.raises(BrokenOff):
            train()


def objective(kind: str, *, dropout: float = 0.0, spread: float = 0.0) -> nn.Module:
    inputs = start(dropout=dropout, spread=spread)
    if kind == "contrast":
        retriever = Retriever(inputs.encoder, RetrieverSettings(dense=DenseSettings(dim=None)), tiny_tokenizer())
        return Finetuning(retriever, finetuning.ObjectiveSettings(contrasts=["sum"], temperature=1.0))
    torch.manual_seed(1)
    return Pretraining(inputs, settings(kind))


def settings(kind: str) -> Settings:
    return Settings(
        decoder=kind, decoder_layers=1, window=3 if kind == "ar" else None, text_mask_rate=0.3,
        context_mask_rate=0.45 if kind == "ae" else None, symmetric=False, max_tokens=24, context_max_tokens=12,
    )  # fmt: skip


def batches(kind: str, tokenizer: Tokenizer, rows: int = 8) -> BatchOf:
    """A batch for every step, of random words."""

    def batch_of(step: int) -> Batch:
        random = np.random.default_rng((7, step))

        def texts(count: int, longest: int) -> list[list[int]]:
            return [random.integers(5, len(PIECES), size=random.integers(2, longest)).tolist() for _ in range(count)]

        if kind != "contrast":
            return make_batch(RawBatch(texts(rows, 30), texts(rows, 10)), tokenizer, settings(kind), RowRandom(7, step))
        excluded = torch.zeros(rows, rows * 2, dtype=torch.bool)
        excluded[0, 3] = excluded[rows - 1, 0] = True
        return Examples(pad(texts(rows, 8)), pad(texts(rows * 2, 20)), 2, excluded)

    return batch_of


def lines(out: Path) -> list[dict[str, float]]:
    """The metrics without what the clock says."""
    results = [json.loads(line) for line in (out / "logs" / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if not name.endswith("per_second")} for line in results]


def run(
    model: nn.Module,
    batch_of: BatchOf,
    steps: int,
    out: Path,
    *,
    fitting: OptimisationSettings = FITTING,
    seed: int = 3,
) -> dict[str, Tensor]:
    fit(model, batch_of, steps, out=out, settings=fitting, seed=seed)
    return {name: value.clone() for name, value in model.state_dict().items()}


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())
