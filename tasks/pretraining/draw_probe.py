"""The retrieval probe: how well the vectors of a running pre-training retrieve without fine-tuning.

It helps to decide when to stop, which the losses do not show. It has no effect on the training.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from models.representation import Role
from models.retrievers.bi_encoder import DenseEncoder
from models.tokens import Tokenizer
from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import first_rows, num_rows, read_rows, read_table, rows_at, schema_of, write_rows
from storage.settings import Seed, Settings
from storage.tables import Pairs, Passages, Qrels, Queries, passage_text
from tasks.stage import stage

CUTOFF = 10
TEXTS_PER_BATCH = 64


class ProbeSettings(Settings):
    """The interval and the size of the probe."""

    every: int = Field(gt=0)
    """Steps between two probes."""
    pairs: int = Field(gt=1)
    """The largest number of queries, and of passages that they search."""


class Drawing(Settings):
    """The size of the sample of pairs."""

    pairs: int
    seed: Seed


@stage(version=1, table=Pairs)
def draw_probe(
    out: Path, queries: Artifact[Queries], qrels: Artifact[Qrels], passages: Artifact[Passages], *, settings: Drawing
) -> None:
    """Write random queries of different documents, each with the first passage of its document."""
    texts = {row["query_id"]: row["text"] for row in read_rows(queries, Queries)}
    judged = [row for row in read_rows(qrels, Qrels) if row["grade"] > 0 and row["query_id"] in texts]
    query_of: dict[str, str] = {}
    for number in np.random.default_rng(settings.seed).permutation(len(judged)).tolist():
        if len(query_of) < settings.pairs and judged[number]["query_id"] not in query_of.values():
            query_of.setdefault(judged[number]["doc_id"], judged[number]["query_id"])
    found = first_rows(passages, Passages, "doc_id", query_of, ["passage_id", "title", "text"])
    pairs = [
        {
            "passage_id": row["passage_id"], "text": passage_text(row["title"], row["text"]),
            "queries": [texts[query_of[document]]], "passages": [],
        }
        for document, row in found.items()
    ]  # fmt: skip
    if len(pairs) < 2:
        raise UserError(
            f"{qrels.reference}: expected at least two relevant documents to probe with, found {len(pairs)}; "
            "set pretrain.probe to null"
        )
    write_rows(out, Pairs, pairs)


@stage(version=1, table=Pairs)
def draw_probe_of_pairs(out: Path, pairs: Artifact[Pairs], *, settings: Drawing) -> None:
    """Write a sample of the pre-training pairs, for collections without queries; pseudo-queries search passages.

    Raises UserError if a sampled pair has no pseudo-query.
    """
    sample = np.random.default_rng(settings.seed).permutation(num_rows(pairs.path))[: settings.pairs]
    rows = rows_at(pairs, Pairs, np.sort(sample).tolist(), schema_of(Pairs).names).to_pylist()
    if without := [row["passage_id"] for row in rows if not row["queries"]]:
        raise UserError(
            f"{pairs.reference}: passage {without[0]} has no pseudo-query to probe with; set pretrain.probe to null"
        )
    write_rows(out, Pairs, rows)


class RetrievalProbe:
    """Measures the MRR@10 of the probe's queries on its passages at intervals of steps; {} without a probe."""

    def __init__(
        self, pairs: Artifact[Pairs] | None, encoder: DenseEncoder, tokenizer: Tokenizer,
        settings: ProbeSettings | None, max_tokens: int,
    ) -> None:  # fmt: skip
        self.encoder, self.tokenizer, self.every = encoder, tokenizer, settings.every if settings else 0
        rows = read_table(pairs, Pairs, ["text", "queries"]).to_pylist() if pairs else []
        self.queries = tokenizer.encode([row["queries"][0] for row in rows], max_tokens)
        self.passages = tokenizer.encode([row["text"] for row in rows], max_tokens)

    def __call__(self, steps: int) -> dict[str, float]:
        """Return the probe's MRR@10 after `steps` steps, or {} if no probe is due."""
        if not self.queries or steps % self.every:
            return {}
        training = self.encoder.passage.training  # the objective sets the mode of the encoders, not of their container
        self.encoder.eval()
        with torch.no_grad():
            scores_QP = self.vectors(self.queries, "query") @ self.vectors(self.passages, "passage").T
        self.encoder.train(training)
        return {"probe_MRR@10": reciprocal_ranks(scores_QP).mean().item()}

    def vectors(self, ids: list[list[int]], role: Role) -> Tensor:
        """Return the vectors of tokenised texts. [texts, H]"""
        device = next(self.encoder.parameters()).device
        batches = [ids[start : start + TEXTS_PER_BATCH] for start in range(0, len(ids), TEXTS_PER_BATCH)]
        vectors = [self.encoder(self.tokenizer.pad_batch(batch).to(device), role).dense for batch in batches]
        return torch.cat([vector.float() for vector in vectors if vector is not None])


def reciprocal_ranks(scores_QP: Tensor) -> Tensor:
    """Return the reciprocal rank of each query's own passage, which has its number; 0 below rank 10. [Q]

    Of equal scores the own passage ranks last, so that identical vectors count as retrieving nothing.
    """
    ranks_Q = (scores_QP >= scores_QP.diagonal()[:, None]).sum(1)
    return torch.where(ranks_Q <= CUTOFF, 1 / ranks_Q, 0.0)
