"""CoT-MAE's decoders before and in training: shared parameters, initial values and dropout."""

import math

import pytest
import torch
from torch import Tensor

from models.layers.decoder import AutoRegressiveDecoder
from models.papers.cot_mae import MaskedDecoder, Settings
from models.tokens import Tokenizer
from tests.models.papers.test_cot_mae import AE, AR, batch, objective
from tests.tiny import SHAPE, tiny_bert


@pytest.mark.parametrize("settings", [AR, AE], ids=["ar", "ae"])
def test_the_decoder_shares_head_and_embeddings_and_owns_neither(tokenizer: Tokenizer, settings: Settings) -> None:
    model, inputs = objective(settings), batch(tokenizer, settings)

    model.encode(inputs)[1]["context"].backward()

    assert not [name for name, _ in model.decoder.named_parameters() if "predictions" in name or "embeddings" in name]
    assert model.model.cls.predictions.transform.dense.weight.grad is not None
    assert model.model.bert.embeddings.position_embeddings.weight.grad is not None
    assert all(parameter.grad is not None for parameter in model.decoder.parameters())


def test_a_decoder_starts_as_the_release_does() -> None:
    model = tiny_bert(spread=0)
    released = AutoRegressiveDecoder(model, num_blocks=4, window=3, max_tokens=9)
    printed = MaskedDecoder(model, 4, 9)

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
    model = objective(settings, dropout=0.1)
    vectors, inputs = torch.randn(4, SHAPE["hidden_size"]), batch(tokenizer, settings)

    def logits() -> Tensor:
        decoded: tuple[Tensor, Tensor] = model.decoder(vectors, inputs.context, inputs.context_labels, inputs.predicted)
        return decoded[0]

    model.train()
    assert not torch.allclose(logits(), logits(), atol=1e-3)
    model.eval()
    assert torch.equal(logits(), logits())
