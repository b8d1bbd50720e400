"""The bi-encoder: one BERT for queries and passages, one vector a text, and the contrastive objective.

A checkpoint's folder says how its vectors are pooled in the files that sentence-transformers reads
(`modules.json`, `1_Pooling/config.json`), so it opens there too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from models import bert
from models.losses import contrastive_loss
from models.objective import Losses, Vectors
from models.representation import Pooling, Representation, Role, pooled
from models.similarity import dot
from models.tokens import Tokens

POOLING = Path("1_Pooling") / "config.json"


class Encoder(Protocol):
    """One network, told what it reads."""

    def __call__(self, tokens: Tokens, role: Role) -> Representation: ...


class DenseEncoder(nn.Module):
    """A BERT for passages and one for queries, whose pooled last hidden states are the texts' vectors.

    Both are one and the same where nothing else is said; `models.towers` makes two that share some parts.
    """

    def __init__(self, passage: bert.BertForMaskedLM, pooling: Pooling, query: bert.BertForMaskedLM | None = None):
        super().__init__()
        self.passage, self.query, self.pooling = passage, query or passage, pooling

    def forward(self, tokens: Tokens, role: Role) -> Representation:
        hidden_BLH = self.tower(role).bert(tokens.ids, tokens.mask)
        return Representation(dense=pooled(hidden_BLH, tokens.mask, self.pooling))

    @property
    def num_positions(self) -> int:
        """How many tokens a text may have."""
        return self.passage.config.max_position_embeddings

    def tower(self, role: Role) -> bert.BertForMaskedLM:
        """The network that reads texts of a role."""
        return self.query if role == "query" else self.passage


def load_pooling(folder: Path) -> Pooling:
    """How a checkpoint's vectors are pooled; [CLS], as in the papers, where its folder does not say."""
    path = folder / POOLING
    if not path.exists():
        return "cls"
    value = json.loads(path.read_text())
    old = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}  # as older releases write it
    modes = [old.get(name, name) for name in value if name.startswith("pooling_mode_") and value[name]]
    found = value.get("pooling_mode") or ", ".join(modes)
    known: dict[str, Pooling] = {"cls": "cls", "mean": "mean"}
    if found not in known:
        raise ValueError(f"{path}: expected cls or mean, found {found}")
    return known[found]


def save_pooling(folder: Path, pooling: Pooling, dim: int) -> None:
    """Write how vectors are pooled, as sentence-transformers reads it."""
    (folder / POOLING).parent.mkdir(exist_ok=True)
    modes = {"pooling_mode_cls_token": pooling == "cls", "pooling_mode_mean_tokens": pooling == "mean"}
    (folder / POOLING).write_text(json.dumps({"word_embedding_dimension": dim, **modes}, indent=1) + "\n")
    modules = [("", "Transformer"), (POOLING.parent.name, "Pooling")]
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed, indent=1) + "\n")


@dataclass(frozen=True)
class Examples:
    """Q queries and, in the same order, G passages of each, its positive first.

    `excluded` is [Q, P], True where a passage is relevant to a query but is not its positive here.
    """

    queries: Tokens
    passages: Tokens
    group: int
    excluded: Tensor | None

    def __len__(self) -> int:
        return len(self.queries.ids)

    def rows(self, start: int, stop: int) -> Examples:
        """Some queries with their passages. What is excluded concerns the whole batch and is left out."""
        first, last = start * self.group, stop * self.group
        passages = Tokens(self.passages.ids[first:last], self.passages.mask[first:last])
        return Examples(Tokens(self.queries.ids[start:stop], self.queries.mask[start:stop]), passages, self.group, None)

    def to(self, device: torch.device) -> Examples:
        """The same on another device."""
        excluded = None if self.excluded is None else self.excluded.to(device)
        return Examples(self.queries.to(device), self.passages.to(device), self.group, excluded)


class Finetuning(nn.Module):
    """InfoNCE over all passages of the batch: equation 12 of query-as-context pre-training."""

    def __init__(self, encoder: DenseEncoder, temperature: float) -> None:
        super().__init__()
        self.encoder, self.temperature = encoder, temperature

    def encode(self, batch: Examples) -> tuple[Vectors, Losses]:
        """Vectors of the queries [Q, H] and of their passages [Q * G, H]; no local loss."""
        queries, passages = self.encoder(batch.queries, "query"), self.encoder(batch.passages, "passage")
        return (queries.dense, passages.dense), {}

    def compare(self, vectors: Vectors, batch: Examples) -> Losses:
        """The contrast of every query with all passages."""
        queries, passages = (Representation(dense=each) for each in vectors)
        positives_Q = torch.arange(len(batch), device=vectors[0].device) * batch.group
        scores_QP = dot(queries, passages)
        loss = contrastive_loss(scores_QP, positives_Q, temperature=self.temperature, excluded_QP=batch.excluded)
        return {"contrastive": loss}


def known_positives(relevant: Sequence[set[str]], documents: Sequence[str], group: int) -> Tensor | None:
    """[Q, P], True where a passage's document is relevant to a query whose positive it is not; None if nowhere."""
    excluded_QP = torch.tensor([[document in wanted for document in documents] for wanted in relevant])
    for query in range(len(relevant)):
        excluded_QP[query, query * group] = False
    return excluded_QP if excluded_QP.any() else None
