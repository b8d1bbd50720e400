"""Attention of variable length is attention over padded rows; the GPU's operator is replaced by a loop over texts."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from models.layers import attention
from models.layers.unpadding import Packing

LENGTHS = [3, 1, 5, 2]
HEADS, SIZE = 2, 8


def by_texts(
    queries: Tensor, keys: Tensor, values: Tensor, rows: Tensor, columns: Tensor, longest_row: int,
    longest_column: int, dropout: float, causal: bool, with_mask: bool, *, scale: float | None = None,
) -> tuple[Tensor]:  # fmt: skip
    """What PyTorch's operator computes, written from the formula, one text and head at a time."""
    assert (dropout, causal, with_mask) == (0.0, False, False)
    assert rows.dtype == columns.dtype == torch.int32
    assert longest_row == rows.diff().max()
    assert longest_column == columns.diff().max()
    outputs = []
    for (first, last), (begin, end) in zip(pairwise(rows.tolist()), pairwise(columns.tolist()), strict=True):
        heads = []
        for head in range(HEADS):
            scores = queries[first:last, head] @ keys[begin:end, head].T * (scale or SIZE**-0.5)
            heads.append(scores.softmax(-1) @ values[begin:end, head])
        outputs.append(torch.stack(heads, 1))
    return (torch.cat(outputs),)


@pytest.mark.parametrize("scale", [None, 0.7])
@pytest.mark.parametrize("firsts_only", [False, True])
def test_attention_of_variable_length_is_that_of_padded_rows(
    firsts_only: bool, scale: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    packing = Packing(torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None])
    rows = packing.of_firsts() if firsts_only else packing
    draw = torch.Generator().manual_seed(0)
    queries, keys, values = (
        torch.randn(number, HEADS, SIZE, generator=draw)
        for number in (len(LENGTHS) if firsts_only else sum(LENGTHS), sum(LENGTHS), sum(LENGTHS))
    )

    def attended() -> Tensor:
        return attention.attention(queries, keys, values, rows=rows, columns=packing, dropout=0.0, scale=scale)

    padded = attended()
    monkeypatch.setattr(attention, "_is_flash", lambda heads: True)
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", by_texts)

    assert torch.allclose(attended(), padded, atol=1e-6)


def test_a_mask_of_single_positions_needs_padded_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    packing = Packing(torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None])
    causal = packing.with_visible(torch.ones(1, 1, max(LENGTHS), max(LENGTHS)).tril().bool())
    monkeypatch.setattr(attention, "_is_flash", lambda heads: True)
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", None)  # it cannot be called
    heads = torch.randn(sum(LENGTHS), HEADS, SIZE)

    mixed = attention.attention(heads, heads, heads, rows=causal, columns=causal, dropout=0.0)

    assert torch.allclose(mixed[0], heads[0])  # the first token sees itself only


def test_the_operator_has_the_arguments_that_are_passed() -> None:
    arguments: Any = torch.ops.aten._flash_attention_forward.default._schema.arguments
    assert [argument.name for argument in arguments if not argument.kwarg_only] == [
        "query", "key", "value", "cum_seq_q", "cum_seq_k", "max_q", "max_k", "dropout_p", "is_causal",
        "return_debug_mask",
    ]  # fmt: skip
    assert "scale" in [argument.name for argument in arguments if argument.kwarg_only]


def test_a_cpu_and_full_precision_have_padded_rows() -> None:
    assert not attention._is_flash(torch.zeros(1, HEADS, SIZE, dtype=torch.bfloat16))
    assert not attention._is_flash(torch.zeros(1, HEADS, SIZE))
