"""Measure once in a few seconds how fast a T5 of a shape writes queries on this machine, for plans without a cost.

FLOPs do not give it: a token of a query reads all weights for few products, so the rate depends on the sizes of the
model and the batch. Hence the sampler itself writes some tokens, with random weights of the stage's own shape.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tasks.estimates.generation import T5Shape
from tasks.estimates.kept_rates import Rates, kept_or_measured
from tasks.pseudo_queries.generate_queries import Generation
from tasks.runtime.device import choose_device

MOST_PARAMETERS = 1_000_000_000  # of a model that is measured: larger ones take minutes, and may not fit in memory
FLOPS = 1e11  # of a measurement: at most a few seconds on a core
TOKENS = 8  # that are written after the first one
HEAD = 64  # dimensions of an attention head, as in T5-small, T5-base and T5-large


@dataclass(frozen=True, kw_only=True)
class GenerationRate(Rates):
    """How long a T5 takes for a passage."""

    seconds: float
    """Of reading a passage and writing all its queries, each text at its full length."""


def generation_rate(
    shape: T5Shape, settings: Generation, report: Callable[[str], None] = lambda line: None
) -> GenerationRate | None:
    """Return the rate of a T5 of a shape with these settings: a kept one, or measured and kept.

    None for a model that is too large to be measured. `report` prints what is measured.
    """
    if shape.parameters > MOST_PARAMETERS:
        return None
    device = choose_device()
    lengths = f"{settings.input_max_tokens} + {settings.queries_per_passage} × {settings.max_new_tokens} tokens"
    of = f"{shape}, {lengths}, batch {settings.batch_tokens}, top {settings.top_k}, {settings.dtype}"

    def measure() -> dict[str, float]:
        report(f"measuring once how fast a T5 of {shape.parameters / 1e6:,.0f} million parameters writes queries here")
        return {"seconds": _measure(shape, settings, device)}

    return kept_or_measured("generation_rates.json", GenerationRate, device, measure, of)


def _measure(shape: T5Shape, settings: Generation, device: torch.device) -> float:
    """Return the seconds of a passage, from batches that write one token, and some more.

    The batch is that of the stage, or as large as a few seconds allow.
    """
    from tasks.pseudo_queries.generators.random_t5 import RandomT5
    from tasks.pseudo_queries.generators.sampler import sample

    length, queries = settings.input_max_tokens, settings.queries_per_passage
    one = shape.reading_flops(length) + queries * (1 + TOKENS) * shape.writing_flops(length)
    passages = max(1, min(settings.batch_tokens // length, int(FLOPS // one)))
    generator, seeded = RandomT5(_config(shape), settings.dtype, device), torch.Generator().manual_seed(0)
    ids = torch.randint(2, shape.vocabulary, (passages, length), generator=seeded).tolist()

    def seconds(number: int, tokens: int) -> float:
        bits = torch.randint(2**62, (number, queries, tokens), generator=seeded).to(device)
        started = time.perf_counter()
        sample(generator, ids[:number], bits, settings)  # waits for a GPU, since it returns lists
        return time.perf_counter() - started

    seconds(1, 2)  # the first batch of a process is slow
    first, all_tokens = seconds(passages, 1), seconds(passages, 1 + TOKENS)
    each = max(0.0, all_tokens - first) / TOKENS
    return (first + (settings.max_new_tokens - 1) * each) / passages


def _config(shape: T5Shape) -> dict[str, Any]:
    """Return a T5's config.json for a shape."""
    heads = max(1, shape.attention // HEAD)
    return {
        "vocab_size": shape.vocabulary, "d_model": shape.width, "d_ff": shape.inner, "num_heads": heads,
        "d_kv": shape.attention // heads, "num_layers": shape.encoder_layers,
        "num_decoder_layers": shape.decoder_layers, "feed_forward_proj": "gated-gelu" if shape.gated else "relu",
    }  # fmt: skip
