"""Attention between the real tokens of a batch: by texts of variable length on a GPU, else in padded rows.

Shape suffixes: B batch, L length, A attention heads, D size of a head, N real tokens of all texts; Q and K are N of the
queries and of what they attend to.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from models.layers.unpadding import Packing

HALF = (torch.float16, torch.bfloat16)
LARGEST_HEAD = 256  # of FlashAttention, which also needs a multiple of 8
FIRST_CAPABILITY = (8, 0)  # of the GPUs for which FlashAttention is written: since the A100


def attention(
    queries_QAD: Tensor, keys_KAD: Tensor, values_KAD: Tensor, *, rows: Packing, columns: Packing, dropout: float,
    scale: float | None = None,
) -> Tensor:  # fmt: skip
    """Return the attention output [Q, A, D] of queries over the same text's tokens.

    `rows` is the packing of the queries, which also says which columns each row sees; `columns` is that of the keys.
    The scale is D^-0.5 by default.
    """
    if rows.sees_text and columns.has_padding and _is_flash(queries_QAD):
        return _of_variable_length(queries_QAD, keys_KAD, values_KAD, rows, columns, dropout, scale)

    def padded(x_NAD: Tensor, packing: Packing) -> Tensor:
        return packing.padded(x_NAD).transpose(1, 2)

    mixed_BALD = scaled_dot_product_attention(
        padded(queries_QAD, rows), padded(keys_KAD, columns), padded(values_KAD, columns), attn_mask=rows.visible,
        dropout_p=dropout, scale=scale,
    )  # fmt: skip
    return rows.packed(mixed_BALD.transpose(1, 2))


def _is_flash(x_NAD: Tensor) -> bool:
    """Return whether FlashAttention computes heads of this size, number format and device."""
    size = x_NAD.shape[-1]
    return (
        x_NAD.is_cuda and x_NAD.dtype in HALF and size % 8 == 0 and size <= LARGEST_HEAD
        and torch.cuda.get_device_capability(x_NAD.device) >= FIRST_CAPABILITY
    )  # fmt: skip


def _of_variable_length(
    queries_QAD: Tensor, keys_KAD: Tensor, values_KAD: Tensor, rows: Packing, columns: Packing, dropout: float,
    scale: float | None,
) -> Tensor:  # fmt: skip
    """Return the attention output [Q, A, D] without padded rows.

    PyTorch's public function, torch.nn.attention.varlen.varlen_attn, has no dropout; this is the operator below it.
    """
    flash = torch.ops.aten._flash_attention_forward
    mixed_QAD: Tensor = flash(
        queries_QAD, keys_KAD, values_KAD, rows.boundaries, columns.boundaries, rows.shape[1], columns.shape[1],
        dropout, False, False, scale=scale,
    )[0]  # fmt: skip
    return mixed_QAD
