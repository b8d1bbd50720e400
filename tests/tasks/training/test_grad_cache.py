"""Gradients in chunks are those of the complete batch."""

import pytest
import torch
from torch import Tensor, nn

from models.objective import Batch, Losses, num_terms
from models.tokens import Tokenizer
from tasks.runtime import distributed
from tasks.training.grad_cache import gradients
from tasks.training.seeds import mix_seeds
from tests.tasks.training.small_objectives import KINDS, batches, objective

pytestmark = pytest.mark.usefixtures("on_one_thread")


def gradient(module: nn.Module, batch: Batch, chunk: int | None) -> tuple[Losses, dict[str, Tensor]]:
    module.zero_grad()
    losses = gradients(module, batch, chunk, (3, 5))
    return losses, {name: value.grad.clone() for name, value in module.named_parameters() if value.grad is not None}


def furthest(grads: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest difference, as a share of the largest gradient."""
    assert set(grads) == set(expected)
    largest = max(grad.abs().max().item() for grad in expected.values())
    assert largest > 1e-3
    return max((grads[name] - grad).abs().max().item() for name, grad in expected.items()) / largest


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_chunks_change_neither_losses_nor_gradients(kind: str, chunk: int, tokenizer: Tokenizer) -> None:
    model, batch = objective(kind, spread=0.05).train(), batches(kind, tokenizer)(0)

    losses, grads = gradient(model, batch, None)
    of_chunks, grads_of_chunks = gradient(model, batch, chunk)

    assert set(of_chunks) == set(losses)
    for name, loss in losses.items():
        assert of_chunks[name].item() == pytest.approx(loss.item(), abs=1e-6, rel=1e-6)
    assert furthest(grads_of_chunks, grads) < 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_with_dropout_are_a_direct_pass_under_the_same_seeds(kind: str, tokenizer: Tokenizer) -> None:
    model, batch = objective(kind, dropout=0.3).train(), batches(kind, tokenizer)(0)
    losses, grads = gradient(model, batch, 3)

    model.zero_grad()
    parts = [batch.rows(start, min(8, start + 3)) for start in (0, 3, 6)]
    passed = []
    for number, part in enumerate(parts):
        torch.manual_seed(mix_seeds(3, 5, number))
        passed.append(model.encode(part))
    vectors = tuple(torch.cat(part) for part in zip(*(vectors for vectors, _ in passed), strict=True))
    direct = dict(model.compare(vectors, batch))
    for part, (_, local) in zip(parts, passed, strict=True):
        for name, loss in local.items():
            direct[name] = direct.get(name, 0) + loss * num_terms(part, name) / num_terms(batch, name)
    sum(direct.values()).backward()

    for name, loss in direct.items():
        assert losses[name].item() == pytest.approx(loss.item(), abs=1e-6, rel=1e-6)
    expected = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    assert furthest(grads, expected) < 1e-6
    undropped = gradient(model.eval(), batch, 3)[0]
    assert any(abs(undropped[name].item() - loss.item()) > 1e-4 for name, loss in losses.items())


@pytest.mark.parametrize(("kind", "chunk", "passes"), [
    ("ar", None, 1), ("ar", 3, 3), ("ae", 1, 8), ("contrast", None, 1), ("contrast", 4, 3), ("contrast", 1, 15),
])  # fmt: skip
def test_no_forward_pass_is_discarded(kind: str, chunk: int | None, passes: int, tokenizer: Tokenizer) -> None:
    """Each chunk is encoded once; a contrast encodes all chunks but the first again, to propagate its gradients."""
    model, batch = objective(kind).train(), batches(kind, tokenizer)(0)

    assert encodings(model, batch, chunk) == passes


@pytest.mark.parametrize("kind", KINDS)
def test_a_process_with_one_chunk_encodes_it_once(
    kind: str, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two processes, with stand-ins for what the processes send each other."""
    monkeypatch.setattr(distributed, "size", lambda: 2)
    monkeypatch.setattr(distributed, "rank", lambda: 1)
    monkeypatch.setattr(distributed, "gather", lambda parts, rows: tuple(torch.cat([part, part]) for part in parts))
    monkeypatch.setattr(distributed, "sum_gradients", lambda module: None)
    monkeypatch.setattr(distributed, "sum_over_ranks", lambda values: values)

    assert encodings(objective(kind).train(), batches(kind, tokenizer)(0), None) == 1


def encodings(module: nn.Module, batch: Batch, chunk: int | None) -> int:
    """Return how many times a step encodes a chunk."""
    encode, sizes = module.encode, []

    def counted(part: Batch) -> object:
        sizes.append(len(part))
        return encode(part)

    module.encode = counted  # type: ignore[assignment]
    gradients(module, batch, chunk, (3, 5))
    return len(sizes)
