"""A step of pre-training, from masks to AdamW; the plain one pads every text, and contexts as short as queries, to 144.

The baseline is `benchmarks/plain_pretraining.py`. Both start with equal weights and read the same texts of random
WordPiece tokens: as long as the leads of Wikipedia's articles (half of them have 70 to 133 tokens), cut to 144, or all
of 144. Contexts are as long as queries. Both use the same dropout, clipping and optimiser (fused AdamW), on a GPU under
bfloat16's autocast. Before the clock starts, both have equal losses on equal masks without dropout.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.contest import OURS, Case
from benchmarks.plain_pretraining import Collator, CotMae, DupMae, Inputs, PlainPretraining, RetroMae, padded
from benchmarks.random_texts import LONGEST, VOCABULARY, texts, word_pieces
from models.layers.bert import BertForMaskedLM
from models.layers.bert_config import BertConfig
from models.masking import mask_budgets
from models.papers import cot_mae, dup_mae, retro_mae
from models.papers.retro_mae import position_specific_mask
from models.pretraining import Initialisation, RawBatch
from models.retrievers.bi_encoder import DenseEncoder
from models.row_random import RowRandom
from models.texts import truncate_with_specials, word_indices
from models.tokens import num_tokens

DEVICES = ("cpu", "cuda")
PLAIN = "plain Hugging Face step"
RATES = (0.3, 0.45)
COT_MAE = cot_mae.Settings(
    decoder="ae", decoder_layers=1, window=None, text_mask_rate=RATES[0], context_mask_rate=RATES[1], symmetric=False,
    max_tokens=LONGEST, context_max_tokens=LONGEST,
)  # fmt: skip
RETRO_MAE = retro_mae.Settings(text_mask_rate=0.3, decoder_mask_rate=0.5, query_stream="sum", max_tokens=LONGEST)
DUP_MAE = dup_mae.Settings(
    text_mask_rate=0.3, decoder_mask_rate=0.5, query_stream="embedded", max_tokens=LONGEST, cls_decoding=True,
    ot_decoding=True, bow_weight=0.1, bow_target="mean_over_length", exclude_masked=False, ot_head="tied",
)  # fmt: skip


@dataclass(frozen=True)
class Size:
    """The sizes of network and batch."""

    layers: int
    hidden: int
    texts: int
    vocabulary: int = VOCABULARY

    def config(self) -> BertConfig:
        """Return a configuration with BERT's proportions."""
        return BertConfig(self.vocabulary, self.hidden, self.layers, self.hidden // 64, 4 * self.hidden)

    def __str__(self) -> str:
        return f"{self.layers} x {self.hidden}, {self.texts} texts"


@dataclass(frozen=True)
class Paper:
    """A paper in this project and in plain form."""

    ours: ModuleType
    settings: Any
    plain: type[PlainPretraining]
    layer: Callable[[Any], nn.Module]
    """Its decoder's layer."""
    collated: Callable[[Collator, RawBatch], Inputs]
    visible: Callable[[Any], Tensor] | None


PAPERS = {
    "CoT-MAE": Paper(
        cot_mae, COT_MAE, CotMae, lambda model: model.decoder.layers[0],
        lambda collator, drawn: collator.pairs(drawn.texts, drawn.contexts, RATES), None,
    ),
    "RetroMAE": Paper(
        retro_mae, RETRO_MAE, RetroMae, lambda model: model.decoder.layer,
        lambda collator, drawn: collator.texts(drawn.texts, (0.3, 0.5)),
        lambda batch: position_specific_mask(batch.words, batch.budgets, batch.text.mask),
    ),
    "DupMAE": Paper(
        dup_mae, DUP_MAE, DupMae, lambda model: model.decoder.layer,
        lambda collator, drawn: collator.texts(drawn.texts, (0.3, 0.5)),
        lambda batch: position_specific_mask(batch.words, batch.budgets, batch.text.mask),
    ),
}  # fmt: skip


def cases(device: str, *, small: bool) -> Iterator[Case]:
    """Yield a step of each paper, CoT-MAE's also without padding, and RetroMAE's masks without the rest of the step."""
    on = torch.device(device)
    size = Size(12, 768, 256) if device == "cuda" else Size(1, 64, 2, 1000) if small else Size(6, 384, 8)
    torch.set_num_threads(1)
    yield steps("CoT-MAE", size, on, full=False, repeats=3)
    yield steps("CoT-MAE", size, on, full=True, repeats=2)
    yield steps("RetroMAE", size, on, full=False, repeats=2)
    yield steps("DupMAE", size, on, full=False, repeats=2)
    yield masks(on, 4 if small else 64, size.vocabulary)


def steps(name: str, size: Size, device: torch.device, *, full: bool, repeats: int) -> Case:
    """Return a case of one step of ours and of the plain one."""
    paper, tokenizer = PAPERS[name], word_pieces(size.vocabulary)
    drawn = texts(size.texts, size.vocabulary, full=full)
    torch.manual_seed(0)
    ours: Any = paper.ours.Pretraining(
        Initialisation(DenseEncoder(BertForMaskedLM(size.config()), "cls")), paper.settings
    )
    plain: Any = paper.plain(transformers.BertConfig(**vars(size.config())))  # its attention is PyTorch's own
    plain.equal_to(ours, paper.layer(ours))
    for module in (ours, plain):
        module.to(device)
    batch = paper.ours.make_batch(drawn, tokenizer, paper.settings, RowRandom(0, 0))
    equal = equal_losses(ours.eval(), plain.eval(), batch.to(device), paper.visible)
    collator, numbers = Collator(tokenizer, LONGEST), itertools.count()
    random.seed(1)

    def our_losses() -> Mapping[str, Tensor]:
        batch = paper.ours.make_batch(drawn, tokenizer, paper.settings, RowRandom(1, next(numbers))).to(device)
        losses: Mapping[str, Tensor] = ours.encode(batch)[1]
        return losses

    def plain_losses() -> Mapping[str, Tensor]:
        batch = paper.collated(collator, drawn)
        losses: Mapping[str, Tensor] = plain.losses({key: value.to(device) for key, value in batch.items()})
        return losses

    peaks: dict[str, float] = {}
    contenders = {
        OURS: stepping(ours.train(), our_losses, device, partial(peaks.__setitem__, OURS)),
        PLAIN: stepping(plain.train(), plain_losses, device, partial(peaks.__setitem__, PLAIN)),
    }
    units = {"tokens": float(num_tokens(batch))}
    if device.type == "cuda":
        units["TFLOP of ours"] = counted(ours, batch.to(device)) / 1e12
    lengths = f"all of {LONGEST} tokens" if full else f"of {num_tokens(batch.text) / size.texts:.0f} tokens"
    target = 2.5 if device.type == "cuda" else 1.3
    return Case(
        f"{name}, {size} {lengths}", contenders, {PLAIN: target}, repeats=repeats, units=units,
        compared=lambda results: {**equal, **({"GPU memory at the peak, GiB": peaks} if device.type == "cuda" else {})},
    )  # fmt: skip


def stepping(
    module: nn.Module,
    losses: Callable[[], Mapping[str, Tensor]],
    device: torch.device,
    report_memory: Callable[[float], None],
) -> Callable[[], dict[str, float]]:
    """Return a step of a module, which returns its losses and the GPU's peak memory."""
    optimiser = torch.optim.AdamW(module.parameters(), lr=1e-4, weight_decay=0.01, fused=True)

    def step() -> dict[str, float]:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=device.type == "cuda"):
            terms = losses()
        torch.stack(list(terms.values())).sum().backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if device.type == "cuda":
            report_memory(torch.cuda.max_memory_allocated() / 2**30)
        return {name: loss.item() for name, loss in terms.items()}

    return step


@torch.no_grad()
def equal_losses(
    ours: Any, plain: Any, batch: Any, visible: Callable[[Any], Tensor] | None
) -> dict[str, dict[str, float]]:
    """Return both losses for one batch and equal masks; raise AssertionError if they differ."""
    torch.manual_seed(2)
    inputs = padded(batch, LONGEST, visible)
    theirs = {name: loss.item() for name, loss in plain.losses(inputs).items()}
    torch.manual_seed(2)
    own = {name: loss.item() for name, loss in ours.encode(batch)[1].items()}
    assert own.keys() == theirs.keys()
    for name, loss in own.items():
        assert math.isclose(loss, theirs[name], rel_tol=1e-5, abs_tol=1e-5), f"{name}: {loss} and {theirs[name]}"
    return {"losses": own, f"losses of the {PLAIN}": theirs}


def counted(ours: Any, batch: Any) -> float:
    """Return the FLOPs of the matrix products of a step: 2 m n k each, forward and backward."""
    with FlopCounterMode(display=False) as counter, torch.autocast("cuda", dtype=torch.bfloat16):
        torch.stack(list(ours.encode(batch)[1].values())).sum().backward()
    ours.zero_grad(set_to_none=True)
    return float(counter.get_total_flops())


def masks(device: torch.device, number: int, vocabulary: int) -> Case:
    """Return the mask of RetroMAE's decoder for one batch."""
    tokenizer, drawn = word_pieces(vocabulary), texts(number, vocabulary, full=False)
    collator = Collator(tokenizer, LONGEST)
    rows = [collator.framed(ids) for ids in drawn.texts]
    random.seed(3)

    def ours() -> Tensor:
        batch = truncate_with_specials(drawn.texts, LONGEST, tokenizer)
        words, budgets = word_indices(batch, tokenizer), mask_budgets(batch.lengths, 0.5)
        words_BL, budgets_B, real_BL = (torch.from_numpy(part).to(device) for part in (words, budgets, batch.real))
        return position_specific_mask(words_BL, budgets_B, real_BL)

    def plain() -> Tensor:
        return collator.visible(rows, 0.5).to(device)

    def compared(peaks: Mapping[str, Any]) -> dict[str, float]:
        shares = {
            OURS: share(peaks[OURS], rows, first=0),
            "the release's loops": share(peaks["the release's loops"], rows, first=1),
        }
        assert math.isclose(*shares.values(), rel_tol=0.02), shares
        return {f"share that is seen, {who}": value for who, value in shares.items()}

    return Case(
        f"RetroMAE's masks, {number} texts", {OURS: ours, "the release's loops": plain},
        {"the release's loops": 3.0}, compared,
    )  # fmt: skip


def share(visible: Tensor, rows: list[list[int]], *, first: int) -> float:
    """Return the share of its text that a position between [CLS] and [SEP] sees; rows are counted from `first` - 1."""
    seen = [visible[n, first : first + len(row) - 2, : len(row)].float().mean() for n, row in enumerate(rows)]
    return float(torch.stack(seen).mean())
