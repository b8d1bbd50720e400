"""A T5 that starts able to copy."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import T5Config, T5ForConditionalGeneration

from tasks.pseudo_queries.generators.copy_init import copying_t5, resized

SIZE, WIDTH = 500, 128


def config(layers: int = 2) -> T5Config:
    return T5Config(
        vocab_size=SIZE, d_model=WIDTH, d_kv=WIDTH // 2, num_heads=2, d_ff=2 * WIDTH, num_layers=layers,
        dropout_rate=0.0, decoder_start_token_id=2, eos_token_id=3, pad_token_id=0,
    )  # fmt: skip


def embeddings() -> Tensor:
    return torch.randn(SIZE, WIDTH, generator=torch.Generator().manual_seed(3))


def copied_share(model: T5ForConditionalGeneration) -> float:
    """How often the likeliest next word is the one that follows in the text."""
    texts = torch.stack(
        [torch.randperm(SIZE - 10, generator=torch.Generator().manual_seed(n))[:40] + 10 for n in range(20)]
    )
    with torch.no_grad():
        logits = model.eval()(input_ids=texts, decoder_input_ids=texts[:, 5:15]).logits
    return float((logits.argmax(2) == texts[:, 6:16]).float().mean())


@pytest.mark.parametrize("layers", [2, 3])
def test_it_goes_on_with_the_word_that_followed_in_the_text(layers: int) -> None:
    torch.manual_seed(1)
    plain = T5ForConditionalGeneration(config(layers))

    assert copied_share(copying_t5(embeddings(), config(layers), seed=1)) > 0.8
    assert copied_share(plain) < 0.05


def test_wider_or_narrower_embeddings_keep_what_is_alike() -> None:
    inputs = torch.randn(50, 24, generator=torch.Generator().manual_seed(3)) @ torch.diag(torch.arange(24.0, 0, -1))
    centred = inputs - inputs.mean(0)

    wider, same, narrower = (resized(inputs, width, seed=1) for width in (32, 24, 12))

    assert wider.shape == (50, 32)
    assert torch.allclose(same @ same.T, centred @ centred.T, atol=1e-2)
    lost = torch.linalg.svdvals(centred)[12:].square().sum()  # what the best twelve directions cannot keep
    assert torch.allclose(centred.square().sum() - narrower.square().sum(), lost, rtol=1e-3)


def test_one_layer_cannot_hold_the_circuit() -> None:
    with pytest.raises(ValueError, match="two layers"):
        copying_t5(embeddings(), config(1), seed=1)
