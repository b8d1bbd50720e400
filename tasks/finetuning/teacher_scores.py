"""The scores of a cross-encoder from which a retriever learns, by query and passage."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import table_blocks
from storage.tables import TeacherScores
from tasks.finetuning.training_data import TrainingData


class ScoreLookup:
    """The scores of a cross-encoder, looked up by the numbers of query and passage."""

    def __init__(self, data: TrainingData, pairs: NDArray[np.int64], scores: NDArray[np.float32], name: str) -> None:
        order = np.argsort(pairs)
        self.data, self.pairs, self.scores, self.name = data, pairs[order], scores[order], name

    @staticmethod
    def read(scores: Artifact[TeacherScores], data: TrainingData) -> ScoreLookup:
        """Read the scores of the queries that are trained on: 12 bytes a pair, whatever the length of the ids."""
        pairs, values = [np.empty(0, np.int64)], [np.empty(0, np.float32)]
        for block in table_blocks(scores.path, TeacherScores):
            query_rows = data.query_index.rows(block["query_id"])
            passage_rows = data.corpus.index.rows(block["passage_id"])
            known = (query_rows >= 0) & (passage_rows >= 0)
            pairs.append(query_rows[known] * len(data.corpus) + passage_rows[known])
            values.append(block["score"].to_numpy()[known])
        if not sum(map(len, pairs)):
            raise UserError(f"{scores.reference}: no score is of a query and a passage that are trained on")
        return ScoreLookup(data, np.concatenate(pairs), np.concatenate(values), scores.reference)

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
