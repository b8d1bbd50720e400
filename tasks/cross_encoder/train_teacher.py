"""Train a cross-encoder to score a query's positive above its hard negatives; retrievers learn from its scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from pydantic import Field

from models import backbones
from models.layers.bert import BertForMaskedLM
from models.layers.bert_config import CONFIG
from models.retrievers import cross_encoder
from models.retrievers.cross_encoder import CrossEncoder, Finetuning, Groups, encode_pair, pad_pairs
from models.tokens import Tokenizer, copy_tokenizer
from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.files import writing_files
from storage.settings import Seed
from storage.tables import Checkpoint, Negatives, Passages, Positives, Queries
from tasks.cross_encoder.pairs import PairLengths, load_cross_encoder
from tasks.finetuning.training_data import TrainingData
from tasks.retrieval.shared_passages import PassagesWithTexts
from tasks.stage import stage
from tasks.training.divided_texts import DividedTexts
from tasks.training.initial_heads import log_heads
from tasks.training.loop import fit
from tasks.training.optimiser import OptimisationSettings


class TeacherTraining(PairLengths):
    """The lengths that a teacher reads, and how it is trained."""

    epochs: int = Field(gt=0)
    """Passes over the queries."""
    batch_queries: int = Field(gt=0)
    passages_per_query: int = Field(gt=1)
    """One positive; the others are hard negatives."""
    fit: OptimisationSettings
    """A chunk counts queries, each with its passages."""
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
    """Write the cross-encoder after training `start` for the given epochs over the queries that have a positive."""
    torch.manual_seed(settings.seed)
    tokenizer, encoder = load_initial_encoder(start.path, settings)
    log_heads("train_teacher", {"pooler and classifier": _origin(encoder.new_weights)})
    data = TrainingData.read(queries, PassagesWithTexts.share(out, passages), positives, negatives, settings)
    batches = TeacherBatches(data, tokenizer, settings)
    fit(Finetuning(encoder), batches.batch, batches.steps, out=out, settings=settings.fit, seed=settings.seed)
    with writing_files(out) as folder:
        cross_encoder.save(encoder, folder)
        copy_tokenizer(start.path, folder)


def load_initial_encoder(folder: Path, settings: PairLengths) -> tuple[Tokenizer, CrossEncoder]:
    """Return the tokenizer and the network to train, from the folder of a cross-encoder or of a BERT."""
    return load_cross_encoder(folder, cross_encoder.load_for_training, settings, "start of the teacher")


def _origin(new_weights: Sequence[str]) -> str:
    return f"newly initialised: {', '.join(new_weights)}" if new_weights else "loaded"


def check(folder: Path) -> None:
    """Raise UserError before anything is built if the model of a folder cannot be a teacher or become one.

    If the folder is missing, as in a plan, nothing is checked.
    """
    if (folder / CONFIG).is_file() and not issubclass(backbones.family(folder), BertForMaskedLM):
        raise UserError(f"teacher.weights: a teacher is a BERT, and {folder} has another model_type; name a BERT")


class TeacherBatches:
    """The queries of each training step with their passages, as token ids."""

    def __init__(self, data: TrainingData, tokenizer: Tokenizer, settings: TeacherTraining) -> None:
        self.data, self.tokenizer, self.settings = data, tokenizer, settings
        self.steps = math.ceil(len(data.queries) * settings.epochs / settings.batch_queries)
        self.texts = DividedTexts()

    def batch(self, step: int) -> Groups:
        """Return the pairs of a step: each query with its positive and its negatives."""
        query_numbers, passage_rows = self.data.examples(step)
        group = self.settings.passages_per_query
        queries = self._token_ids(query_numbers, self.data.query_texts)
        passages = self._token_ids(passage_rows, self.data.corpus.texts)
        pairs = [
            encode_pair(self.tokenizer, queries[number // group], passage, **self.settings.limits)
            for number, passage in enumerate(passages)
        ]
        return Groups(pad_pairs(self.tokenizer, pairs), group)

    def _token_ids(self, rows: Sequence[int], texts: Callable[[Sequence[int]], list[str]]) -> list[list[int]]:
        """Return as many token ids of each row as a pair can have; each process tokenises a share of the rows."""

        def tokenise(share: Sequence[int]) -> list[list[int]]:
            return [ids[: self.settings.max_tokens] for ids in self.tokenizer.token_ids(texts(share))]

        return self.texts.tokenised(rows, tokenise)
