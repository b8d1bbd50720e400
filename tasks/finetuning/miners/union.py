"""Negatives are the passages that any of several runs ranks highest: the union of CAME's experts' lists (section 3.3).

A passage in several lists occurs once, with its best rank and the score it has there.
"""

from __future__ import annotations

from typing import Literal

from storage.artifact import Artifact
from storage.tables import TeacherScores
from tasks.finetuning.miners import MiningSettings, QueryCandidates, Row

SEVERAL_RUNS, READS_SCORES = True, False


class Union(MiningSettings):
    """All candidates of all lists become negatives."""

    miner: Literal["union"]


class Selector:
    """Selects the union, by best rank; of equal ranks, the first run's passage comes first."""

    def __init__(self, settings: Union, scores: Artifact[TeacherScores] | None) -> None:
        pass

    def __call__(self, query: QueryCandidates) -> list[Row]:
        ranked = sorted((row for rows in query.candidates for row in rows), key=lambda row: row["rank"])  # stable
        best: dict[str, Row] = {}
        for row in ranked:
            best.setdefault(row["passage_id"], row)
        return list(best.values())
