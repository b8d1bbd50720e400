"""The memory of a recipe's stages that pass texts through an encoder, for batches and chunks of any size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from models.objective import Batch
from models.pretraining import Initialisation
from models.retrievers import cross_encoder
from models.retrievers.objective import Finetuning
from models.retrievers.retriever_settings import RetrieverSettings
from models.row_random import RowRandom
from models.tokens import pad
from tasks.cross_encoder.pairs import Scoring
from tasks.cross_encoder.train_teacher import TeacherTraining
from tasks.estimates.flops import Costs, naming
from tasks.estimates.memory import EncodingMemory, TrainingMemory, encoding_memory, training_memory
from tasks.finetuning.train import Training
from tasks.pretraining.pretrain import Pretraining
from tasks.runtime.device import ON_GPU, Precision


@dataclass(frozen=True)
class TrainingStep:
    """An objective, and the function that returns its batch with a number of texts or queries."""

    objective: Any
    batch_of: Callable[[int], Batch]


class Capacity:
    """Counts the memory of stages on models of a backbone's shape, in the precision of their settings.

    `default` is the precision where settings name none, by default that of a GPU. `half` says for all stages whether
    they run under autocast, whatever their settings.
    """

    def __init__(self, costs: Costs, *, default: Precision = ON_GPU, half: bool | None = None) -> None:
        self.costs, self._default, self._half_of_all = costs, default, half

    def pretraining(self, settings: Pretraining[Any]) -> TrainingMemory:
        """Return the memory of a pre-training."""
        return self._memory(self.pretraining_step(settings), settings.fit.precision)

    def training(self, settings: Training) -> TrainingMemory:
        """Return the memory of a retriever's training; a row is a query with its passages."""
        return self._memory(self.training_step(settings), settings.fit.precision)

    def teaching(self, settings: TeacherTraining) -> TrainingMemory:
        """Return the memory of a cross-encoder's training; a row is a query with its passages."""
        return self._memory(self.teaching_step(settings), settings.fit.precision)

    def pretraining_step(self, settings: Pretraining[Any]) -> TrainingStep:
        """Return the step of a pre-training on texts of full length."""
        paper, objective = import_module(f"models.papers.{settings.paper}"), settings.objective
        with naming("pretrain.objective"):
            module = paper.Pretraining(
                Initialisation(self.costs.encoder, self.costs.raw_batch(objective).terms), objective
            )

        def batch_of(rows: int) -> Batch:
            raw = self.costs.raw_batch(objective, rows)
            batch: Batch = paper.make_batch(raw, self.costs.tokenizer, objective, RowRandom(0, 0))
            return batch

        return TrainingStep(module, batch_of)

    def training_step(self, settings: Training) -> TrainingStep:
        """Return the step of a retriever's training on texts of full length."""
        group = settings.passages_per_query
        with naming("train"):
            objective = Finetuning(self.costs.retriever(settings.retriever), settings.loss)
        return TrainingStep(objective, lambda rows: self.costs.examples(settings, group, rows))

    def teaching_step(self, settings: TeacherTraining) -> TrainingStep:
        """Return the step of a cross-encoder's training on pairs of full length."""
        objective = cross_encoder.Finetuning(self.costs.cross_encoder("teacher.train"))
        length, group = settings.max_tokens, settings.passages_per_query
        return TrainingStep(objective, lambda rows: self.costs.pairs(length, rows, group))

    def encoding(self, views: RetrieverSettings, max_tokens: int, precision: Precision | None = None) -> EncodingMemory:
        """Return the memory of encoding passages."""
        with naming("encode"):
            retriever = self.costs.retriever(views).eval()
        tokens = self.costs.ids(max_tokens)
        half = self._half(precision)
        return encoding_memory(retriever, lambda rows: retriever(pad([tokens] * rows), "passage"), half=half)

    def scoring(self, settings: Scoring) -> EncodingMemory:
        """Return the memory of scoring pairs with a cross-encoder."""
        reader = self.costs.cross_encoder("teacher.score").eval()
        length, half = settings.max_tokens, self._half(settings.precision)
        return encoding_memory(reader, lambda rows: reader(self.costs.pairs(length, rows).pairs), half=half)

    def _memory(self, step: TrainingStep, precision: Precision | None) -> TrainingMemory:
        return training_memory(step.objective, step.batch_of, half=self._half(precision))

    def _half(self, precision: Precision | None) -> bool:
        return (precision or self._default) != "float32" if self._half_of_all is None else self._half_of_all
