"""Negatives are what any of several runs ranks highest: the union of CAME's experts' lists (section 3.3).

What several runs found stands once, with its best rank and the score it had there.
"""

from __future__ import annotations

from typing import Literal

from storage.artifact import Artifact
from storage.tables import TeacherScores
from tasks.finetuning.mine import Asked, MiningSettings, Row

SEVERAL_RUNS, READS_SCORES = True, False


class Union(MiningSettings):
    """All that is left of every list, each cut to the depth."""

    miner: Literal["union"]


class Choice:
    """The union, by best rank; of equal ranks, the first run's."""

    def __init__(self, settings: Union, scores: Artifact[TeacherScores] | None) -> None:
        pass

    def __call__(self, asked: Asked) -> list[Row]:
        ranked = sorted((row for rows in asked.left for row in rows), key=lambda row: row["rank"])  # stable
        best: dict[str, Row] = {}
        for row in ranked:
            best.setdefault(row["passage_id"], row)
        return list(best.values())
