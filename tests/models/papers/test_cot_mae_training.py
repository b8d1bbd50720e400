"""The training of CoT-MAE: a batch is learned, gradients of chunks, seeds, dropout, refused settings."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from models.layers.decoder import AutoRegressiveDecoder
from models.papers.cot_mae import MaskedDecoder, Pretraining, Settings
from models.tokens import Tokenizer
from tests.models.papers.test_cot_mae import AE, AR, batch, objective
from tests.tiny import SHAPE, start, tiny_bert


@pytest.mark.parametrize("settings", [AR, AE], ids=["ar", "ae"])
def test_the_decoder_shares_head_and_embeddings_and_owns_neither(tokenizer: Tokenizer, settings: Settings) -> None:
    made, given = objective(settings), batch(tokenizer, settings)

    made.encode(given)[1]["context"].backward()

    assert not [name for name, _ in made.decoder.named_parameters() if "predictions" in name or "embeddings" in name]
    assert made.model.cls.predictions.transform.dense.weight.grad is not None
    assert made.model.bert.embeddings.position_embeddings.weight.grad is not None
    assert all(parameter.grad is not None for parameter in made.decoder.parameters())


def test_a_decoder_starts_as_the_release_does() -> None:
    model = tiny_bert(spread=0)
    released = AutoRegressiveDecoder(model, num_blocks=4, window=3)
    printed = MaskedDecoder(model, 4)

    deviations: dict[str, list[Tensor]] = {}
    for name, value in (*released.named_parameters(), *printed.named_parameters()):
        if value.ndim > 1:
            kind = "residual" if "attention_output" in name or "narrow" in name else "other"
            deviations.setdefault(kind, []).append(value.flatten())
        else:
            assert (value == (1 if "orm.weight" in name else 0)).all(), name
    assert torch.cat(deviations["other"]).std().item() == pytest.approx(0.02, rel=0.03)
    assert torch.cat(deviations["residual"]).std().item() == pytest.approx(0.02 / math.sqrt(8), rel=0.03)


@pytest.mark.parametrize("settings", [AR, AE], ids=["ar", "ae"])
def test_dropout_works_in_training_alone(tokenizer: Tokenizer, settings: Settings) -> None:
    made = objective(settings, dropout=0.1)
    vectors, given = torch.randn(4, SHAPE["hidden_size"]), batch(tokenizer, settings)

    def logits() -> Tensor:
        decoded: tuple[Tensor, Tensor] = made.decoder(vectors, given.context, given.context_labels)
        return decoded[0]

    made.train()
    assert not torch.allclose(logits(), logits(), atol=1e-3)
    made.eval()
    assert torch.equal(logits(), logits())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"text_mask_rate": 0.0}, "text_mask_rate"),
        ({"decoder": "ae", "window": None, "context_mask_rate": 1.5}, "context_mask_rate"),
        ({"decoder": "ae"}, "decoder ae: expected a context_mask_rate, and null for window"),
        ({"decoder": "ae", "context_mask_rate": 0.45}, "decoder ae: expected a context_mask_rate, and null for window"),
        ({"context_mask_rate": 0.45}, "decoder ar: expected a window of 1 or more, and null for context_mask_rate"),
        ({"symmetric": True}, "equal max_tokens for both"),
        ({"decoder_layers": 0}, "decoder_layers"),
        ({"window": 0}, "expected a window of 1 or more"),
        ({"window": -1}, "window"),
        ({"max_tokens": 2}, "max_tokens"),
    ],
)
def test_settings_that_mean_nothing(change: dict[str, float], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        dataclasses.replace(AR, **change)


def test_more_tokens_than_positions() -> None:
    with pytest.raises(ValueError, match="max_tokens: expected at most 64, found 65"):
        Pretraining(start(), dataclasses.replace(AR, max_tokens=65))
