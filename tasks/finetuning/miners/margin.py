"""Negatives must score clearly below the positive, since a passage that comes close to it may be relevant too.

De Souza Moreira et al. 2024, NV-Retriever, section 3: a candidate's score is at most the positive's score minus a
margin (TopK-MarginPos), or a share of it (TopK-PercPos). Of several positives in the list, the lowest score counts.
If the list has no positive, all its passages score higher than the positives, and none is selected.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from storage.artifact import Artifact
from storage.tables import TeacherScores
from tasks.finetuning.miners import MiningSettings, QueryCandidates, Row

SEVERAL_RUNS, READS_SCORES = False, False


class Margin(MiningSettings):
    """The least distance between the positive's score and a negative's: either a margin or a share."""

    miner: Literal["margin"]
    margin: float | None = Field(default=None, ge=0)
    """In units of the run's score."""
    share: float | None = Field(default=None, gt=0, le=1)
    """The most that a negative may score, as a share of a positive score above 0; of other scores the score itself,
    because a share of a negative number is larger than it."""

    @model_validator(mode="after")
    def _one(self) -> Margin:
        if (self.margin is None) == (self.share is None):
            raise ValueError("give either margin or share")
        return self

    def highest(self, positive: float) -> float:
        """Return the highest score of a negative, given the score of the positive."""
        if self.margin is not None:
            return positive - self.margin
        return positive * (self.share or 1.0) if positive > 0 else positive


class Selector:
    """Selects the candidates below the margin, in the order of rank."""

    def __init__(self, settings: Margin, scores: Artifact[TeacherScores] | None) -> None:
        self.settings = settings

    def __call__(self, query: QueryCandidates) -> list[Row]:
        positives = set(query.positives)
        scores = [row["score"] for row in query.ranked[0] if row["passage_id"] in positives]
        if not scores:
            return []
        highest = self.settings.highest(min(scores))
        return [row for row in query.candidates[0] if row["score"] <= highest]
