"""Negatives are what one run ranks highest: BM25's in a first round, a retriever's own in a later one."""

from __future__ import annotations

from typing import Literal

from storage.artifact import Artifact
from storage.tables import TeacherScores
from tasks.finetuning.mine import Asked, MiningSettings, Row

SEVERAL_RUNS, READS_SCORES = False, False


class Top(MiningSettings):
    """All that is left of the list."""

    miner: Literal["top"]


class Choice:
    """All that is left, in the order of rank."""

    def __init__(self, settings: Top, scores: Artifact[TeacherScores] | None) -> None:
        pass

    def __call__(self, asked: Asked) -> list[Row]:
        return list(asked.left[0])
