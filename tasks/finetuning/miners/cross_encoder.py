"""Negatives must score below the positive by a cross-encoder, which separates hard negatives from unlabelled positives.

Denoised hard negatives (Qu et al. 2021, RocketQA), with a margin in place of their threshold: a candidate is selected
if its teacher score is at most that of the query's lowest positive, minus the margin, or if its probability is at most
a share of the positive's (de Souza Moreira et al. 2024, NV-Retriever, section 3: TopK-PercPos, here of a teacher).
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from models.settings import omitted_at
from storage.artifact import Artifact
from storage.errors import UserError
from storage.tables import TeacherScores
from tasks.finetuning.miners import MiningSettings, QueryCandidates, Row
from tasks.retrieval.run_lists import RunLists

SEVERAL_RUNS, READS_SCORES = False, True


class CrossEncoder(MiningSettings):
    """The least distance between the positive's teacher score and a negative's."""

    miner: Literal["cross_encoder"]
    margin: float | None = Field(default=None, ge=0)
    """In units of the teacher's score: a logit."""
    share: Annotated[float | None, omitted_at(None)] = Field(default=None, gt=0, le=1)
    """Instead of a margin: the most that a negative's probability may be, as a share of the positive's. Probabilities
    are the sigmoid of the teacher's scores, since a share of a negative number is larger than it."""

    @model_validator(mode="after")
    def _one(self) -> CrossEncoder:
        if (self.margin is None) == (self.share is None):
            raise ValueError("give either margin or share")
        return self

    def highest(self, positive: float) -> float:
        """Return the highest score of a negative, given the score of the positive."""
        if self.share is None:
            return positive - (self.margin or 0.0)
        if self.share == 1 or positive < -700:  # where the exponential is infinite
            return positive + math.log(self.share)
        # The logarithm of p / (1 - p) for the probability p = share * sigmoid(positive).
        return math.log(self.share) - math.log(1 - self.share + math.exp(-positive))


class Selector:
    """Selects the candidates below the margin, in the order of rank."""

    def __init__(self, settings: CrossEncoder, scores: Artifact[TeacherScores] | None) -> None:
        if scores is None:
            raise TypeError("the miner cross_encoder reads a teacher's scores")
        self.settings, self.lists = settings, RunLists(scores)
        self.indices = {name: index for index, name in enumerate(self.lists.query_ids.to_pylist())}

    def __call__(self, query: QueryCandidates) -> list[Row]:
        scores = self._scores(query.query_id)
        highest = self.settings.highest(min(self._score(scores, query, passage) for passage in query.positives))
        return [row for row in query.candidates[0] if self._score(scores, query, row["passage_id"]) <= highest]

    def _scores(self, query_id: str) -> dict[str, float]:
        """Return the teacher's scores of a query's passages, by passage id."""
        rows = self.lists.read(np.array([self.indices.get(query_id, -1)]), None)
        return dict(zip(rows.passage_ids.to_pylist(), rows.scores.tolist(), strict=True))

    def _score(self, scores: dict[str, float], query: QueryCandidates, passage: str) -> float:
        if passage not in scores:
            raise UserError(
                f"{self.lists.reference}: no score of query {query.query_id!r} with passage {passage!r}; score all "
                "candidates of the run that is mined"
            )
        return scores[passage]
