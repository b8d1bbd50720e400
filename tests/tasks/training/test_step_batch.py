"""A process builds only the rows that it computes, and they are those of a single process."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.papers import cot_mae
from models.papers.cot_mae import Batch, make_batch
from models.pretraining import RawBatch
from models.row_random import RowRandom
from models.tokens import Tokenizer
from storage.store.store import Store
from tasks.pretraining.pretrain import pretrain
from tasks.runtime import distributed
from tasks.session import Execution, Session, session
from tasks.training.grad_cache import gradients
from tasks.training.step_batch import StepBatch, StepBatches, own_spans
from tests.tasks.pretraining import test_pretrain
from tests.tasks.training.small_objectives import objective, settings
from tests.tiny import PIECES

ROWS = 9
pytestmark = pytest.mark.usefixtures("store")


class Rows:
    """Builds rows of a step, and notes which."""

    def __init__(self, tokenizer: Tokenizer, kind: str = "ae") -> None:
        self.tokenizer, self.kind, self.built = tokenizer, kind, list[tuple[int, int]]()

    def __call__(self, step: int, start: int, stop: int) -> Batch:
        self.built.append((start, stop))
        random = np.random.default_rng(step)
        texts, contexts = (
            [random.integers(5, len(PIECES), size=random.integers(2, longest)).tolist() for _ in range(ROWS)]
            for longest in (30, 10)
        )
        raw = RawBatch(texts[start:stop], contexts[start:stop])
        return make_batch(raw, self.tokenizer, settings(self.kind), RowRandom(7, step, start))


@pytest.mark.parametrize(("size", "chunk"), [(1, 4), (2, 2), (3, 2), (3, None), (4, 5)])
def test_processes_build_disjoint_rows(
    size: int, chunk: int | None, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = Rows(tokenizer)(3, 0, ROWS)
    monkeypatch.setattr(distributed, "size", lambda: size)
    built: list[tuple[int, int]] = []
    for rank in range(size):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        rows = Rows(tokenizer)
        batch: Any = StepBatches(rows, ROWS, own_spans(ROWS, chunk))(3)
        assert len(batch) == ROWS
        built += rows.built
        for start, stop in rows.built:
            part, expected = batch.rows(start, stop), complete.rows(start, stop)
            width = part.text.ids.shape[1]
            assert torch.equal(part.text.ids, expected.text.ids[:, :width])
            assert not expected.text.mask[:, width:].any()
            assert torch.equal(part.text_labels, expected.text_labels[:, :width])

    assert [start for start, _ in built] == [0, *(stop for _, stop in built[:-1])]
    assert built[-1][1] == ROWS


def test_a_batch_that_passes_at_once_is_that_of_the_objective(tokenizer: Tokenizer) -> None:
    assert isinstance(StepBatches(Rows(tokenizer), ROWS, own_spans(ROWS, None))(0), cot_mae.Batch)


@pytest.mark.parametrize("kind", ["ar", "ae"])
def test_losses_and_gradients_are_those_of_the_complete_batch(kind: str, tokenizer: Tokenizer) -> None:
    module, rows = objective(kind, spread=0.05).train(), Rows(tokenizer, kind)
    batch = StepBatches(rows, ROWS, own_spans(ROWS, 4))(1)
    assert isinstance(batch, StepBatch)

    losses = gradients(module, batch, 4, (3, 5))
    chunked = {name: value.grad.clone() for name, value in module.named_parameters() if value.grad is not None}
    module.zero_grad()
    expected = gradients(module, rows(1, 0, ROWS), None, (3, 5))

    for name, loss in expected.items():
        assert losses[name].item() == pytest.approx(loss.item(), rel=1e-5)
    for name, value in module.named_parameters():
        if value.grad is not None:
            torch.testing.assert_close(chunked[name], value.grad, rtol=1e-3, atol=1e-5)
    assert batch.num_tokens() == int(sum(part.mask.sum() for part in (rows(1, 0, ROWS).text, rows(1, 0, ROWS).context)))


def test_equal_generators_give_equal_rows_wherever_they_begin() -> None:
    complete, part = RowRandom(5, 2), RowRandom(5, 2, first=3)
    for width in (1, 4, 7):
        assert (complete.bits(8, width)[3:6] == part.bits(3, width)).all()
    assert complete.shared() == part.shared()
    assert (complete.times(2).bits(16, 5)[6:] == part.times(2).bits(10, 5)).all()
    assert (complete.integers(np.arange(1, 9))[3:] == part.integers(np.arange(4, 9))).all()


def test_random_numbers_differ_by_seed_step_row_and_call_and_are_uniform() -> None:
    one = RowRandom(5, 2)
    first, second = one.uniform(500, 40), one.uniform(500, 40)
    others = [RowRandom(6, 2).uniform(500, 40), RowRandom(5, 3).uniform(500, 40)]
    numbers = np.concatenate([first, second, *others])

    assert len(np.unique(numbers)) == numbers.size
    assert abs(numbers.mean() - 0.5) < 5 / np.sqrt(12 * numbers.size)
    for rows, following in ((first[1:], first[:-1]), (first, second), (first, others[0]), (first, others[1])):
        assert abs(np.corrcoef(rows.ravel(), following.ravel())[0, 1]) < 5 / np.sqrt(rows.size)
    assert (np.bincount(RowRandom(1, 1).integers(np.full(60_000, 6))) > 9_500).all()


@pytest.mark.slow
def test_a_pretraining_has_the_same_bytes_with_workers(tmp_path: Path) -> None:
    hashes = []
    for workers in (0, 2):
        execution = Execution(workers=1, threads=1, device="cpu", batch_workers=workers)
        with session(Session(Store(tmp_path / str(workers)), execution)) as current:
            inputs = {"pairs": test_pretrain.given_pairs(), "start": test_pretrain.given_start()}
            fitting = {**test_pretrain.FITTING.model_dump(), "chunk": 3}
            artifact = pretrain(**inputs, settings=test_pretrain.settings(steps=5, fit=fitting))
            manifest = current.store.manifest(artifact.stage, artifact.key)
            assert manifest is not None
            hashes.append(manifest.hash)

    assert hashes[0] == hashes[1]
