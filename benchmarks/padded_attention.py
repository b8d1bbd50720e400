"""The section of docs/scale.md about padded attention, and how much less variable-length attention would compute."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import NormalDist, fmean

from benchmarks.encoders import BERT_BASE, MAX_TOKENS
from benchmarks.random_texts import MEDIAN, SPREAD

QUANTILES = 1000


def section() -> Iterator[str]:
    """Yield the paragraphs."""
    share, padding = attention_share(), padding_share()
    yield (
        "Layers compute the tokens of a batch without its padding; only attention has padded rows "
        "(`models/layers/unpadding.py`), by `scaled_dot_product_attention`. PyTorch's variable-length attention "
        "(`torch.nn.attention.varlen`) computes no padding there either, and is not used:"
    )
    yield from [
        "",
        "- It has no dropout of attention weights, with which BERT is trained, and no mask of single positions, which "
        "RetroMAE's decoder and ColBERT's padded queries need. It could serve encoding, and trainings without dropout.",
        "- It needs a CUDA GPU, and none was available: neither its equality with SDPA nor its time could be tested.",
        f"- Attention is {share:.1%} of the FLOPs of a BERT-base layer at {MAX_TOKENS} tokens. With texts as long as "
        f"Wikipedia's lead paragraphs, in random order, {padding:.0%} of these are of padding: {share * padding:.1%} "
        "of a layer. Sorted texts, as in encoding, have less.",
        "",
    ]
    yield (
        "Before it is used, three things are to be measured on a GPU: the time of encoding passages in bfloat16 with "
        "padded rows and with variable-length attention, with the copies to and from padded rows; the largest "
        "difference of a vector; and the time of a training step without dropout of attention weights."
    )
    yield ""


def attention_share() -> float:
    """Return the share of attention in the FLOPs of a layer: 4 L H of 4 L H + 24 H^2 for each token."""
    return MAX_TOKENS / (MAX_TOKENS + 6 * BERT_BASE.hidden_size)


def padding_share() -> float:
    """Return the share of padding in the squared rows of texts, all padded to the longest."""
    lengths = NormalDist(math.log(MEDIAN), SPREAD).quantiles(QUANTILES)
    return 1 - fmean(min(MAX_TOKENS, math.exp(length) + 2) ** 2 for length in lengths) / MAX_TOKENS**2
