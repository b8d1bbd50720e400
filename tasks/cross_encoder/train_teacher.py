"""Train a cross-encoder to tell a query's positive from its hard negatives; retrievers learn from its scores."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from pydantic import Field

from models.retrievers import cross_encoder
from models.retrievers.cross_encoder import CrossEncoder, Finetuning, Groups, pad_pairs, paired
from models.tokens import Tokenizer, copy_tokenizer
from storage.artifact import Artifact, Source
from storage.files import writing_files
from storage.settings import Seed
from storage.tables import Checkpoint, Negatives, Passages, Positives, Queries
from tasks.cross_encoder.score import Scoring, opened
from tasks.finetuning.training_data import TrainingData
from tasks.stage import stage
from tasks.training.loop import Fitting, fit


class TeacherTraining(Scoring):
    """What a teacher reads of pairs, and how it is trained."""

    epochs: int = Field(gt=0)
    """How often every query is visited."""
    batch_queries: int = Field(gt=0)
    passages_per_query: int = Field(gt=1)
    """The positive and, beside it, hard negatives."""
    fit: Fitting
    """A chunk is so many queries, each with its passages."""
    seed: Seed


@stage(version=2, table=Checkpoint, trains=True, gpu=True)
def train_teacher(
    out: Path,
    start: Artifact[Checkpoint] | Source,
    queries: Artifact[Queries],
    passages: Artifact[Passages],
    positives: Artifact[Positives],
    negatives: Artifact[Negatives],
    *,
    settings: TeacherTraining,
) -> None:
    """Write the cross-encoder that so many epochs over the queries with a positive make of the start."""
    torch.manual_seed(settings.seed)
    tokenizer, encoder = opened_start(start.path, settings)
    data = TrainingData.read(queries, passages, positives, negatives, settings)
    batches = Batches(data, tokenizer, settings)
    fit(Finetuning(encoder), batches.batch, batches.steps, out=out, settings=settings.fit, seed=settings.seed)
    with writing_files(out) as folder:
        cross_encoder.save(encoder, folder)
        copy_tokenizer(start.path, folder)


def opened_start(folder: Path, settings: Scoring) -> tuple[Tokenizer, CrossEncoder]:
    """The tokenizer and the network to train, of a cross-encoder or a BERT that fits the settings."""
    return opened(folder, cross_encoder.begin, settings, "start of the teacher")


class Batches:
    """The steps' queries with their passages, as word pieces."""

    def __init__(self, data: TrainingData, tokenizer: Tokenizer, settings: TeacherTraining) -> None:
        self.data, self.tokenizer, self.settings = data, tokenizer, settings
        self.steps = math.ceil(len(data.queries) * settings.epochs / settings.batch_queries)

    def batch(self, step: int) -> Groups:
        """The queries of a step, each with its positive and negatives."""
        settings, (chosen, shown) = self.settings, self.data.shown(step)
        limits = {"query_max_tokens": settings.query_max_tokens, "max_tokens": settings.max_tokens}
        group = settings.passages_per_query
        asked = self.tokenizer.pieces([self.data.queries[query] for query in chosen])
        texts = self.tokenizer.pieces(self.data.texts(shown))
        pairs = [paired(self.tokenizer, asked[n // group], text, **limits) for n, text in enumerate(texts)]
        return Groups(pad_pairs(self.tokenizer, pairs), group)
