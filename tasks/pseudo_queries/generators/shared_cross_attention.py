"""Cross-attention in which all samples of a text read its keys and values, which are stored once.

Hugging Face's decoders have a row of the encoded text for each sample. But how they attend can be replaced
(`AttentionInterface`), and the row of a cache that a sample reads is decided there alone: the samples of a text become
the steps of one query. Five samples then read a fifth of the memory, and none is copied when a row ends.

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
    """Which rows read what."""

    cache: Any
    """Keys and values of the texts, which are not repeated."""
    places: Tensor
    """[rows], each one's place among all texts' samples: its text's number times `samples`, and its own number."""
    samples: int
    """How many a text has at most."""


_reading: contextvars.ContextVar[Reading | None] = contextvars.ContextVar("reading", default=None)


def share(decoder: Any) -> bool:
    """Have a decoder attend as `reading` says; False where it does not attend by `scaled_dot_product_attention`."""
    if decoder.config._attn_implementation != "sdpa":
        return False
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    decoder.set_attn_implementation(NAME)
    return True


@contextlib.contextmanager
def reading(what: Reading | None) -> Iterator[None]:
    """In this block the rows of a decoder read so; a row of its own each, if None."""
    token = _reading.set(what)
    try:
        yield
    finally:
        _reading.reset(token)


def _attention(
    module: Any, query_RH1K: Tensor, keys: Tensor, values: Tensor, attention_mask: Tensor | None, **given: Any
) -> tuple[Tensor, None]:
    """Hugging Face's attention; where these are the texts' keys, by all samples of a text at once. [R, 1, H, K]"""
    what = _reading.get()
    if what is None or keys is not what.cache.layers[module.layer_idx].keys:
        attended: tuple[Tensor, None] = sdpa_attention_forward(
            module, query_RH1K, keys, values, attention_mask, **given
        )
        return attended
    texts, heads, width = len(keys), *query_RH1K.shape[1::2]
    query_PHK = query_RH1K.new_zeros(texts * what.samples, heads, width)
    query_PHK[what.places] = query_RH1K.squeeze(2)
    query_THSK = query_PHK.view(texts, what.samples, heads, width).transpose(1, 2)
    found_TSHK, _ = sdpa_attention_forward(module, query_THSK, keys, values, attention_mask, **given, is_causal=False)
    return found_TSHK.flatten(0, 1)[what.places].unsqueeze(1), None
