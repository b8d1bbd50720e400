"""Train a retriever: a bi-encoder, InfoNCE over in-batch and mined negatives.

Which negatives and which positive a query shows rotates with the epochs, so that it sees all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from models import towers
from models.encoder import Examples, Finetuning, known_positives
from models.tokens import Tokenizer, Tokens
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
    encoder = towers.load(start.path)
    longest, positions = max(settings.query_max_tokens, settings.passage_max_tokens), encoder.num_positions
    if longest > positions:
        raise UserError(f"train: max_tokens: expected at most {positions}, found {longest}")
    objective = Finetuning(encoder, settings.temperature)
    steps = math.ceil(len(data.queries) * settings.epochs / settings.batch_queries)
    fit(objective, data.batch, steps, out=out, settings=settings.fit, seed=settings.seed)
    save_checkpoint(encoder, out, tokenizer=start.path)


@dataclass(frozen=True)
class TrainingData:
    """Everything a step draws from; passages are named by their place in the corpus."""

    tokenizer: Tokenizer
    corpus: pa.Table
    """doc_id, title and text of the passages."""
    queries: Sequence[str]
    """Those that have a positive."""
    positives: Sequence[Sequence[int]]
    """Each query's, in the order of the table."""
    negatives: Sequence[Sequence[int]]
    """Each query's, shuffled once."""
    settings: Training

    @staticmethod
    def read(
        start: Artifact[Checkpoint], queries: Artifact[Queries], passages: Artifact[Passages],
        positives: Artifact[Positives], negatives: Artifact[Negatives], settings: Training,
    ) -> TrainingData:  # fmt: skip
        """Find the places of the passages that take part."""
        corpus = read_table(passages, Passages, ["passage_id", "doc_id", "title", "text"]).combine_chunks()
        relevant, hard = _grouped(read_table(positives, Positives)), _grouped(read_table(negatives, Negatives))
        wanted = {passage for group in (relevant, hard) for found in group.values() for passage in found}
        ids = enumerate(corpus["passage_id"].to_pylist())
        place = {passage: number for number, passage in ids if passage in wanted}
        if missing := sorted(wanted - set(place)):
            named = f"{positives.reference} or {negatives.reference}"
            raise UserError(f"{named}: passage {missing[0]!r} is not among {passages.reference}; make them again of it")
        asked = [row for row in read_table(queries, Queries).to_pylist() if row["query_id"] in relevant]
        if not asked:
            raise UserError(f"{queries.reference}: none of its queries has a positive passage; training needs some")
        return TrainingData(
            tokenizer=Tokenizer.load(start.path),
            corpus=corpus,
            queries=[row["text"] for row in asked],
            positives=[[place[passage] for passage in relevant[row["query_id"]]] for row in asked],
            negatives=[
                _shuffled([place[passage] for passage in hard.get(row["query_id"], [])], (settings.seed, number))
                for number, row in enumerate(asked)
            ],
            settings=settings,
        )

    def batch(self, step: int) -> Examples:
        """The queries of a step with their passages."""
        settings = self.settings
        chosen = visited(step, settings.batch_queries, len(self.queries), settings.seed)
        shown: list[int] = []
        for number, query in enumerate(chosen):
            epoch = (step * settings.batch_queries + number) // len(self.queries)
            shown.append(self.positives[query][epoch % len(self.positives[query])])
            shown += self.window(query, epoch)
        passages = self.corpus.take(shown).to_pydict()
        texts = [passage_text(title, text) for title, text in zip(passages["title"], passages["text"], strict=True)]
        excluded = None
        if settings.mask_known_positives:
            relevant = [self.relevant(query) for query in chosen]
            excluded = known_positives(relevant, passages["doc_id"], settings.passages_per_query)
        return Examples(
            queries=self._tokens([self.queries[query] for query in chosen], settings.query_max_tokens),
            passages=self._tokens(texts, settings.passage_max_tokens),
            group=settings.passages_per_query,
            excluded=excluded,
        )

    def window(self, query: int, epoch: int) -> list[int]:
        """The epoch's negatives of a query: the next of its list, around its end; of the corpus where it has none."""
        wanted, mined = self.settings.passages_per_query - 1, self.negatives[query]
        if mined:
            return [mined[(epoch * wanted + place) % len(mined)] for place in range(wanted)]
        relevant = self.relevant(query)
        if wanted and len(relevant) == self.num_documents:
            raise UserError(
                f"query {self.queries[query]!r}: every document is relevant to it; leave it out of the qrels"
            )
        random = np.random.default_rng((self.settings.seed, query, epoch))
        drawn: list[int] = []
        while len(drawn) < wanted:
            passage = int(random.integers(len(self.corpus)))
            drawn += [passage] if self.document(passage) not in relevant else []
        return drawn

    def relevant(self, query: int) -> set[str]:
        """The documents of a query's positives."""
        return {self.document(passage) for passage in self.positives[query]}

    def document(self, passage: int) -> str:
        """The document of the passage at a place."""
        document: str = self.corpus["doc_id"][passage].as_py()
        return document

    @cached_property
    def num_documents(self) -> int:
        """Different documents of the corpus."""
        return int(pc.count_distinct(self.corpus["doc_id"]).as_py())

    def _tokens(self, texts: Sequence[str], max_tokens: int) -> Tokens:
        return self.tokenizer.pad_batch(self.tokenizer.encode(texts, max_tokens))


def _grouped(rows: pa.Table) -> dict[str, list[str]]:
    """Query to its passages, in the order of the rows."""
    found: dict[str, list[str]] = {}
    for query, passage in zip(rows["query_id"].to_pylist(), rows["passage_id"].to_pylist(), strict=True):
        found.setdefault(query, []).append(passage)
    return found


def _shuffled(places: list[int], seed: tuple[int, int]) -> list[int]:
    return [places[place] for place in np.random.default_rng(seed).permutation(len(places))]
