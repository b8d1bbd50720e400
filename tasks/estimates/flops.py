"""Tokens and FLOPs of a training before it runs, counted on a model of its shape instead of a formula for each paper.

The count has the multiplications and additions of every matrix product, 2 m n k for [m, k] by [k, n], in `encode`,
`compare` and their gradients, for one example of maximum length. Sums, softmaxes, norms and the optimiser are not
counted, nor are comparisons between examples: they grow with the square of the batch, but an inner product of two
vectors has about a thousand operations, and computing each vector some 10^10.
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

from models import backbones
from models.layers.bert import BertForMaskedLM
from models.layers.bert_config import CONFIG, BertConfig
from models.objective import Batch, Objective
from models.pretraining import Initialisation, RawBatch, TermCounts
from models.retrievers import cross_encoder, towers
from models.retrievers.bi_encoder import DenseEncoder
from models.retrievers.cross_encoder import CrossEncoder, Groups, pad_pairs
from models.retrievers.examples import Examples
from models.retrievers.objective import Finetuning
from models.retrievers.retriever import Retriever
from models.retrievers.retriever_settings import RetrieverSettings
from models.retrievers.views.late import MARKERS
from models.row_random import RowRandom
from models.tokens import FILES, SPECIALS, Tokenizer, num_tokens, pad
from storage.errors import UserError
from tasks.cross_encoder.pairs import Scoring
from tasks.cross_encoder.train_teacher import TeacherTraining
from tasks.estimates.allocations import Uncomputed
from tasks.finetuning.train import Training
from tasks.pretraining.initialise import BackboneSettings, with_vocabulary
from tasks.pretraining.pretrain import Pretraining

BERT_BASE = BertConfig(
    vocab_size=30_522, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072
)
TEXTS = 1000  # size of the assumed collection for term counts


@dataclass(frozen=True)
class Cost:
    """The cost of one example or of several."""

    tokens: float
    """The number of tokens in all texts of the examples, without padding, as in the training's log."""
    flops: float

    def times(self, number: float) -> Cost:
        """Return the cost of that many examples."""
        return Cost(self.tokens * number, self.flops * number)


class Costs:
    """The costs of stages that start from a backbone, which is assumed to be BERT-base if its folder is missing."""

    def __init__(self, folder: Path, backbone: BackboneSettings, *, dropout: float | None = 0.0) -> None:
        """`dropout` is that of hidden states, which changes memory and no FLOPs; attention has none, to save time.

        None is the dropout of the model's configuration.
        """
        self.assumed = not (folder / CONFIG).is_file()
        with naming("backbone"):
            config = BERT_BASE if self.assumed else backbones.sizes(folder)
            complete = backbone.vocabulary is None and (folder / FILES[0]).is_file()
            config = with_vocabulary(config, backbone)
            self.tokenizer = Tokenizer.load(folder) if complete else numbered(config.vocab_size)
            hidden = config.hidden_dropout_prob if dropout is None else dropout
            config = replace(config, hidden_dropout_prob=hidden, attention_probs_dropout_prob=0.0)
            family = BertForMaskedLM if self.assumed else backbones.family(folder)
            model = family.create(config, folder, backbone.layers)
        self.encoder = towers.build_encoders(DenseEncoder(model, backbone.pooling or "cls"), backbone.towers)

    def pretraining(self, settings: Pretraining[Any]) -> Cost:
        """Return the cost of one pre-training example: a text, with its context if the paper uses one."""
        paper, objective = import_module(f"models.papers.{settings.paper}"), settings.objective
        raw = self.raw_batch(objective)
        with naming("pretrain.objective"):
            module = paper.Pretraining(Initialisation(self.encoder, raw.terms), objective)
        batch: Batch = paper.make_batch(raw, self.tokenizer, objective, RowRandom(0, 0))
        rows = settings.batch * len(batch)  # of a step: an objective may have several for a text
        return count(module, batch, repeated=_repeated(settings.fit.chunk, rows))

    def training(self, settings: Training) -> Cost:
        """Return the cost of one query with its passages, extrapolated from one and two passages of equal length."""
        repeated = _repeated(settings.fit.chunk, settings.batch_queries)
        with naming("train"):
            objective = Finetuning(self.retriever(settings.retriever), settings.loss)
            one, two = (count(objective, self.examples(settings, group), repeated=repeated) for group in (1, 2))
        more = settings.passages_per_query - 1
        return Cost(one.tokens + more * (two.tokens - one.tokens), one.flops + more * (two.flops - one.flops))

    def teaching(self, settings: TeacherTraining) -> Cost:
        """Return the cost of training a cross-encoder on one query with its passages."""
        group = settings.passages_per_query
        objective = cross_encoder.Finetuning(self.cross_encoder("teacher.train"))
        one = count(objective, self.pairs(settings.max_tokens))
        return one.times(group)

    def scoring(self, settings: Scoring) -> Cost:
        """Return the cost of scoring one pair with a cross-encoder."""
        reader = self.cross_encoder("teacher.score")
        with torch.no_grad(), counting() as counter:
            reader(self.pairs(settings.max_tokens).pairs)
        return Cost(settings.max_tokens, counter.flops)

    def pairs(self, max_tokens: int, rows: int = 1, group: int = 1) -> Groups:
        """Return `rows` queries, each with `group` pairs of the query and a passage."""
        pair = self.ids(max_tokens), max_tokens // 2
        return Groups(pad_pairs(self.tokenizer, [pair] * rows * group), group)

    def cross_encoder(self, section: str) -> CrossEncoder:
        """Return a cross-encoder with the backbone's configuration."""
        with naming(section):
            return CrossEncoder(self.encoder.passage.config)

    def encoding(self, views: RetrieverSettings, max_tokens: int) -> Cost:
        """Return the cost of encoding one passage."""
        tokens = pad([self.ids(max_tokens)])
        with naming("encode"):
            retriever = self.retriever(views)
            with torch.no_grad(), counting() as counter:
                retriever(tokens, "passage")
        return Cost(max_tokens, counter.flops)

    def retriever(self, views: RetrieverSettings) -> Retriever:
        """Return the backbone with the views of a round."""
        return Retriever(self.encoder, views, self.tokenizer)

    def raw_batch(self, objective: Any, rows: int = 1) -> RawBatch:
        """Return texts that still have their maximum length after their contexts have been removed (ICT)."""
        lengths = {
            field.name: getattr(objective, field.name)
            for field in dataclasses.fields(objective)
            if field.name.endswith("max_tokens")
        }
        context = max(lengths.values())
        text = self.ids(lengths["max_tokens"] + context)
        contexts = [text[:context]] * rows if objective.reads != "texts" else []
        return RawBatch([text] * rows, contexts, self.terms() if objective.counts_terms else None)

    def examples(self, settings: Training, group: int, rows: int = 1) -> Examples:
        """Return `rows` queries with `group` passages each."""
        passages = pad([self.ids(settings.passage_max_tokens)] * rows * group)
        teacher = torch.zeros(rows, group) if settings.distillation else None
        return Examples(pad([self.ids(settings.query_max_tokens)] * rows), passages, group, None, teacher=teacher)

    def ids(self, length: int) -> list[int]:
        """Return that number of WordPiece tokens, each a word of its own, so that masks use their complete budget."""
        words = np.flatnonzero(~self.tokenizer.is_special & ~self.tokenizer.continues)
        ids: list[int] = np.random.default_rng(0).choice(words, size=length).tolist()
        return ids

    def terms(self) -> TermCounts:
        """Return the counts of a collection in which all WordPiece tokens are equally frequent."""
        counts = np.full(self.tokenizer.vocab_size, TEXTS // 10, dtype=np.int64)
        return TermCounts(TEXTS, counts, counts)


def count(module: Any, batch: Batch, *, repeated: float = 0.0) -> Cost:
    """Return a batch's cost; `repeated` is the share of the rows whose compared vectors GradCache computes twice."""
    objective: Objective = module.train()
    with counting() as counter:
        vectors, losses = objective.encode(batch)
        encoding = counter.flops
        total = torch.stack([*losses.values(), *objective.compare(vectors, batch).values()]).sum()
        total.backward()
    module.zero_grad(set_to_none=True)
    without_graph = repeated * encoding if vectors else 0
    return Cost(num_tokens(batch), counter.flops + without_graph)


@contextlib.contextmanager
def counting() -> Iterator[Uncomputed]:
    """Count matrix products in the block; they return zeros instead of being computed."""
    with sdpa_kernel(SDPBackend.MATH), Uncomputed() as counter:
        yield counter


@contextlib.contextmanager
def naming(section: str) -> Iterator[None]:
    """Turn a ValueError of the block into a UserError that names a section of the recipe."""
    try:
        yield
    except ValueError as error:
        raise UserError(f"{section}: {error}") from None


def numbered(num_words: int) -> Tokenizer:
    """Return a tokenizer with that many WordPiece tokens, for a backbone whose tokenizer is missing."""
    named = [*SPECIALS, *MARKERS.values()]
    tokens = [*named, *(f"token{number}" for number in range(num_words - len(named)))]
    fast = FastTokenizer(WordPiece({token: number for number, token in enumerate(tokens)}, unk_token="[UNK]"))
    fast.add_special_tokens(list(SPECIALS))
    return Tokenizer(fast)


def _repeated(chunk: int | None, rows: int) -> float:
    """Return the share of a step's rows that one process encodes twice: those of all chunks but the first."""
    return 0.0 if chunk is None else max(0.0, 1 - chunk / rows)
