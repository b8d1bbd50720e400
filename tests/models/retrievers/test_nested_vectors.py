"""Nested dimensions and left-out passages against their definitions, query by query."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from models.representation import Representation
from models.retrievers.bi_encoder import DenseEncoder
from models.retrievers.came import Competition
from models.retrievers.nested_vectors import truncated
from models.retrievers.objective import Distillation, Finetuning, ObjectiveSettings
from models.retrievers.retriever import Retriever
from models.retrievers.retriever_settings import RetrieverSettings
from models.retrievers.views.dense import DenseSettings
from tasks.training.grad_cache import gradients
from tests.models.retrievers.test_objective import examples, exclusions
from tests.tiny import tiny_bert, tiny_retriever, tiny_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread", "store")


def dense_retriever(*, normalise: bool) -> Retriever:
    encoder = DenseEncoder(tiny_bert(spread=0.2), "mean")
    return Retriever(
        encoder, RetrieverSettings(dense=DenseSettings(dim=None, normalise=normalise)), tiny_tokenizer()
    ).eval()


def slow_losses(
    queries: Tensor, passages: Tensor, group: int, temperature: float, excluded: Tensor, margin: float | None
) -> float:
    """InfoNCE of each query in double precision, one exponential at a time; `excluded` are not negatives."""
    losses = []
    for number, query in enumerate(queries.double()):
        scores = [float(query @ passage) for passage in passages.double()]
        positive = number * group
        kept = [
            score for other, score in enumerate(scores)
            if other == positive
            or not (excluded[number, other] or (margin is not None and score > scores[positive] + margin))
        ]  # fmt: skip
        total = sum(math.exp((score - scores[positive]) / temperature) for score in kept)
        losses.append(math.log(total))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("margin", [None, 0.0, 0.1])
def test_each_prefix_of_the_vectors_has_the_loss_of_vectors(normalise: bool, margin: float | None) -> None:
    model, batch = dense_retriever(normalise=normalise), examples(2, excluded=exclusions(4, 2))
    temperature = 0.05 if normalise else 4.0
    settings = ObjectiveSettings(
        contrasts=["sum"], temperature=temperature, dimensions=(4, 20), exclude_above=margin
    )  # fmt: skip
    objective = Finetuning(model, settings)

    vectors, local = objective.encode(batch)
    losses = objective.compare(vectors, batch)

    assert local == {}
    assert list(losses) == ["contrastive", "contrastive_4", "contrastive_20"]
    for name, dim in zip(losses, (32, 4, 20), strict=True):
        sides = [side.detach().double()[:, :dim] for side in vectors]
        if normalise:
            sides = [side / side.norm(dim=1, keepdim=True) for side in sides]
        expected = slow_losses(*sides, 2, temperature, exclusions(4, 2), margin)
        assert losses[name].item() == pytest.approx(expected, rel=1e-3, abs=1e-5)


def test_chunks_have_the_gradients_of_the_complete_batch() -> None:
    settings = ObjectiveSettings(contrasts=["sum"], temperature=0.1, dimensions=(8,), exclude_above=0.05)
    model, batch = dense_retriever(normalise=True), examples(2)
    results = []
    for chunk in (None, 1):
        model.zero_grad()
        gradients(Finetuning(model, settings), batch, chunk, (0, 0))
        results.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])

    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("normalise", [False, True])
def test_truncated_vectors_keep_their_length_where_it_is_1(normalise: bool) -> None:
    vectors = torch.randn(5, 8)

    result = truncated(Representation(dense=vectors), 3, normalise=normalise).dense

    assert result is not None
    expected = vectors[:, :3] / (vectors[:, :3].pow(2).sum(1, keepdim=True).sqrt() if normalise else 1.0)
    torch.testing.assert_close(result, expected)


REFUSED = {
    "two views": ("hybrid", {"dimensions": (4,)}, "matryoshka: expected a retriever with a dense view only"),
    "weights": ("splade", {"dimensions": (4,)}, "matryoshka: expected a retriever with a dense view only"),
    "a teacher": (
        "dpr", {"dimensions": (4,), "distillation": Distillation(teacher_temperature=1.0, contrast_weight=0.0)},
        "no distillation",
    ),
    "pairs": ("dpr", {"exclude_above": 0.1, "contrast_loss": "pairwise"}, "exclude_above: expected .* softmax"),
    "experts": (
        "mixture",
        {"exclude_above": 0.1, "contrasts": [],
         "competition": Competition(temperature=1.0, scope="batch", standardised=0.0, scale=1.0)},
        "exclude_above: .* no competition",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_together_is_refused(what: str) -> None:
    kind, changes, message = REFUSED[what]
    settings = ObjectiveSettings(**{"contrasts": ["sum"], "temperature": 1.0} | changes)  # type: ignore[arg-type]

    with pytest.raises(ValueError, match=message):
        Finetuning(tiny_retriever(kind), settings)
