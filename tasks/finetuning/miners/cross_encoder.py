"""Negatives must be worse than the positive by a cross-encoder, too: it tells unlabelled positives from hard negatives.

Denoised hard negatives (Qu et al. 2021, RocketQA), by a margin in place of their threshold: a candidate stays where the
teacher gives it at most the score of the query's lowest positive, less the margin.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pyarrow.compute as pc
from pydantic import Field

from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import read_table
from storage.tables import TeacherScores
from tasks.finetuning.mine import Asked, MiningSettings, Row

SEVERAL_RUNS, READS_SCORES = False, True


class CrossEncoder(MiningSettings):
    """How far below the positive's a negative's score lies at least."""

    miner: Literal["cross_encoder"]
    margin: float = Field(ge=0)
    """In units of the teacher's score: a logit."""


class Choice:
    """What is left below the margin, in the order of rank."""

    def __init__(self, settings: CrossEncoder, scores: Artifact[TeacherScores] | None) -> None:
        if scores is None:
            raise TypeError("the miner cross_encoder reads a teacher's scores")
        rows = read_table(scores, TeacherScores)
        self.settings, self.name = settings, scores.reference
        self.rows = rows.take(pc.sort_indices(rows, sort_keys=[("query_id", "ascending")])).combine_chunks()
        names = self.rows["query_id"].combine_chunks()
        starts = np.flatnonzero(pc.not_equal(names[1:], names[:-1]).to_numpy(zero_copy_only=False)) + 1
        spans = zip([0, *starts.tolist()], [*starts.tolist(), len(names)], strict=True)
        self.spans = {names[start].as_py(): (start, end) for start, end in spans if start < end}

    def __call__(self, asked: Asked) -> list[Row]:
        scores = self._scores(asked.query_id)
        highest = min(self._score(scores, asked, passage) for passage in asked.positives) - self.settings.margin
        return [row for row in asked.left[0] if self._score(scores, asked, row["passage_id"]) <= highest]

    def _scores(self, query_id: str) -> dict[str, float]:
        """What the teacher says of a query's passages."""
        start, end = self.spans.get(query_id, (0, 0))
        own = self.rows.slice(start, end - start)
        return dict(zip(own["passage_id"].to_pylist(), own["score"].to_pylist(), strict=True))

    def _score(self, scores: dict[str, float], asked: Asked, passage: str) -> float:
        if passage not in scores:
            raise UserError(
                f"{self.name}: no score of query {asked.query_id!r} with passage {passage!r}; score the candidates "
                "that are mined"
            )
        return scores[passage]
