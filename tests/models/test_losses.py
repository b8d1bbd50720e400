"""Losses against loops in Python's floats, written from the formulas."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from models.losses import contrastive_loss, likely_relevant, margin_loss, masked_lm_loss
from models.masking import IGNORED
from tests.tiny import SHAPE, tiny_bert


def slow_cross_entropy(scores: list[float], wanted: int) -> float:
    """-log softmax(scores)[wanted]."""
    highest = max(scores)
    return math.log(sum(math.exp(score - highest) for score in scores)) + highest - scores[wanted]


def slow_contrast(scores: Tensor, positives: list[int], temperature: float, excluded: Tensor | None) -> float:
    losses = []
    for query, positive in enumerate(positives):
        columns = [j for j in range(scores.shape[1]) if excluded is None or not excluded[query, j]]
        row = [scores[query, j].item() / temperature for j in columns]
        losses.append(slow_cross_entropy(row, columns.index(positive)))
    return sum(losses) / len(losses)


def slow_pairwise(scores: Tensor, group: int, temperature: float) -> float:
    """-log sigmoid(s+ - s-) of each query's positive with each of its own negatives, a mean over all pairs."""
    losses = []
    for query, row in enumerate((scores / temperature).tolist()):
        own = row[query * group : (query + 1) * group]
        losses += [-math.log(1 / (1 + math.exp(negative - own[0]))) for negative in own[1:]]
    return sum(losses) / len(losses)


def test_masked_lm_loss_is_the_mean_over_the_selected_tokens() -> None:
    logits, labels = torch.randn(7, 11, generator=torch.Generator().manual_seed(0)) * 3, torch.arange(7)

    loss = masked_lm_loss(logits, labels)

    expected = (
        sum(slow_cross_entropy(row, label) for row, label in zip(logits.tolist(), labels.tolist(), strict=True)) / 7
    )
    assert loss.item() == pytest.approx(expected, abs=1e-6)


def test_masked_lm_loss_of_nothing_is_zero_and_has_a_gradient() -> None:
    logits = torch.zeros(0, 11, requires_grad=True)

    loss = masked_lm_loss(logits, torch.zeros(0, dtype=torch.long))
    loss.backward()

    assert loss.item() == 0
    assert logits.grad is not None


def test_only_masked_positions_pass_the_head_and_the_loss_is_that_of_all() -> None:
    model = tiny_bert()
    ids = torch.randint(5, SHAPE["vocab_size"], (3, 20), generator=torch.Generator().manual_seed(0))
    labels = torch.where(torch.rand(3, 20, generator=torch.Generator().manual_seed(1)) < 0.3, ids, IGNORED)
    mask = torch.ones_like(ids, dtype=torch.bool)

    hidden = model.bert(ids, mask)
    selected = masked_lm_loss(model.vocabulary(hidden[labels != IGNORED]), labels[labels != IGNORED])
    naive = cross_entropy(model.vocabulary(hidden).flatten(0, 1), labels.flatten(), ignore_index=IGNORED)

    torch.testing.assert_close(selected, naive, atol=1e-5, rtol=1e-5)
    ours, expected = (
        torch.autograd.grad(loss, list(model.parameters()), retain_graph=True) for loss in (selected, naive)
    )
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 0.05])
@pytest.mark.parametrize("masked", [False, True])
def test_contrastive_loss_by_the_formula(temperature: float, masked: bool) -> None:
    scores, positives = torch.randn(5, 15, generator=torch.Generator().manual_seed(2)), [0, 3, 6, 9, 12]
    excluded = torch.rand(5, 15, generator=torch.Generator().manual_seed(3)) < 0.3
    excluded[range(5), positives] = False

    loss = contrastive_loss(
        scores, torch.tensor(positives), temperature=temperature, excluded_QP=excluded if masked else None
    )

    expected = slow_contrast(scores, positives, temperature, excluded if masked else None)
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_contrastive_loss_by_hand() -> None:
    scores = torch.tensor([[math.log(3.0), 0.0], [0.0, 0.0]])

    loss = contrastive_loss(scores, torch.tensor([0, 1]))

    # Query 0 gives its positive 3/4 of the mass, query 1 gives 1/2.
    assert loss.item() == pytest.approx(-(math.log(3 / 4) + math.log(1 / 2)) / 2, rel=1e-6)


def test_the_margin_loss_by_hand() -> None:
    scores, teacher = torch.tensor([[3.0, 1.0, 2.0], [0.0, 1.0, 0.0]]), torch.tensor([[9.0, 1.0, 5.0], [4.0, 0.0, 2.0]])

    loss = margin_loss(scores, teacher, temperature=0.5, teacher_temperature=2.0)

    # Margins of the model: 4, 2 and -2, 0; of the teacher: 4, 2 and 2, 1. A constant for a query changes neither.
    assert loss.item() == pytest.approx((0 + 0 + 16 + 1) / 4)
    shifted = margin_loss(scores + 7, teacher - 3, temperature=0.5, teacher_temperature=2.0)
    assert shifted.item() == pytest.approx(loss.item())


def test_what_is_excluded_gets_no_gradient() -> None:
    scores = torch.randn(2, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    excluded = torch.tensor([[False, True, False, False], [False] * 4])

    contrastive_loss(scores, torch.tensor([0, 2]), excluded_QP=excluded).backward()

    assert scores.grad is not None
    assert (scores.grad == 0).tolist() == excluded.tolist()


def test_a_passage_above_the_positive_is_left_out_and_the_positive_never() -> None:
    scores = torch.tensor([[0.5, 0.6, 0.61, 0.4], [0.9, 0.2, 0.3, 0.1]])

    excluded = likely_relevant(scores, torch.tensor([0, 2]), 0.1)

    assert excluded.tolist() == [[False, False, True, False], [True, False, False, False]]
    assert not likely_relevant(torch.tensor([[math.inf, 1.0]]), torch.tensor([0]), 0.0).any()
