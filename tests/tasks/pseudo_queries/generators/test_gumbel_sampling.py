"""Which token comes next: the nucleus against Hugging Face's, and the race against the shares it must keep."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from tasks.pseudo_queries.generators.gumbel_sampling import Candidates, nucleus, numbers


def bits(count: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(numbers(seed, 0, "", range(1), count)[0])


def test_tokens_that_may_be_drawn_are_those_of_hugging_face_with_their_probabilities() -> None:
    logits = torch.randn(200, 50, generator=torch.Generator().manual_seed(1)) * 3
    scores = TopPLogitsWarper(0.8)(None, TopKLogitsWarper(12)(None, TemperatureLogitsWarper(1.5)(None, logits)))

    result = nucleus(logits, top_k=12, top_p=0.8, temperature=1.5)

    shares = result.shares / result.shares.sum(1, keepdim=True)
    ours = torch.zeros(200, 50, dtype=torch.float64).scatter(1, result.tokens, shares)
    assert torch.allclose(ours, scores.double().softmax(1), atol=1e-6)
    assert bool(((ours > 0) == torch.isfinite(scores)).all())


def test_tokens_are_drawn_as_often_as_their_shares_say() -> None:
    count = 200_000
    shares = torch.tensor([0.4, 0.3, 0.1, 0.0, 0.005], dtype=torch.float64)
    candidates = Candidates(torch.tensor([7, 3, 31_999, 1, 0]).expand(count, -1), shares.expand(count, -1))

    drawn = candidates.draw(bits(count))

    frequencies = torch.stack([(drawn == token).double().mean() for token in candidates.tokens[0]])
    expected = shares / shares.sum()
    deviations = (expected * (1 - expected) / count).sqrt()
    assert bool(((frequencies - expected).abs() <= 4 * deviations).all())
    assert frequencies[3] == 0


def test_draws_of_neighbouring_numbers_and_of_other_candidates_are_independent() -> None:
    """The next step's draw, and the draw among other tokens with the same bits, say nothing about this one."""
    count = 100_000
    even = torch.full((count, 2), 0.5, dtype=torch.float64)
    first = Candidates(torch.tensor([4, 5]).expand(count, -1), even)
    second = Candidates(torch.tensor([6, 7]).expand(count, -1), even)
    inputs = bits(count)

    for other in (second.draw(inputs) - 6, first.draw(inputs.roll(1)) - 4, first.draw(inputs + 1) - 4):
        agreement = (first.draw(inputs) - 4 == other).double().mean()
        assert abs(agreement - 0.5) < 4 * 0.5 / count**0.5


def test_a_last_bit_of_the_logits_moves_few_draws() -> None:
    """A tenth as many as where a cumulative distribution is inverted, which is what is compared."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(20_000, 200, generator=generator) * 3
    others = logits + 1e-3 * torch.randn(logits.shape, generator=generator)
    inputs = bits(len(logits))
    uniforms = torch.rand(len(logits), 1, generator=generator, dtype=torch.float64)

    def inverted(results: Candidates) -> torch.Tensor:
        sums = results.shares.cumsum(1)
        return results.tokens.gather(1, (sums <= uniforms * sums[:, -1:]).sum(1, keepdim=True)).squeeze(1)

    before, after = (nucleus(scores, 50, 0.95) for scores in (logits, others))

    moved = (before.draw(inputs) != after.draw(inputs)).double().mean()
    assert moved < 1e-3
    assert moved < 0.1 * (inverted(before) != inverted(after)).double().mean()


def test_the_likeliest_is_drawn_where_only_it_may_come() -> None:
    logits = torch.randn(100, 20, generator=torch.Generator().manual_seed(2)) * 1000

    for candidates in (nucleus(logits, 1, 1.0), nucleus(logits, 20, 1e-9), nucleus(logits, 20, 1.0, 1e-6)):
        assert torch.equal(candidates.draw(bits(100)), logits.argmax(1))


@pytest.mark.parametrize("other", [(43, 0, "the city"), (42, 1, "the city"), (42, 0, "the river")])
def test_every_sample_has_numbers_of_its_own(other: tuple[int, int, str]) -> None:
    results = numbers(42, 0, "the city", range(6), 8)

    assert len(np.unique(results)) == 48
    assert not np.isin(numbers(*other, range(6), 8), results).any()
    assert np.array_equal(numbers(42, 0, "the city", range(5, 6), 8), results[5:])
    assert np.array_equal(numbers(42, 0, "the city", range(6), 5), results[:, :5])
