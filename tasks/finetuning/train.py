"""Train a retriever: the contrast of in-batch and mined negatives, for whatever views it has."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field, model_validator

from models.layers.bert_config import CONFIG
from models.representation import Role
from models.retrievers import objective, retriever
from models.retrievers.came import Competition
from models.retrievers.examples import Examples, known_positives
from models.retrievers.objective import Distillation, Finetuning, Flops
from models.retrievers.retriever import Retriever
from models.retrievers.retriever_settings import RetrieverSettings
from models.retrievers.retriever_settings import (
    ViewName as ViewName,  # for recipe schemas, since flows/ may not import models/
)
from models.retrievers.towers import QUERY
from models.retrievers.views.dense import DenseSettings
from models.retrievers.views.late import marker_ids
from models.settings import omitted_at
from models.tokens import FILES, Tokenizer, Tokens, copy_tokenizer
from storage.artifact import Artifact
from storage.errors import UserError
from storage.files import writing_files
from storage.settings import Seed, Settings
from storage.tables import Checkpoint, Negatives, Passages, Positives, Queries, TeacherScores
from tasks.finetuning.teacher_scores import ScoreLookup
from tasks.finetuning.training_data import TrainingData
from tasks.pretraining.initialise import BackboneSettings, check_retriever, untrained
from tasks.retrieval.encode import Encoding, check_below
from tasks.retrieval.shared_passages import PassagesWithTexts
from tasks.stage import stage
from tasks.training.divided_texts import DividedTexts
from tasks.training.initial_heads import log_heads, parts
from tasks.training.loop import fit
from tasks.training.meta_device import on_meta_device
from tasks.training.optimiser import OptimisationSettings

PLAIN = RetrieverSettings(dense=DenseSettings(dim=None))
"""The settings of a retriever that no recipe describes: one dense vector."""


class Training(Settings):
    """The settings of a retriever's training."""

    retriever: RetrieverSettings
    """Its views: how texts are represented and compared."""
    contrasts: list[str]
    """Which scores are contrasted, each for itself: `sum`, or views; empty where experts compete."""
    contrast_loss: Annotated[objective.ContrastLoss, omitted_at("softmax")] = "softmax"
    """How they are contrasted: with all passages of the batch, or in pairs with the query's own negatives."""
    competition: Competition | None = None
    """How CAME's experts compete."""
    flops: Flops | None = None
    """The FLOPS regularisation of a lexical view."""
    distillation: Distillation | None = None
    """Whether it learns from a cross-encoder's scores."""
    matryoshka: list[Annotated[int, Field(gt=0)]] = Field(default_factory=list, exclude_if=lambda dims: not dims)
    """Nested dimensions that have the contrastive loss too, so that vectors can be truncated to them."""
    exclude_above: Annotated[float | None, Field(ge=0), omitted_at(None)] = None
    """A passage of the batch that scores above the positive by more than this may be relevant, and is left out of the
    softmax; null leaves out none. In units of the similarity, before it is divided by the temperature."""
    temperature: float = Field(gt=0)
    epochs: int | None = Field(gt=0)
    """How often every query is visited."""
    steps: int | None = Field(default=None, gt=0)
    """Instead of epochs."""
    batch_queries: int = Field(gt=0)
    passages_per_query: int = Field(gt=0)
    """One positive; the others are hard negatives."""
    mask_known_positives: bool
    """Exclude the passages of a query's other relevant documents from its contrastive loss."""
    query_max_tokens: int = Field(gt=2)
    passage_max_tokens: int = Field(gt=2)
    fit: OptimisationSettings
    seed: Seed

    @model_validator(mode="after")
    def _can_be(self) -> Training:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give either steps or epochs, and set the other to null")
        self.loss.check(self.retriever.views)
        if self.fit.average and self.steps:
            self.fit.average.check(self.steps)
        if len(set(self.matryoshka)) < len(self.matryoshka):
            raise ValueError(f"matryoshka: expected each dimension once, found {self.matryoshka}")
        if len(set(self.contrasts)) < len(self.contrasts):
            raise ValueError(f"contrasts: expected each once, found {', '.join(self.contrasts)}")
        if self.contrast_loss == "pairwise" and self.passages_per_query < 2:
            raise ValueError("passages_per_query: a pairwise loss needs a negative; expected 2 or more")
        if self.distillation and self.passages_per_query < 2:
            raise ValueError("passages_per_query: soft labels of one passage teach nothing; expected 2 or more")
        return self

    @property
    def loss(self) -> objective.ObjectiveSettings:
        """The settings of the loss."""
        return objective.ObjectiveSettings(
            contrasts=self.contrasts, contrast_loss=self.contrast_loss, temperature=self.temperature, flops=self.flops,
            competition=self.competition, distillation=self.distillation, dimensions=tuple(self.matryoshka),
            exclude_above=self.exclude_above,
        )  # fmt: skip

    def num_steps(self, num_queries: int) -> int:
        """Return the number of steps for a number of queries."""
        return self.steps or math.ceil(num_queries * (self.epochs or 0) / self.batch_queries)


@stage(version=3, table=Checkpoint, trains=True, gpu=True)
def train(
    out: Path,
    start: Artifact[Checkpoint],
    queries: Artifact[Queries],
    passages: Artifact[Passages],
    positives: Artifact[Positives],
    negatives: Artifact[Negatives],
    scores: Artifact[TeacherScores] | None,
    *,
    settings: Training,
) -> None:
    """Write the retriever after training `start` over the queries that have a positive."""
    if (scores is None) != (settings.distillation is None):
        raise TypeError("a teacher's scores are read where there is a distillation, and only there")
    torch.manual_seed(settings.seed)
    model = begin(start.path, settings)
    log_heads("train", {f"heads of the views ({parts(own)})": model.origin} if (own := model.own()) else {})
    settings = settings.model_copy(update={"retriever": model.settings})  # with the checkpoint's prompts
    data = TrainingData.read(
        queries, PassagesWithTexts.share(out, passages), positives, negatives, settings, mined_only=scores is not None
    )
    teacher = None if scores is None else ScoreLookup.read(scores, data)
    batches = RetrieverBatches(data, Tokenizer.load(start.path), settings, teacher)
    fit(Finetuning(model, settings.loss), batches.batch, batches.steps, out=out, settings=settings.fit,
        seed=settings.seed)  # fmt: skip
    save_retriever(model, out, tokenizer=start.path)


def check(
    name: str,
    settings: Training,
    encoding: Encoding,
    backbone: BackboneSettings,
    folder: Path,
    *,
    starts_there: bool = False,
) -> None:
    """Raise UserError for settings that the round `name` would refuse after hours, before anything is built.

    The retriever is built without memory. If the backbone's folder is missing, as in a plan, nothing is checked.
    `starts_there` states whether the round starts from the backbone, perhaps after a pre-training.
    """
    if not (folder / CONFIG).is_file() or not (folder / FILES[0]).is_file():
        return
    try:
        with on_meta_device():
            model = Retriever(untrained(folder, backbone), settings.retriever, Tokenizer.load(folder))
        if starts_there:
            check_retriever(settings.retriever, backbone, folder)
    except ValueError as error:
        raise UserError(f"rounds: {name}: train.retriever: {error}") from None
    check_below(f"rounds: {name}: train.matryoshka", settings.matryoshka, model.dense_size)
    limits = {
        f"rounds: {name}: train.query_max_tokens": settings.query_max_tokens,
        f"rounds: {name}: train.passage_max_tokens": settings.passage_max_tokens,
        "encode.query_max_tokens": encoding.query_max_tokens,
        "encode.passage_max_tokens": encoding.passage_max_tokens,
    }
    _check_lengths(limits, model)


def begin(folder: Path, settings: Training) -> Retriever:
    """Return the retriever to train, from a checkpoint's folder."""
    try:
        model = retriever.load_for_training(folder, settings.retriever)
    except ValueError as error:
        raise UserError(f"train.retriever: {error}") from None
    check_below("train.matryoshka", settings.matryoshka, model.dense_size)
    lengths = {"query": settings.query_max_tokens, "passage": settings.passage_max_tokens}
    _check_lengths({f"train.{kind}_max_tokens": tokens for kind, tokens in lengths.items()}, model)
    return model


def _check_lengths(limits: Mapping[str, int], model: Retriever) -> None:
    """Raise UserError for a length, by its key in the recipe, that the model's positions do not reach."""
    for key, tokens in limits.items():
        if tokens > model.encoder.num_positions:
            raise UserError(f"{key}: expected at most {model.encoder.num_positions}, found {tokens}")


def save_retriever(model: Retriever, out: Path, *, tokenizer: Path) -> None:
    """Write a checkpoint's folder, with the tokenizer's files copied from another folder."""
    with writing_files(out) as folder:
        retriever.save(model, folder)
        copy_tokenizer(tokenizer, folder)
        if (folder / QUERY).is_dir():
            copy_tokenizer(tokenizer, folder / QUERY)


class RetrieverBatches:
    """The examples of each training step, as token ids."""

    def __init__(
        self, data: TrainingData, tokenizer: Tokenizer, settings: Training, teacher: ScoreLookup | None
    ) -> None:
        self.data, self.tokenizer, self.settings, self.teacher = data, tokenizer, settings, teacher
        self.steps = settings.num_steps(len(data.queries))
        self.markers = marker_ids(settings.retriever.late, tokenizer)
        self.texts = DividedTexts()

    def batch(self, step: int) -> Examples:
        """Return the queries of a step with their passages."""
        data, settings = self.data, self.settings
        queries, passages = data.examples(step)
        excluded = None
        if settings.mask_known_positives:
            relevant = [data.relevant(query) for query in queries]
            excluded = known_positives(relevant, data.corpus.documents(passages), settings.passages_per_query)
        return Examples(
            queries=self._tokens(queries, data.query_texts, "query", settings.query_max_tokens),
            passages=self._tokens(passages, data.corpus.texts, "passage", settings.passage_max_tokens),
            group=settings.passages_per_query,
            excluded=excluded,
            progress=step / self.steps,
            step_share=1 / self.steps,
            teacher=None if self.teacher is None else torch.from_numpy(self.teacher.of(queries, passages)),
        ).sorted_by_length()

    def _tokens(
        self, rows: Sequence[int], texts: Callable[[Sequence[int]], list[str]], role: Role, max_tokens: int
    ) -> Tokens:
        """Return the padded tokens of rows; each process tokenises a share of them."""

        def tokenise(share: Sequence[int]) -> list[list[int]]:
            prompted = self.settings.retriever.prompted(texts(share), role)
            return self.tokenizer.encode(prompted, max_tokens, self.markers.get(role))

        return self.tokenizer.pad_batch(self.texts.tokenised(rows, tokenise))
