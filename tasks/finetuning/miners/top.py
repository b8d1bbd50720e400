"""Negatives are the passages that one run ranks highest: BM25 in a first round, the retriever itself in a later one."""

from __future__ import annotations

from typing import Literal

from storage.artifact import Artifact
from storage.tables import TeacherScores
from tasks.finetuning.miners import MiningSettings, QueryCandidates, Row

SEVERAL_RUNS, READS_SCORES = False, False


class Top(MiningSettings):
    """All candidates become negatives."""

    miner: Literal["top"]


class Selector:
    """Selects all candidates, in the order of rank."""

    def __init__(self, settings: Top, scores: Artifact[TeacherScores] | None) -> None:
        pass

    def __call__(self, query: QueryCandidates) -> list[Row]:
        return list(query.candidates[0])
