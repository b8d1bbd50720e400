"""Attention over texts of variable length, compared with attention over padded rows; needs a GPU.

Both compute all other layers without padding. Passages are as long as the leads of Wikipedia's articles. A BERT-base
with random weights encodes them in bfloat16, and takes steps of pre-training with dropout, also of attention weights.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmarks import encoding
from benchmarks.contest import OURS, Case
from benchmarks.encoders import MAX_TOKENS, leads, save_checkpoint
from benchmarks.pretraining import PAPERS, Size, stepping
from benchmarks.random_texts import texts, word_pieces
from models.layers.bert import BertForMaskedLM
from models.pretraining import Initialisation
from models.retrievers.bi_encoder import DenseEncoder
from models.row_random import RowRandom
from models.tokens import num_tokens

DEVICES = ("cuda",)
PADDED = "attention over padded rows"


def cases(device: str, *, small: bool) -> Iterator[Case]:
    """Yield encoding, and a step of CoT-MAE and of RetroMAE."""
    with tempfile.TemporaryDirectory() as folder:
        yield _encoding(Path(folder), device, 4 if small else 10_000)
    size = Size(1, 64, 2, 1000) if small else Size(12, 768, 256)
    for name in ("CoT-MAE", "RetroMAE"):
        yield _step(name, size, torch.device(device))


@contextmanager
def padded_rows() -> Iterator[None]:
    """Use no attention of variable length in a block."""
    with patch("models.layers.attention._is_flash", lambda heads: False):
        yield


def _encoding(folder: Path, device: str, number: int) -> Case:
    given = leads(number, device)
    save_checkpoint(folder, device, "cls")
    encode = encoding.ours(folder, given, device, "bfloat16")
    exact = encoding.ours(folder, given[:1000], device, "float32")()

    def padded() -> np.ndarray[Any, Any]:
        with padded_rows():
            return encode()

    def compared(vectors: Mapping[str, Any]) -> dict[str, Any]:
        facts = dict(encoding.compared(encoding.LEAST_COSINE["bfloat16"])(vectors))
        for name, rows in vectors.items():
            facts[f"greatest difference from float32, {name}"] = float(np.abs(rows[:1000] - exact).max())
        return facts

    units = encoding.units(folder, given)
    return Case(
        f"encoding {number:,} passages of {units['tokens'] / number:.0f} of at most {MAX_TOKENS} tokens",
        {OURS: encode, PADDED: padded}, {}, compared, repeats=3, units=units,
    )  # fmt: skip


def _step(name: str, size: Size, device: torch.device) -> Case:
    paper, tokenizer = PAPERS[name], word_pieces(size.vocabulary)
    drawn = texts(size.texts, size.vocabulary, full=False)

    def contender() -> Callable[[], dict[str, float]]:
        torch.manual_seed(0)
        initial = Initialisation(DenseEncoder(BertForMaskedLM(size.config()), "cls"))
        objective, numbers = paper.ours.Pretraining(initial, paper.settings).to(device).train(), itertools.count()

        def losses() -> Mapping[str, torch.Tensor]:
            batch = paper.ours.make_batch(drawn, tokenizer, paper.settings, RowRandom(1, next(numbers))).to(device)
            result: Mapping[str, torch.Tensor] = objective.encode(batch)[1]
            return result

        return stepping(objective, losses, device, lambda memory: None)

    other = contender()

    def padded() -> dict[str, float]:
        with padded_rows():
            return other()

    def compared(results: Mapping[str, Any]) -> dict[str, Any]:
        for loss, value in results[OURS].items():
            assert abs(value - results[PADDED][loss]) < 0.02 * value, results  # their dropout differs
        return {"losses of the last step": results[OURS], f"losses with {PADDED}": results[PADDED]}

    tokens = num_tokens(paper.ours.make_batch(drawn, tokenizer, paper.settings, RowRandom(1, 0)))
    return Case(
        f"{name}, {size}", {OURS: contender(), PADDED: padded}, {}, compared, units={"tokens": float(tokens)},
    )  # fmt: skip
