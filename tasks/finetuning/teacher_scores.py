"""The scores of a cross-encoder from which a retriever learns, by query and passage."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import read_table
from storage.tables import TeacherScores
from tasks.finetuning.training_data import TrainingData


class ScoreLookup:
    """The scores of a cross-encoder, looked up by the numbers of query and passage."""

    def __init__(self, data: TrainingData, pairs: NDArray[np.int64], scores: NDArray[np.float32], name: str) -> None:
        order = np.argsort(pairs)
        self.data, self.pairs, self.scores, self.name = data, pairs[order], scores[order], name

    @staticmethod
    def read(scores: Artifact[TeacherScores], data: TrainingData) -> ScoreLookup:
        """Read the scores of the queries that are trained on."""
        rows = read_table(scores, TeacherScores)
        query_rows, passage_rows = data.query_index.rows(rows["query_id"]), data.corpus.index.rows(rows["passage_id"])
        known = (query_rows >= 0) & (passage_rows >= 0)
        if not known.any():
            raise UserError(f"{scores.reference}: no score is of a query and a passage that are trained on")
        pairs = query_rows[known] * len(data.corpus) + passage_rows[known]
        return ScoreLookup(data, pairs, rows["score"].to_numpy()[known], scores.reference)

    def of(self, queries: Sequence[int], passages: Sequence[int]) -> NDArray[np.float32]:
        """Return the scores of queries with their own passages, [Q, G]; raise UserError if one is missing."""
        group = len(passages) // len(queries)
        pairs = np.repeat(np.asarray(queries, np.int64), group) * len(self.data.corpus) + np.asarray(passages, np.int64)
        indices = np.minimum(np.searchsorted(self.pairs, pairs), len(self.pairs) - 1)
        if (missing := np.flatnonzero(self.pairs[indices] != pairs)).size:
            query, passage = queries[missing[0] // group], self.data.corpus.index.ids[passages[missing[0]]]
            raise UserError(
                f"{self.name}: no score of query {self.data.queries[query]!r} with passage {passage.as_py()!r}; a "
                "distilled query needs mined negatives: score what it is trained with"
            )
        return self.scores[indices].reshape(len(queries), group)
