"""The training of DupMAE: a batch is learned, gradients of chunks, seeds, dropout, refused settings."""

import dataclasses
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from models.objective import Losses
from models.papers.dup_mae import Batch, Pretraining, Settings, word_weights
from models.tokens import Tokenizer
from tasks.training import grad_cache as loop
from tasks.training.grad_cache import gradients
from tests.models.papers.test_dup_mae import EACH, RELEASED, batch, objective
from tests.tiny import PIECES, start

# Training


@EACH
def test_one_batch_can_be_learned_by_heart(tokenizer: Tokenizer, settings: Settings) -> None:
    torch.manual_seed(0)
    made, given = Pretraining(start(spread=0.0), settings), batch(tokenizer, settings)
    optimiser = torch.optim.Adam(made.parameters(), lr=1e-2)
    history = []
    for _ in range(100):
        optimiser.zero_grad()
        losses = made.encode(given)[1]
        torch.stack(list(losses.values())).sum().backward()
        optimiser.step()
        history.append({name: loss.item() for name, loss in losses.items()})

    # A bag of k words has k maxima that share one softmax: its loss has a floor, the words' entropy.
    words, floor = word_weights(given.original, given.words >= 0, len(PIECES), settings.bow_target), {}
    totals = words.sum(1)
    if settings.bow_weight is not None:
        floor["bow"] = settings.bow_weight * (totals * (words > 0).sum(1).log()).mean().item()
    for name in history[0]:
        above = [each[name] - floor.get(name, 0.0) for each in (history[0], history[-1])]
        assert above[1] < 0.3 * above[0], name


def gradient(made: Pretraining, given: Batch, chunk: int | None) -> tuple[Losses, dict[str, Tensor]]:
    made.zero_grad()
    losses = gradients(made, given, chunk, (3, 5))
    return losses, {name: value.grad.clone() for name, value in made.named_parameters() if value.grad is not None}


@EACH
@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.usefixtures("fixed_masks", "store")
def test_chunks_change_neither_losses_nor_gradients(tokenizer: Tokenizer, settings: Settings, chunk: int) -> None:
    made, given = objective(settings).train(), batch(tokenizer, settings)

    (losses, grads), (of_chunks, grads_of_chunks) = gradient(made, given, None), gradient(made, given, chunk)

    torch.testing.assert_close(of_chunks, losses, atol=1e-5, rtol=1e-5)
    largest = max(grad.abs().max().item() for grad in grads.values())
    for name, grad in grads.items():
        torch.testing.assert_close(grads_of_chunks[name], grad, atol=1e-5 * largest, rtol=1e-5)


@pytest.mark.usefixtures("store")
def test_chunks_draw_masks_and_dropout_by_their_seeds(tokenizer: Tokenizer) -> None:
    made, given = objective(RELEASED, dropout=0.2).train(), batch(tokenizer, RELEASED)
    losses, grads = gradient(made, given, 3)

    made.zero_grad()
    direct: Losses = {}
    for number, part in enumerate((given.rows(0, 3), given.rows(3, 4))):
        torch.manual_seed(loop.mix_seeds((3, 5, number)))
        for name, loss in made.encode(part)[1].items():
            share = part.num_terms(name) / given.num_terms(name)
            direct[name] = direct.get(name, torch.zeros(())) + loss * share
    torch.stack(list(direct.values())).sum().backward()

    torch.testing.assert_close(losses, direct, atol=1e-6, rtol=1e-6)
    expected = {name: value.grad for name, value in made.named_parameters() if value.grad is not None}
    torch.testing.assert_close(grads, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_equal_seeds_give_equal_losses(tokenizer: Tokenizer) -> None:
    made, given = objective(RELEASED, dropout=0.1).train(), batch(tokenizer, RELEASED)

    def losses(seed: int) -> dict[str, float]:
        torch.manual_seed(seed)
        return {name: loss.item() for name, loss in made.encode(given)[1].items()}

    assert losses(1) == losses(1)
    assert losses(1) != losses(2)


@EACH
@pytest.mark.parametrize("sizes", [(0, 0), (0, 6, 1)])
def test_texts_without_words_are_no_trouble(tokenizer: Tokenizer, settings: Settings, sizes: Sequence[int]) -> None:
    made, given = objective(settings), batch(tokenizer, settings, sizes)

    losses = made.encode(given)[1]
    torch.stack(list(losses.values())).sum().backward()

    assert all(loss.isfinite() for loss in losses.values())
    assert all(parameter.grad.isfinite().all() for parameter in made.parameters() if parameter.grad is not None)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"cls_decoding": False, "ot_decoding": False, "bow_weight": None}, "expected at least one of them"),
        ({"bow_weight": None}, "bow_weight: expected a number above 0 with ot_decoding"),
        ({"ot_decoding": False}, "bow_weight: expected null without ot_decoding"),
        ({"bow_weight": 0.0}, "bow_weight: expected a number above 0"),
        ({"text_mask_rate": 0.0}, "text_mask_rate"),
        ({"decoder_mask_rate": 1.5}, "decoder_mask_rate"),
        ({"max_tokens": 2}, "max_tokens"),
    ],
)
def test_settings_that_mean_nothing(change: dict[str, float], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        dataclasses.replace(RELEASED, **change)


def test_more_tokens_than_positions() -> None:
    with pytest.raises(ValueError, match="max_tokens: expected at most 64, found 65"):
        Pretraining(start(), dataclasses.replace(RELEASED, max_tokens=65))
