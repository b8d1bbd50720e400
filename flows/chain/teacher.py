"""The cross-encoder of a recipe: trained when it is first needed, to score training examples and to re-rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flows.chain.model_weights import model_weights
from flows.chain.training_examples import TrainingExamples
from flows.recipe.round_schema import Teacher
from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.tables import Checkpoint, Negatives, Passages, Queries, Run, TeacherScores
from tasks.cross_encoder.rerank import rerank
from tasks.cross_encoder.score import score
from tasks.cross_encoder.train_teacher import train_teacher
from tasks.finetuning.mine import mine
from tasks.session import in_round


@dataclass
class TeacherStages:
    """The stages of the recipe's section `teacher`."""

    settings: Teacher | None
    initial: Artifact[Checkpoint]
    """The initial weights of the teacher where the recipe names none."""
    examples: TrainingExamples
    passages: Artifact[Passages]
    retrieve: Callable[[str, Artifact[Queries]], Artifact[Run]]
    """Ranks train queries by BM25 or by a round, given by name."""
    _model: Artifact[Checkpoint] | Source | None = None

    def model(self, settings: Teacher) -> Artifact[Checkpoint] | Source:
        """Return the cross-encoder, and train it the first time where the recipe says how."""
        if self._model is None:
            with in_round("teacher"):
                self._model = model_weights(settings.weights) if settings.weights is not None else self.initial
                if settings.train is not None:
                    self._model = self._trained(settings, self._model)
        return self._model

    def _trained(self, settings: Teacher, start: Artifact[Checkpoint] | Source) -> Artifact[Checkpoint]:
        queries, positives = self.examples.queries, self.examples.positives
        ranked = self.retrieve(settings.mine_with, queries)
        negatives = mine(runs=[ranked], positives=positives, passages=self.passages, settings=settings.mine)
        return train_teacher(
            start=start, queries=queries, passages=self.passages, positives=positives, negatives=negatives,
            settings=settings.train,
        )  # fmt: skip

    def scores(self, queries: Artifact[Queries], negatives: Artifact[Negatives]) -> Artifact[TeacherScores]:
        """Return the teacher's score of every positive and every negative of the queries."""
        if self.settings is None:
            raise UserError("teacher: a round distils or mines with a cross-encoder, but the recipe has no teacher")
        return score(
            teacher=self.model(self.settings), queries=queries, passages=self.passages,
            positives=self.examples.positives, negatives=negatives, settings=self.settings.score,
        )  # fmt: skip

    def rerank(self, runs: dict[str, Artifact[Run]], queries: Artifact[Queries]) -> Artifact[Run] | None:
        """Return the ranking that the recipe names after re-ranking; None where the recipe has no teacher."""
        if self.settings is None:
            return None
        with in_round("teacher"):
            return rerank(
                teacher=self.model(self.settings), run=runs[self.settings.reranks], queries=queries,
                passages=self.passages, settings=self.settings.rerank,
            )  # fmt: skip
