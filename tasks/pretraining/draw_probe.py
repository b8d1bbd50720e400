"""The probe: while a pre-training runs, how well its vectors retrieve as they are, without any fine-tuning.

People ask when to stop, and the losses do not say. The probe only watches: nothing is learned from it.
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
from storage.rows import read_rows, read_table, write_rows
from storage.settings import Seed, Settings
from storage.tables import Pairs, Passages, Qrels, Queries, passage_text
from tasks.stage import stage

CUTOFF = 10
TEXTS_PER_BATCH = 64


class Probe(Settings):
    """What stands beside the losses while a pre-training runs."""

    every: int = Field(gt=0)
    """Steps from one probe to the next."""
    pairs: int = Field(gt=1)
    """Questions, and as many passages to find theirs among, at most."""


class Drawing(Settings):
    """How many pairs are drawn."""

    pairs: int
    seed: Seed


@stage(version=1, table=Pairs)
def draw_probe(
    out: Path, queries: Artifact[Queries], qrels: Artifact[Qrels], passages: Artifact[Passages], *, settings: Drawing
) -> None:
    """Write queries of different documents, drawn at random, each with the first passage of its document."""
    texts = {row["query_id"]: row["text"] for row in read_rows(queries, Queries)}
    judged = [row for row in read_rows(qrels, Qrels) if row["grade"] > 0 and row["query_id"] in texts]
    wanted: dict[str, str] = {}
    for place in np.random.default_rng(settings.seed).permutation(len(judged)).tolist():
        if len(wanted) < settings.pairs and judged[place]["query_id"] not in wanted.values():
            wanted.setdefault(judged[place]["doc_id"], judged[place]["query_id"])
    found: dict[str, dict[str, object]] = {}
    for row in read_rows(passages, Passages):
        if row["doc_id"] in wanted and row["doc_id"] not in found:
            text = passage_text(row["title"], row["text"])
            found[row["doc_id"]] = {
                "passage_id": row["passage_id"], "text": text, "queries": [texts[wanted[row["doc_id"]]]], "passages": []
            }  # fmt: skip
    if len(found) < 2:
        raise UserError(
            f"{qrels.reference}: expected two relevant documents or more to probe with, found {len(found)}; "
            "set pretrain.probe to null"
        )
    write_rows(out, Pairs, found.values())


@stage(version=1, table=Pairs)
def draw_probe_of_pairs(out: Path, pairs: Artifact[Pairs], *, settings: Drawing) -> None:
    """Write some of the pairs themselves, where nobody asked questions: pseudo-queries are to find their passage."""
    rows = read_table(pairs, Pairs)
    chosen = np.random.default_rng(settings.seed).permutation(len(rows))[: settings.pairs]
    write_rows(out, Pairs, rows.take(np.sort(chosen)).to_pylist())


class Watch:
    """Called with the steps done, tells every so many of them the MRR@10 of the probe's queries among its passages.

    Without a probe it tells nothing.
    """

    def __init__(
        self, pairs: Artifact[Pairs] | None, encoder: DenseEncoder, tokenizer: Tokenizer, settings: Probe | None,
        max_tokens: int,
    ) -> None:  # fmt: skip
        self.encoder, self.tokenizer, self.every = encoder, tokenizer, settings.every if settings else 0
        rows = read_table(pairs, Pairs, ["text", "queries"]).to_pylist() if pairs else []
        self.queries = tokenizer.encode([row["queries"][0] for row in rows], max_tokens)
        self.passages = tokenizer.encode([row["text"] for row in rows], max_tokens)

    def __call__(self, steps: int) -> dict[str, float]:
        """{} between the steps at which it looks."""
        if not self.queries or steps % self.every:
            return {}
        training = self.encoder.passage.training  # the objective trains the towers, not what holds them
        self.encoder.eval()
        with torch.no_grad():
            scores_QP = self.vectors(self.queries, "query") @ self.vectors(self.passages, "passage").T
        self.encoder.train(training)
        return {"probe_MRR@10": reciprocal_ranks(scores_QP).mean().item()}

    def vectors(self, ids: list[list[int]], role: Role) -> Tensor:
        """[texts, H]"""
        device = next(self.encoder.parameters()).device
        batches = [ids[start : start + TEXTS_PER_BATCH] for start in range(0, len(ids), TEXTS_PER_BATCH)]
        found = [self.encoder(self.tokenizer.pad_batch(each).to(device), role).dense for each in batches]
        return torch.cat([each.float() for each in found if each is not None])


def reciprocal_ranks(scores_QP: Tensor) -> Tensor:
    """Of each query's own passage, the one of its number; 0 below rank 10. Of equal scores its own counts as the last:
    vectors that are all alike have retrieved nothing."""
    ranks_Q = (scores_QP >= scores_QP.diagonal()[:, None]).sum(1)
    return torch.where(ranks_Q <= CUTOFF, 1 / ranks_Q, 0.0)
