"""The FLOPs of a T5 are those of the products that transformers' T5 computes."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import T5Config, T5ForConditionalGeneration

from flows.plan.generator_costs import read_shape
from tasks.estimates.generation import T5_BASE, T5Shape

LENGTH, WIDTHS = 24, {"d_model": 32, "d_kv": 8, "num_heads": 3, "d_ff": 80, "vocab_size": 50}


def model_of(folder: Path, gated: bool) -> tuple[T5ForConditionalGeneration, T5Shape]:
    """A random T5 with three layers in the encoder and two in the decoder, and the shape that its folder states."""
    kind = "gated-gelu" if gated else "relu"
    config = T5Config(
        **WIDTHS, num_layers=3, num_decoder_layers=2, feed_forward_proj=kind, decoder_start_token_id=0, dropout_rate=0.0
    )  # type: ignore[call-arg,arg-type]
    config.save_pretrained(folder)
    shape = read_shape(folder)
    assert shape is not None
    return T5ForConditionalGeneration(config), shape


@pytest.mark.parametrize("gated", [False, True])
def test_reading_and_the_first_token_are_the_products_of_a_forward_pass(gated: bool, tmp_path: Path) -> None:
    model, shape = model_of(tmp_path, gated)
    ids = torch.randint(1, 50, (1, LENGTH))

    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(input_ids=ids, decoder_input_ids=ids[:, :1])

    itself = 4 * shape.decoder_layers * shape.attention  # the first token's attention to itself, which is left out
    expected = shape.reading(LENGTH).flops + shape.writing(LENGTH, 1).flops
    assert expected == counter.get_total_flops() - itself


def test_a_training_takes_three_times_the_products(tmp_path: Path) -> None:
    model, shape = model_of(tmp_path, gated=False)
    ids, queries = torch.randint(1, 50, (1, LENGTH)), torch.randint(1, 50, (1, 6))

    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=queries).loss.backward()

    cost = shape.training(LENGTH, 6)
    assert cost.tokens == LENGTH + 6
    assert cost.flops == pytest.approx(counter.get_total_flops(), rel=0.02)


def test_flops_are_those_of_the_formula_by_hand() -> None:
    shape = dataclasses.replace(T5_BASE, width=1, attention=1, inner=0, vocabulary=0)

    # 2 x 12 x (4 + 2) for a token and 4 x 12 x 3 for looking at three, whether it is read or written.
    assert shape.reading(3).flops == 3 * (144 + 144)
    assert shape.writing(3, 10).flops == 10 * (144 + 144)


@pytest.mark.parametrize("content", ["{", "{}", '{"model_type": "bart"}', '{"model_type": "t5", "num_layers": "two"}'])
def test_another_model_has_no_shape(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)

    assert read_shape(tmp_path) is None
