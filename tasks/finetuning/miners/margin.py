"""Negatives must score clearly less than the positive: what comes close to it may be relevant, too.

De Souza Moreira et al. 2024, NV-Retriever, section 3: a candidate's score may at most be the positive's less a margin
(TopK-MarginPos), or a share of it (TopK-PercPos). The positive is the lowest of those that the run found. Where it
found none, all of the list scores more than they do, and nothing is left.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from storage.artifact import Artifact
from storage.tables import TeacherScores
from tasks.finetuning.mine import Asked, MiningSettings, Row

SEVERAL_RUNS, READS_SCORES = False, False


class Margin(MiningSettings):
    """How far below the positive's score a negative lies at least; one of both."""

    miner: Literal["margin"]
    margin: float | None = Field(default=None, ge=0)
    """In units of the run's score."""
    share: float | None = Field(default=None, gt=0, le=1)
    """Of the positive's score where that is above 0, where a share of it is below it; else the whole of it."""

    @model_validator(mode="after")
    def _one(self) -> Margin:
        if (self.margin is None) == (self.share is None):
            raise ValueError("give either margin or share")
        return self

    def highest(self, positive: float) -> float:
        """The most that a negative may score beside a positive of this score."""
        if self.margin is not None:
            return positive - self.margin
        return positive * (self.share or 1.0) if positive > 0 else positive


class Choice:
    """What is left below the margin, in the order of rank."""

    def __init__(self, settings: Margin, scores: Artifact[TeacherScores] | None) -> None:
        self.settings = settings

    def __call__(self, asked: Asked) -> list[Row]:
        wanted = set(asked.positives)
        found = [row["score"] for row in asked.ranked[0] if row["passage_id"] in wanted]
        if not found:
            return []
        highest = self.settings.highest(min(found))
        return [row for row in asked.left[0] if row["score"] <= highest]
