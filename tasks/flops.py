"""What a training costs before it runs: tokens and FLOPs, counted on a model of its shape, not by a formula a paper.

Counted are the multiplications and additions of every matrix product, 2 m n k for [m, k] by [k, n], in `encode`,
`compare` and their gradients, as the objective itself calls them for one example of full length; lengths that a paper
draws at random are as drawn. Not counted are sums, softmaxes, norms and the optimiser's step, and the comparisons
between examples, which grow with the square of a batch: an inner product of a thousand terms for two vectors, each of
which took some 10^10.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import WordPiece
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from models.layers.bert import CONFIG, BertConfig, BertForMaskedLM
from models.objective import Batch, Objective
from models.pretraining import Initialisation, RawBatch, TermCounts
from models.retrievers import cross_encoder, towers
from models.retrievers.bi_encoder import DenseEncoder
from models.retrievers.cross_encoder import CrossEncoder, Groups, pad_pairs
from models.retrievers.examples import Examples
from models.retrievers.objective import Finetuning
from models.retrievers.retriever import Retriever, RetrieverSettings
from models.tokens import FILES, Tokenizer, num_tokens, pad
from storage.errors import UserError
from tasks.cross_encoder.pairs import Scoring
from tasks.cross_encoder.train_teacher import TeacherTraining
from tasks.finetuning.train import Training
from tasks.pretraining.initialise import Backbone
from tasks.pretraining.pretrain import Pretraining

BERT_BASE = BertConfig(
    vocab_size=30_522, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072
)
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROWS = 1
TEXTS = 1000  # of the collection whose terms are counted


@dataclass(frozen=True)
class Cost:
    """Of an example, or of many."""

    tokens: float
    """As the training's log counts them: without padding, in all texts that an example has."""
    flops: float

    def times(self, number: float) -> Cost:
        """Of so many."""
        return Cost(self.tokens * number, self.flops * number)


class Costs:
    """What stages cost that start from a backbone; where its folder is not here, it is taken to be BERT-base."""

    def __init__(self, folder: Path, backbone: Backbone) -> None:
        self.assumed = not (folder / CONFIG).is_file()
        with naming("backbone"):
            config = BERT_BASE if self.assumed else BertConfig.load(folder)
            self.tokenizer = Tokenizer.load(folder) if (folder / FILES[0]).is_file() else numbered(config.vocab_size)
        layers = len(backbone.layers) if backbone.layers is not None else config.num_hidden_layers
        still = replace(config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)  # draws take time
        model = BertForMaskedLM(replace(still, num_hidden_layers=layers))
        self.encoder = towers.build_encoders(DenseEncoder(model, backbone.pooling), backbone.towers)

    def pretraining(self, settings: Pretraining[Any]) -> Cost:
        """Of one example: a text, with its context where the paper reads one."""
        paper, objective = import_module(f"models.papers.{settings.paper}"), settings.objective
        drawn = self.drawn(objective)
        with naming("pretrain.objective"):
            module = paper.Pretraining(Initialisation(self.encoder, drawn.terms), objective)
        batch: Batch = paper.make_batch(drawn, self.tokenizer, objective, np.random.default_rng(0))
        return counted(module, batch, chunked=_below(settings.fit.chunk, settings.batch))

    def training(self, settings: Training) -> Cost:
        """Of one query with its passages; all passages cost the same, so two tell of any number."""
        chunked = _below(settings.fit.chunk, settings.batch_queries)
        with naming("train"):
            objective = Finetuning(self.retriever(settings.retriever), settings.loss)
            one, two = (counted(objective, self.examples(settings, group), chunked=chunked) for group in (1, 2))
        more = settings.passages_per_query - 1
        return Cost(one.tokens + more * (two.tokens - one.tokens), one.flops + more * (two.flops - one.flops))

    def teaching(self, settings: TeacherTraining) -> Cost:
        """Of one query with its passages, read with it."""
        group = settings.passages_per_query
        one = counted(
            cross_encoder.Finetuning(self._reader("teacher.train")), self.pairs(settings.max_tokens), chunked=False
        )
        return one.times(group)

    def scoring(self, settings: Scoring) -> Cost:
        """Of one pair."""
        reader = self._reader("teacher.score")
        with torch.no_grad(), counting() as counter:
            reader(self.pairs(settings.max_tokens).pairs)
        return Cost(settings.max_tokens, counter.get_total_flops())

    def pairs(self, max_tokens: int) -> Groups:
        """One query with one passage."""
        pair = self.ids(max_tokens), max_tokens // 2
        return Groups(pad_pairs(self.tokenizer, [pair]), 1)

    def _reader(self, section: str) -> CrossEncoder:
        """A cross-encoder of the backbone's shape."""
        with naming(section):
            return CrossEncoder(self.encoder.passage.config)

    def encoding(self, views: RetrieverSettings, max_tokens: int) -> Cost:
        """Of one passage."""
        tokens = pad([self.ids(max_tokens)])
        with naming("encode"):
            retriever = self.retriever(views)
            with torch.no_grad(), counting() as counter:
                retriever(tokens, "passage")
        return Cost(max_tokens, counter.get_total_flops())

    def retriever(self, views: RetrieverSettings) -> Retriever:
        """The backbone with the views of a round."""
        return Retriever(self.encoder, views, self.tokenizer)

    def drawn(self, objective: Any) -> RawBatch:
        """A text so long that a context can be cut out of it and it still fills all its tokens."""
        lengths = {
            each.name: getattr(objective, each.name)
            for each in dataclasses.fields(objective)
            if each.name.endswith("max_tokens")
        }
        context = max(lengths.values())
        text = self.ids(lengths["max_tokens"] + context)
        contexts = [text[:context]] if objective.reads != "texts" else []
        return RawBatch([text], contexts, self.terms() if objective.counts_terms else None)

    def examples(self, settings: Training, group: int) -> Examples:
        """One query with so many passages."""
        passages = pad([self.ids(settings.passage_max_tokens)] * group)
        teacher = torch.zeros(ROWS, group) if settings.distillation else None
        return Examples(pad([self.ids(settings.query_max_tokens)]), passages, group, None, teacher=teacher)

    def ids(self, length: int) -> list[int]:
        """Return that number of WordPiece tokens."""
        known = np.setdiff1d(np.arange(self.tokenizer.vocab_size), self.tokenizer.specials)
        drawn: list[int] = np.random.default_rng(0).choice(known, size=length).tolist()
        return drawn

    def terms(self) -> TermCounts:
        """Return the counts of a collection in which all WordPiece tokens are equally frequent."""
        each = np.full(self.tokenizer.vocab_size, TEXTS // 10, dtype=np.int64)
        return TermCounts(TEXTS, each, each)


def counted(module: Any, batch: Batch, *, chunked: bool) -> Cost:
    """A batch's cost. In chunks, vectors that are compared are computed twice: once more without a graph."""
    objective: Objective = module.train()
    with counting() as counter:
        vectors, losses = objective.encode(batch)
        encoding = counter.get_total_flops()
        total = torch.stack([*losses.values(), *objective.compare(vectors, batch).values()]).sum()
        total.backward()
    module.zero_grad(set_to_none=True)
    again = encoding if chunked and vectors else 0
    return Cost(num_tokens(batch), counter.get_total_flops() + again)


@contextlib.contextmanager
def counting() -> Iterator[FlopCounterMode]:
    """In this block matrix products are counted, and give zeros instead of being computed."""
    uncomputed: TorchDispatchMode = Uncomputed()  # type: ignore[no-untyped-call]
    with sdpa_kernel(SDPBackend.MATH), uncomputed, FlopCounterMode(display=False) as counter:
        yield counter


class Uncomputed(TorchDispatchMode):
    """Matrix products give zeros of their shape, for only shapes matter to a count: a BERT-base takes seconds."""

    PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.baddbmm)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func.overloadpacket not in self.PRODUCTS:
            return func(*args, **(kwargs or {}))
        left, right = args[-2:]
        return left.new_zeros(*left.shape[:-1], right.shape[-1])


@contextlib.contextmanager
def naming(section: str) -> Iterator[None]:
    """Say to which section of a recipe a complaint belongs."""
    try:
        yield
    except ValueError as error:
        raise UserError(f"{section}: {error}") from None


def numbered(num_words: int) -> Tokenizer:
    """Return a tokenizer with that many WordPiece tokens, for a backbone whose own is not here."""
    pieces = [*SPECIALS, *(f"piece{number}" for number in range(num_words - len(SPECIALS)))]
    fast = FastTokenizer(WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]"))
    fast.add_special_tokens(SPECIALS)
    return Tokenizer(fast)


def _below(chunk: int | None, batch: int) -> bool:
    return chunk is not None and chunk < batch
