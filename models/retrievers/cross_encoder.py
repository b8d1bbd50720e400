"""A cross-encoder: one BERT encodes query and passage together, and a classifier on [CLS] gives the relevance score.

Attention between query and passage ranks better than comparing vectors, but each pair needs a pass through BERT.
Retrievers are distilled from it (DupMAE, equation 15), and it re-ranks their results.

It is trained as in RetroMAE's repository: a cross-entropy over each query's positive and hard negatives. Its folder is
that of Hugging Face's BertForSequenceClassification with one label, which sentence-transformers opens too.

Shape suffixes: B pairs, L length, H hidden, Q queries, G passages of a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from models.batch import Rows
from models.layers.bert import BertForMaskedLM
from models.layers.bert_config import BertConfig
from models.layers.bert_layers import Bert, initialise
from models.layers.cls_only import cls_states
from models.model_files import WEIGHTS, UnusableModel, check_fit, first_names, read_weights, refuse_unusable
from models.objective import LocalObjective, Losses, Vectors
from models.tokens import Tokenizer, Tokens

POOLER = ("bert.pooler.dense.weight", "bert.pooler.dense.bias")
CLASSIFIER = ("classifier.weight", "classifier.bias")
ONE_LABEL: dict[str, Any] = {
    "id2label": {"0": "LABEL_0"},
    "label2id": {"LABEL_0": 0},
    # By default sentence-transformers applies a sigmoid to the score of a single label.
    "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"},
}

Pair = tuple[list[int], int]
"""The ids of [CLS] query [SEP] passage [SEP], and the number of tokens before the passage."""


@dataclass(frozen=True)
class PairTokens(Rows):
    """A padded batch of pairs; types [B, L] are 1 for the passage and its [SEP], 0 elsewhere."""

    tokens: Tokens
    types: Tensor


def encode_pair(
    tokenizer: Tokenizer, query: Sequence[int], passage: Sequence[int], *, query_max_tokens: int, max_tokens: int
) -> Pair:
    """Join a query, truncated to `query_max_tokens` with [CLS] and [SEP], and a passage, to `max_tokens` in total.

    Between both are the tokens that the tokenizer puts there: one [SEP] in BERT.
    """
    first = [tokenizer.cls, *query[: query_max_tokens - 2], *tokenizer.between]
    return [*first, *passage[: max_tokens - len(first) - 1], tokenizer.sep], len(first)


def pad_pairs(tokenizer: Tokenizer, pairs: Sequence[Pair]) -> PairTokens:
    """Pad pairs to the longest pair."""
    tokens = tokenizer.pad_batch([ids for ids, _ in pairs])
    begins_B1 = torch.tensor([begin for _, begin in pairs])[:, None]
    after_BL = torch.arange(tokens.ids.shape[1]) >= begins_B1
    return PairTokens(tokens, (after_BL & tokens.mask).long())


class Pooler(nn.Module):
    """The linear map and tanh that are applied to [CLS]."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, first_BH: Tensor) -> Tensor:
        return torch.tanh(self.dense(first_BH.float()))


class PooledBert(Bert):
    """BERT with a pooler."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.pooler = Pooler(config)


class CrossEncoder(nn.Module):
    """BERT with a pooler, dropout, and a classifier with one logit."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        if config.type_vocab_size < 2:
            raise ValueError(f"a cross-encoder needs token types 0 and 1, found {config.type_vocab_size} types")
        self.config = config
        self.new_weights: list[str] = []
        """The names of the weights that were initialised at random because the folder lacks them."""
        self.bert = PooledBert(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, 1)
        self.apply(lambda module: initialise(module, config.initializer_range))

    def forward(self, pairs: PairTokens) -> Tensor:
        """Return the relevance score of each pair [B], in float32 even under autocast, so that few scores tie."""
        tokens = pairs.tokens
        first_BH = cls_states(self.bert, tokens.ids, tokens.mask, pairs.types, positions_N=tokens.positions)
        with torch.autocast(first_BH.device.type, enabled=False):
            scores_B1: Tensor = self.classifier(self.dropout(self.bert.pooler(first_BH)))
        return scores_B1[:, 0]


@dataclass(frozen=True)
class Groups(Rows):
    """Q queries, each with G passages, its positive first: Q * G pairs, group after group."""

    pairs: PairTokens
    group: int

    def __len__(self) -> int:
        return len(self.pairs) // self.group

    def rows(self, start: int, stop: int) -> Groups:
        """Return the queries from `start` up to `stop` with their passages."""
        return replace(self, pairs=self.pairs.rows(start * self.group, stop * self.group))


class Finetuning(LocalObjective):
    """Listwise training: the negative log-likelihood of each query's positive among the query's own passages."""

    def __init__(self, encoder: CrossEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def encode(self, batch: Groups) -> tuple[Vectors, Losses]:
        """Return no vectors, and the listwise loss, a mean over queries."""
        scores_QG = self.encoder(batch.pairs).view(len(batch), batch.group)
        return (), {"listwise": cross_entropy(scores_QG, scores_QG.new_zeros(len(batch), dtype=torch.long))}


def load(folder: Path) -> CrossEncoder:
    """Load the cross-encoder of a Hugging Face folder in evaluation mode; UnusableModel without a trained head."""
    encoder, head_names = _read(folder)
    if missing := [name for name in (*POOLER, *CLASSIFIER) if name not in head_names]:
        lacks = f"found no {first_names(missing)}"
        raise UnusableModel(
            f"{folder / WEIGHTS}: expected a cross-encoder of one label, {lacks}; name a trained cross-encoder"
        )
    return encoder.eval()


def load_for_training(folder: Path) -> CrossEncoder:
    """Load a cross-encoder or a BERT for training; a missing pooler or classifier is initialised at random."""
    encoder, head_names = _read(folder)
    encoder.new_weights = [name for name in (*POOLER, *CLASSIFIER) if name not in head_names]
    return encoder


def save(encoder: CrossEncoder, folder: Path) -> None:
    """Write config.json and model.safetensors; sentence-transformers then also returns logits as scores."""
    encoder.config.save(folder, "BertForSequenceClassification", **ONE_LABEL)
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in encoder.state_dict().items()}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def _read(folder: Path) -> tuple[CrossEncoder, set[str]]:
    """Return a cross-encoder with the weights of a folder, and the names of the head's weights in the folder."""
    with refuse_unusable(folder):
        body = BertForMaskedLM.load(folder)
        encoder = CrossEncoder(body.config)
        initial, head = encoder.state_dict(), _head(folder)
        check_fit(head, {name: initial[name] for name in head}, folder / WEIGHTS, "a classifier of one label")
        body_weights = {f"bert.{name}": tensor for name, tensor in body.bert.state_dict().items()}
        encoder.load_state_dict(initial | body_weights | head)
    return encoder, set(head)


def _head(folder: Path) -> dict[str, Tensor]:
    """Return the weights of a folder's pooler and classifier, if any; a bare encoder saves them without `bert.`."""
    stored = read_weights(folder / WEIGHTS)
    names = {name if name in CLASSIFIER else f"bert.{name.removeprefix('bert.')}": name for name in stored}
    return {name: stored[names[name]] for name in (*POOLER, *CLASSIFIER) if name in names}
