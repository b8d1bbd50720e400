"""Cross-attention in which all samples of a text share its keys and values, which are stored once.

Hugging Face's decoders have a copy of the encoded text for each sample. Their attention function can be replaced
(`AttentionInterface`), and only this function decides which row of the cache a sample reads: the samples of a text
become the steps of one query. Five samples then read a fifth of the memory, and none is copied when a row ends.

Shape suffixes: R rows, T texts, S samples of a text, H heads, L length, K width of a head.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "sdpa_of_samples"


@dataclass(frozen=True)
class Reading:
    """The text that each row of a batch reads."""

    cache: Any
    """Keys and values of the texts, one entry per text."""
    slots: Tensor
    """[rows], the slot of each row: the number of its text times `samples`, plus the number of its sample."""
    samples: int
    """The largest number of samples per text."""


_reading: contextvars.ContextVar[Reading | None] = contextvars.ContextVar("reading", default=None)


def enable_shared_cross_attention(decoder: Any) -> bool:
    """Make a decoder share cross-attention; return False if it does not use `scaled_dot_product_attention`."""
    if decoder.config._attn_implementation != "sdpa":
        return False
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    decoder.set_attn_implementation(NAME)
    return True


@contextlib.contextmanager
def reading(reading_: Reading | None) -> Iterator[None]:
    """Let the rows of a decoder share texts in this block; with None, each row has its own copy."""
    token = _reading.set(reading_)
    try:
        yield
    finally:
        _reading.reset(token)


def _attention(
    module: Any, query_RH1K: Tensor, keys: Tensor, values: Tensor, attention_mask: Tensor | None, **arguments: Any
) -> tuple[Tensor, None]:
    """Attend like Hugging Face; cross-attention runs for all samples of a text at once. [R, 1, H, K]"""
    reading_ = _reading.get()
    if reading_ is None or keys is not reading_.cache.layers[module.layer_idx].keys:
        attended: tuple[Tensor, None] = sdpa_attention_forward(
            module, query_RH1K, keys, values, attention_mask, **arguments
        )
        return attended
    texts, heads, width = len(keys), *query_RH1K.shape[1::2]
    query_PHK = query_RH1K.new_zeros(texts * reading_.samples, heads, width)
    query_PHK[reading_.slots] = query_RH1K.squeeze(2)
    query_THSK = query_PHK.view(texts, reading_.samples, heads, width).transpose(1, 2)
    attended_TSHK, _ = sdpa_attention_forward(
        module, query_THSK, keys, values, attention_mask, **arguments, is_causal=False
    )
    return attended_TSHK.flatten(0, 1)[reading_.slots].unsqueeze(1), None
