"""Train a retriever: a bi-encoder, InfoNCE over in-batch and mined negatives.

Which negatives and which positive a query shows rotates with the epochs, so that it sees all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from pydantic import Field

from models import bert
from models.encoder import DenseEncoder, Examples, Finetuning, known_positives, load_pooling
from models.tokens import Tokenizer
from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import read_table
from storage.settings import Settings
from storage.tables import Checkpoint, Negatives, Passages, Positives, Queries, passage_text
from tasks.fit import Fitting, fit
from tasks.initialise import save_checkpoint
from tasks.pretrain import visited
from tasks.stage import stage


class Training(Settings):
    """How a retriever is trained."""

    epochs: int = Field(gt=0)
    batch_queries: int = Field(gt=0)
    passages_per_query: int = Field(gt=0)
    """The positive and, beside it, hard negatives."""
    temperature: float = Field(gt=0)
    mask_known_positives: bool
    """Leave out of a query's contrast the passages of its other relevant documents."""
    query_max_tokens: int = Field(gt=2)
    passage_max_tokens: int = Field(gt=2)
    fit: Fitting
    seed: int


@stage(version=1, table=Checkpoint)
def train(
    out: Path,
    start: Artifact[Checkpoint],
    queries: Artifact[Queries],
    passages: Artifact[Passages],
    positives: Artifact[Positives],
    negatives: Artifact[Negatives],
    *,
    settings: Training,
) -> None:
    """Write the retriever that so many epochs over the queries with a positive make of the start."""
    data = TrainingData.read(start, queries, passages, positives, negatives, settings)
    model, pooling = bert.load(start.path), load_pooling(start.path)
    objective = Finetuning(DenseEncoder(model, pooling), settings.temperature)
    steps = math.ceil(len(data.queries) * settings.epochs / settings.batch_queries)
    fit(objective, data.batch, steps, out=out, settings=settings.fit, seed=settings.seed)
    save_checkpoint(model, out, pooling=pooling, tokenizer=start.path)


@dataclass(frozen=True)
class TrainingData:
    """Everything a step draws from; passages are named by their place in the corpus."""

    tokenizer: Tokenizer
    queries: Sequence[Sequence[int]]
    """Token ids of the queries that have a positive."""
    positives: Sequence[Sequence[int]]
    negatives: Sequence[Sequence[int]]
    texts: Sequence[Sequence[int]]
    documents: Sequence[str]
    """Each passage's document."""
    settings: Training

    @staticmethod
    def read(
        start: Artifact[Checkpoint], queries: Artifact[Queries], passages: Artifact[Passages],
        positives: Artifact[Positives], negatives: Artifact[Negatives], settings: Training,
    ) -> TrainingData:  # fmt: skip
        """Tokenise once."""
        tokenizer, corpus = Tokenizer.load(start.path), read_table(passages, Passages).to_pydict()
        place = {passage: number for number, passage in enumerate(corpus["passage_id"])}
        relevant = _grouped(read_table(positives, Positives).to_pydict(), place)
        hard = _grouped(read_table(negatives, Negatives).to_pydict(), place)
        asked = [row for row in read_table(queries, Queries).to_pylist() if row["query_id"] in relevant]
        if not asked:
            raise UserError(f"{queries.reference}: none of its queries has a positive passage; training needs some")
        ids = [row["query_id"] for row in asked]
        texts = [passage_text(title, text) for title, text in zip(corpus["title"], corpus["text"], strict=True)]
        return TrainingData(
            tokenizer=tokenizer,
            queries=tokenizer.encode([row["text"] for row in asked], settings.query_max_tokens),
            positives=[relevant[query] for query in ids],
            negatives=[
                np.random.default_rng((settings.seed, number)).permutation(hard.get(query, [])).tolist()
                for number, query in enumerate(ids)
            ],
            texts=tokenizer.encode(texts, settings.passage_max_tokens),
            documents=corpus["doc_id"],
            settings=settings,
        )

    def batch(self, step: int) -> Examples:
        """The queries of a step with their passages."""
        settings = self.settings
        chosen = visited(step, settings.batch_queries, len(self.queries), settings.seed)
        shown: list[int] = []
        for place, query in enumerate(chosen):
            epoch = (step * settings.batch_queries + place) // len(self.queries)
            shown.append(self.positives[query][epoch % len(self.positives[query])])
            shown += self.window(query, epoch)
        relevant = [{self.documents[passage] for passage in self.positives[query]} for query in chosen]
        documents = [self.documents[passage] for passage in shown]
        return Examples(
            queries=self.tokenizer.pad_batch([self.queries[query] for query in chosen]),
            passages=self.tokenizer.pad_batch([self.texts[passage] for passage in shown]),
            group=settings.passages_per_query,
            excluded=known_positives(relevant, documents, settings.passages_per_query) if settings.mask_known_positives else None,
        )

    def window(self, query: int, epoch: int) -> list[int]:
        """The epoch's negatives of a query: the next ones of its shuffled list, around its end; of the corpus if it has none."""
        wanted, mined = self.settings.passages_per_query - 1, self.negatives[query]
        if mined:
            return [mined[(epoch * wanted + place) % len(mined)] for place in range(wanted)]
        relevant = {self.documents[passage] for passage in self.positives[query]}
        if len(relevant) == self.num_documents:
            raise UserError("training: a query for which every document is relevant has no negatives; leave it out of the qrels")
        random = np.random.default_rng((self.settings.seed, query, epoch))
        drawn: list[int] = []
        while len(drawn) < wanted:
            passage = int(random.integers(len(self.texts)))
            drawn += [passage] if self.documents[passage] not in relevant else []
        return drawn

    @cached_property
    def num_documents(self) -> int:
        """Different documents of the corpus."""
        return len(set(self.documents))


def _grouped(rows: Mapping[str, Sequence[str]], place: Mapping[str, int]) -> dict[str, list[int]]:
    """Query to the places of its passages, in the order of the rows."""
    found: dict[str, list[int]] = {}
    for query, passage in zip(rows["query_id"], rows["passage_id"], strict=True):
        found.setdefault(query, []).append(place[passage])
    return found
