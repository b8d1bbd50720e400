"""A step of pre-training, from masks to AdamW, compared with one whose transformer layers are compiled.

The sizes are those of `benchmarks/pretraining.py`. Compilation is in the first turn, which is not counted. Both start
with equal weights, and have equal masks and dropout; their losses are checked to be equal up to rounding.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from benchmarks.contest import OURS, Case
from benchmarks.pretraining import PAPERS, Size, stepping
from benchmarks.random_texts import texts, word_pieces
from models.layers.bert import BertForMaskedLM
from models.pretraining import Initialisation
from models.retrievers.bi_encoder import DenseEncoder
from models.row_random import RowRandom
from models.tokens import num_tokens
from tasks.training.compilation import compile_layers

DEVICES = ("cpu", "cuda")
COMPILED = "compiled layers"
Losses = dict[str, float]


def cases(device: str, *, small: bool) -> Iterator[Case]:
    """Yield a step of CoT-MAE and of RetroMAE; of CoT-MAE only where sizes are small, since compilation takes long."""
    torch.set_num_threads(1)
    size = Size(12, 768, 256) if device == "cuda" else Size(1, 64, 2, 1000) if small else Size(6, 384, 8)
    for name in ("CoT-MAE", "RetroMAE")[: 1 if small else 2]:
        yield _steps(name, size, torch.device(device))


def _steps(name: str, size: Size, device: torch.device) -> Case:
    """Return the case of a paper."""
    paper, tokenizer = PAPERS[name], word_pieces(size.vocabulary)
    drawn = texts(size.texts, size.vocabulary, full=False)

    def contender(change: Callable[[torch.nn.Module], None]) -> Callable[[], Losses]:
        torch.manual_seed(0)
        initial = Initialisation(DenseEncoder(BertForMaskedLM(size.config()), "cls"))
        objective, numbers = paper.ours.Pretraining(initial, paper.settings).to(device).train(), itertools.count()
        change(objective)

        def losses() -> Mapping[str, torch.Tensor]:
            number = next(numbers)
            torch.manual_seed(number)
            batch = paper.ours.make_batch(drawn, tokenizer, paper.settings, RowRandom(1, number)).to(device)
            result: Mapping[str, torch.Tensor] = objective.encode(batch)[1]
            return result

        return stepping(objective, losses, device, lambda memory: None)

    tokens = num_tokens(paper.ours.make_batch(drawn, tokenizer, paper.settings, RowRandom(1, 0)))
    contenders = {OURS: contender(lambda objective: None), COMPILED: contender(compile_layers)}
    return Case(f"{name}, {size}", contenders, {}, _nearly_equal, repeats=3, units={"tokens": float(tokens)})


def _nearly_equal(results: Mapping[str, Any]) -> dict[str, Any]:
    """Check that the losses of the last step are equal up to rounding, and return ours."""
    for name, loss in results[OURS].items():
        assert abs(loss - results[COMPILED][name]) < 1e-2 * loss, results
    return {"losses of the last step": results[OURS]}
