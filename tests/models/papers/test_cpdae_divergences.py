"""The contrast of word distributions in CPDAE."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from models.papers import cpdae
from models.papers.cpdae import (
    Settings,
    divergences,
)
from tests.models.papers.test_cpdae import WORDS, V, logits, objective


@pytest.mark.parametrize("at_once", [1, 2 * 7 * V, 2**22])
@pytest.mark.parametrize("spread", [0.1, 3.0, 100.0])
def test_divergences_in_blocks_are_those_of_all_pairs(
    at_once: int, spread: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpdae, "NUMBERS_AT_ONCE", at_once)
    inputs = logits(spread=spread).requires_grad_()
    weights = torch.randn(7, 7, generator=torch.Generator().manual_seed(2))

    result = divergences(inputs)
    (result * weights).sum().backward()

    z = inputs.detach().double().requires_grad_()
    shares = z.sigmoid() / z.sigmoid().sum(1, keepdim=True)
    p, q = shares[:, None], shares[None]
    m = (p + q) / 2
    direct = (torch.xlogy(p, p / m) + torch.xlogy(q, q / m)).sum(-1) / 2
    direct = torch.where(torch.eye(7, dtype=torch.bool), 0.0, direct)
    (direct * weights).sum().backward()
    torch.testing.assert_close(result.double(), direct, atol=3e-6, rtol=1e-5)
    torch.testing.assert_close(inputs.grad.double(), z.grad, atol=3e-6, rtol=1e-4)


def test_divergences_are_symmetric_and_bounded() -> None:
    inputs = torch.full((4, V), -40.0)
    inputs[0, 5] = inputs[1, 6] = inputs[2, 5] = 40.0  # all mass on one word
    inputs[3] = logits(1)

    results = divergences(inputs)

    assert torch.equal(results, results.T)
    torch.testing.assert_close(results.diagonal(), torch.zeros(4), atol=1e-6, rtol=0)
    assert results[0, 1].item() == pytest.approx(math.log(2), abs=1e-6)
    assert results[0, 2].item() == pytest.approx(0, abs=1e-6)
    assert (results < math.log(2) + 1e-6).all()
    assert (results > -1e-6).all()


def test_equation_seven_is_twice_the_similarity_and_a_constant() -> None:
    p, q = (np.random.default_rng(n).dirichlet(np.ones(V)) for n in range(2))
    printed = -(p * np.log(p)).sum() - (q * np.log(q)).sum() + ((p + q) * np.log(p + q)).sum()

    results = divergences(torch.tensor(np.log([p, q]) - 15))  # where sigmoid is exp, z~ is the softmax

    assert printed == pytest.approx(-2 * results[0, 1].item() + 2 * math.log(2), abs=1e-5)


def contrast(given: Tensor, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> float:
    model = objective(settings)
    monkeypatch.setattr(model.decoder, "forward", lambda vectors: given)
    return model.compare((given,), None)["contrast"].item()


@pytest.mark.parametrize("anchors", ["first", "both"])
def test_an_anchors_contrast_is_bounded(anchors: str, monkeypatch: pytest.MonkeyPatch) -> None:
    m, settings = 4, dataclasses.replace(WORDS, anchors=anchors, contrast_reduction="mean", contrast_weight=1.0)

    def peaked(words: list[int]) -> Tensor:
        peaks = torch.full((2 * m, V), -40.0)
        peaks[range(2 * m), words] = 20.0
        return peaks

    best = contrast(peaked([5, 5, 6, 6, 7, 7, 8, 8]), settings, monkeypatch)
    equal = contrast(logits(1).expand(2 * m, -1), settings, monkeypatch)
    worst = contrast(peaked([5, 6, 5, 7, 5, 8, 5, 9]), dataclasses.replace(settings, anchors="first"), monkeypatch)
    anything = contrast(logits(2 * m), settings, monkeypatch)

    # Partners alike, others disjoint: 1 / (1 + (2m - 2) / 2) = 1 / m.
    assert best == pytest.approx(math.log(m), abs=1e-5)
    assert equal == pytest.approx(math.log(2 * m - 1), abs=1e-5)
    # Partners disjoint, all firsts alike: exp(-log 2) / ((m - 1) + m / 2).
    assert worst == pytest.approx(math.log(3 * m - 2), abs=1e-5)
    assert math.log(m) < anything < math.log(4 * m - 3)
    lonely = peaked([5, 6, 5, 5, 5, 5, 5, 5])  # the first text's first view is as all others, but not as its partner
    scores = cpdae.partner_losses(-divergences(lonely))
    assert scores.max().item() == pytest.approx(math.log(4 * m - 3), abs=1e-5)
    assert scores.min().item() > math.log(m)
