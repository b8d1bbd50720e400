"""The training of coCondenser: a batch is learned, gradients of chunks, seeds, dropout, refused settings."""

import dataclasses

import numpy as np
import pytest
import torch

from models.objective import Losses
from models.papers.co_condenser import Batch, Pretraining, make_batch
from models.pretraining import RawBatch
from models.tokens import Tokenizer
from tasks.training import grad_cache as loop
from tests.models.papers.test_co_condenser import NAMES, SETTINGS, batch, drawn, objective
from tests.tiny import start

# Training


def direct_pass(made: Pretraining, given: Batch, spans: list[tuple[int, int]]) -> Losses:
    """One graph over all chunks, each encoded under its seed; local losses weighted by what they ask for."""
    passed = []
    for number, span in enumerate(spans):
        torch.manual_seed(loop.mix_seeds((3, 5, number)))
        passed.append(made.encode(given.rows(*span)))
    losses = dict(made.compare((torch.cat([vectors[0] for vectors, _ in passed]),), given))
    for name in ("mlm", "head"):
        terms = [given.rows(*span).num_terms(name) for span in spans]
        losses[name] = sum(local[name] * n for (_, local), n in zip(passed, terms, strict=True)) / sum(terms)
    return losses


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("chunk", [1, 2])
def test_chunks_have_the_gradients_of_a_direct_pass(tokenizer: Tokenizer, chunk: int, dropout: float) -> None:
    made, pairs = objective(dropout=dropout, spread=0.1).train(), drawn()
    pairs = RawBatch([[], *pairs.texts], [[], *pairs.contexts])  # a pair with nothing to ask for
    given = make_batch(pairs, tokenizer, SETTINGS, np.random.default_rng(0))
    spans = [(0, 6)] if dropout == 0 else [(n, min(6, n + chunk)) for n in range(0, 6, chunk)]

    losses = loop.gradients(made, given, chunk, (3, 5))
    found = {name: each.grad.clone() for name, each in made.named_parameters() if each.grad is not None}
    made.zero_grad()
    direct = direct_pass(made, given, spans)
    sum(direct.values()).backward()

    assert set(losses) == NAMES
    for name, loss in direct.items():
        assert losses[name].item() == pytest.approx(loss.item(), rel=1e-5)
    expected = {name: each.grad for name, each in made.named_parameters() if each.grad is not None}
    assert set(found) == set(expected)
    largest = max(grad.abs().max().item() for grad in expected.values())
    for name, grad in expected.items():
        torch.testing.assert_close(found[name], grad, atol=1e-5 * max(1.0, largest), rtol=1e-4)


@pytest.mark.usefixtures("store")
def test_a_batch_is_learned_by_heart_and_equal_seeds_learn_equally(tokenizer: Tokenizer) -> None:
    given, runs = batch(tokenizer), []
    for seed in (0, 0, 1):
        torch.manual_seed(0)
        made = Pretraining(start(dropout=0.05, spread=0), SETTINGS).train()
        optimiser, losses = torch.optim.Adam(made.parameters(), lr=5e-3), []
        for step in range(100 if not runs else 3):
            found = loop.gradients(made, given, 2, (seed, step))
            losses.append({name: loss.item() for name, loss in found.items()})
            optimiser.step()
            optimiser.zero_grad()
        runs.append(losses)

    for name in NAMES:
        assert runs[0][0][name] > 1
        assert runs[0][-1][name] < 0.3 * runs[0][0][name]
    assert runs[0][:3] == runs[1] != runs[2]


# What is refused


@pytest.mark.parametrize(
    "change",
    [
        {"mask_rate": 0.0}, {"max_tokens": 2}, {"context_max_tokens": 2}, {"head_layers": 0}, {"head_from": -1},
        {"temperature": 0.0}, {"masked_lm_weight": -1.0},
    ],
)  # fmt: skip
def test_settings_that_mean_nothing(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        dataclasses.replace(SETTINGS, **change)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"head_from": 2}, "head_from: expected a layer before the last of the model's 2, found 2"),
        ({"max_tokens": 65}, "max_tokens: expected at most 64, found 65"),
        ({"context_max_tokens": 65}, "max_tokens: expected at most 64, found 65"),
    ],
)
def test_what_the_model_has_not(change: dict[str, int], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Pretraining(start(), dataclasses.replace(SETTINGS, **change))
