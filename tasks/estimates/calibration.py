"""Measure once in a few seconds how fast encoders run on this machine, for plans without another estimate.

A small BERT encodes and is trained on random tokens until the time is over. Its rate in counted FLOPs is near that of
other encoders on the same machine, since nearly all of them is matrix products; sizes and lengths change it a little.
Other processes on the same cores change it much, so the load is kept with the rates.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import nn

from models.layers.bert import BertForMaskedLM
from models.layers.bert_config import BertConfig
from models.retrievers.bi_encoder import DenseEncoder
from models.tokens import pad
from storage.files import cache_folder, write_atomically
from tasks.estimates.flops import counting
from tasks.machine import load_average, num_cores
from tasks.runtime.device import autocast, choose_device
from tasks.runtime.environment import describe_build
from tasks.session import execution

SHAPE = BertConfig(
    vocab_size=1000, hidden_size=384, num_hidden_layers=3, num_attention_heads=6, intermediate_size=1536,
    max_position_embeddings=128, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip
TEXTS, TOKENS = 16, 64
SECONDS = 1.0
"""The time of encoding, and also of training, after a first step that is not counted."""
HIGH_LOAD = 0.5
"""The load for each usable core above which rates are those of a busy machine: others have half of the cores."""


@dataclass(frozen=True)
class EncoderRates:
    """FLOPs a second of an encoder, counted as `tasks.estimates.flops` counts them."""

    encoding: float
    training: float
    """The rate of forward and backward pass together."""
    machine: str
    """The machine, device and libraries on which they were measured."""
    at: str
    """The day of the measurement."""
    load: float
    """The load average of the minute before the measurement."""
    cores: int
    """The cores that the process could use."""

    @property
    def on_busy_machine(self) -> bool:
        """Return whether the load was high, so that an idle machine is faster."""
        return self.load > HIGH_LOAD * self.cores

    def when(self) -> str:
        """Return the day of the measurement, and the load where it was high."""
        load = f" while other processes used the cores (load {self.load:g} on {self.cores} cores)"
        return f"on {self.at}" + load * self.on_busy_machine


def encoder_rates() -> EncoderRates:
    """Return the rates of this machine with the session's device and threads: kept ones, or measured and kept.

    They are kept in `rates.json` of PRETRIEVE_CACHE, by machine; another processor, GPU, number of cores or threads, or
    another PyTorch is measured again, and so is a machine that was busy, once its load is lower. Where nothing can be
    written there, each plan measures.
    """
    device, load = choose_device(), round(load_average(), 1)
    machine = _fingerprint(device)
    file = cache_folder() / "rates.json"
    known = _read(file)
    kept = known.get(machine)
    if kept is not None and not (kept.on_busy_machine and load < kept.load):
        return kept
    encoding, training = _measure(device)
    rates = EncoderRates(encoding, training, machine, datetime.now(UTC).date().isoformat(), load, num_cores())
    content = {name: asdict(of_machine) for name, of_machine in (known | {machine: rates}).items()}
    with contextlib.suppress(OSError):
        write_atomically(file, json.dumps(content, indent=1) + "\n")
    return rates


def _fingerprint(device: torch.device) -> str:
    built = describe_build(execution())
    name = built["device"] if device.type != "cpu" else built["machine"]["processor"]
    return f"{name}, {num_cores()} cores, {execution().threads} threads, PyTorch {torch.__version__}"


def _read(file: Path) -> dict[str, EncoderRates]:
    """Return the kept rates by machine; none where the file is missing, malformed, or of a version without loads."""
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
        return {name: EncoderRates(**rates) for name, rates in known.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _measure(device: torch.device) -> tuple[float, float]:
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

    return _rate(encode), _rate(train)


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
