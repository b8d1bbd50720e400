"""Measure once in a few seconds how fast encoders run on this machine, for plans without another estimate.

A small BERT encodes and is trained on random tokens until the time is over. Its rate in counted FLOPs is near that of
other encoders on the same machine, since nearly all of them is matrix products; sizes and lengths change it a little.
Other processes on the same cores change it much, so the load is kept with the rates.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from models.layers.bert import BertForMaskedLM
from models.layers.bert_config import BertConfig
from models.retrievers.bi_encoder import DenseEncoder
from models.tokens import pad
from tasks.estimates.flops import counting
from tasks.estimates.kept_rates import Rates, kept_or_measured
from tasks.runtime.device import autocast, choose_device

SHAPE = BertConfig(
    vocab_size=1000, hidden_size=384, num_hidden_layers=3, num_attention_heads=6, intermediate_size=1536,
    max_position_embeddings=128, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip
TEXTS, TOKENS = 16, 64
SECONDS = 1.0
"""The time of encoding, and also of training, after a first step that is not counted."""


@dataclass(frozen=True, kw_only=True)
class EncoderRates(Rates):
    """FLOPs a second of an encoder, counted as `tasks.estimates.flops` counts them."""

    encoding: float
    training: float
    """The rate of forward and backward pass together."""


def encoder_rates() -> EncoderRates:
    """Return the rates of this machine with the session's device and threads: kept ones, or measured and kept."""
    device = choose_device()
    return kept_or_measured("rates.json", EncoderRates, device, lambda: _measure(device))


def _measure(device: torch.device) -> dict[str, float]:
    """Return the FLOPs a second of encoding and of training."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(5, SHAPE.vocab_size, (TEXTS, TOKENS), generator=generator)
    tokens = pad([row.tolist() for row in rows]).to(device)
    encoder = DenseEncoder(BertForMaskedLM(SHAPE), "cls").to(device)

    def encode() -> None:
        with torch.no_grad(), autocast(device, None):
            vectors(encoder).sum().item()  # waits for a GPU

    def train() -> None:
        encoder.zero_grad(set_to_none=True)
        with autocast(device, None):
            loss = vectors(encoder).square().mean()
        loss.backward()
        loss.item()

    def vectors(network: nn.Module) -> torch.Tensor:
        dense: torch.Tensor = network(tokens, "passage").dense
        return dense

    return {"encoding": _rate(encode), "training": _rate(train)}


def _rate(step: Callable[[], None]) -> float:
    """Return the FLOPs of a step in a second, by the fastest of the steps that the time allows."""
    with counting() as counter:
        step()
    step()  # the first step of a process is slow
    fastest, end = float("inf"), time.perf_counter() + SECONDS
    while (started := time.perf_counter()) < end:
        step()
        fastest = min(fastest, time.perf_counter() - started)
    return counter.flops / fastest
