"""Pre-train an encoder on passages and their contexts: `paper: cot_mae` means `models/papers/cot_mae.py`."""

from __future__ import annotations

import math
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import numpy as np
import torch
from pydantic import Field, model_validator
from safetensors.torch import save_file

from models import pretraining
from models.layers.bert_config import CONFIG
from models.objective import Batch
from models.retrievers import towers
from models.retrievers.retriever import HEADS_FILE, LOADED, NEW, read_settings
from models.row_random import RowRandom
from models.settings import omitted_at
from models.texts import Ids
from models.tokens import Tokenizer
from storage.artifact import Artifact
from storage.errors import UserError
from storage.files import writing
from storage.rows import read_table
from storage.settings import Seed, Settings
from storage.tables import Checkpoint, Pairs, Terms
from tasks.pretraining.draw_probe import ProbeSettings, RetrievalProbe
from tasks.pretraining.heads import continue_heads, heads_of
from tasks.pretraining.initialise import BackboneSettings, save_checkpoint, untrained
from tasks.pretraining.token_cache import TokenCache, tokenised
from tasks.stage import stage
from tasks.training.epochs import rows_of_step
from tasks.training.frozen import frozen_encoders
from tasks.training.initial_heads import log_heads, parts
from tasks.training.loop import fit
from tasks.training.meta_device import on_meta_device
from tasks.training.optimiser import OptimisationSettings
from tasks.training.step_batch import StepBatches, own_spans

P = TypeVar("P")
CONTEXTS = ("queries", "passages")
"""The columns of contexts: pseudo-queries and passages."""


class Pretraining(Settings, Generic[P]):
    """The objective of a paper, and how it is optimised."""

    paper: str
    """A file of `models/papers`."""
    objective: P
    """The paper's own settings."""
    mix: Literal["step", "example"] | None
    """For contexts of both kinds: whether pseudo-query or passage is sampled per step or per example."""
    heads: Literal["fresh", "continued"]
    """Whether decoder and heads are initialised randomly or loaded from the backbone's folder."""
    steps: int | None = Field(gt=0)
    warm_heads: Annotated[int | None, Field(gt=0), omitted_at(None)] = None
    """The number of first steps in which only heads and decoders are trained; null trains the encoder from the start.
    A vocabulary head that the backbone lacks has random weights, which damage the encoder in the first steps."""
    epochs: float | None = Field(gt=0)
    """Instead of steps: passes over the texts."""
    batch: int = Field(gt=0)
    """Texts per step, each with its context."""
    probe: ProbeSettings | None
    fit: OptimisationSettings
    seed: Seed

    @model_validator(mode="after")
    def _one_length(self) -> Pretraining[P]:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give either steps or epochs, and set the other to null")
        if self.fit.average and self.steps:
            self.fit.average.check(self.steps)
        if self.warm_heads and self.steps and self.warm_heads >= self.steps:
            raise ValueError(f"warm_heads: expected fewer than all {self.steps} steps, found {self.warm_heads}")
        return self

    def num_steps(self, num_texts: int) -> int:
        """Return the number of steps for a number of texts."""
        return self.steps or math.ceil(num_texts * (self.epochs or 0) / self.batch)


@stage(version=4, table=Checkpoint, trains=True, gpu=True)
def pretrain(
    out: Path,
    pairs: Artifact[Pairs],
    terms: Artifact[Terms] | None,
    start: Artifact[Checkpoint],
    probe: Artifact[Pairs] | None,
    *,
    settings: Pretraining[Any],
) -> None:
    """Write the pre-trained encoder with its vocabulary head; decoder and heads go to `heads.safetensors`."""
    paper = import_module(f"models.papers.{settings.paper}")
    batches = PretrainingBatches.read(out, pairs, terms, start, settings)
    encoder = towers.load(start.path)
    torch.manual_seed(settings.seed)
    try:
        objective = paper.Pretraining(pretraining.Initialisation(encoder, batches.terms), settings.objective)
    except ValueError as error:
        raise UserError(f"pretrain.objective: {error}") from None
    heads = heads_of(objective, encoder)
    if settings.heads == "continued":
        continue_heads(heads, start.path)
    origin = LOADED if settings.heads == "continued" else NEW
    log_heads("pretrain", {f"decoders and heads ({parts(heads)})": origin} if heads else {})
    retrieval_probe = RetrievalProbe(probe, encoder, batches.tokenizer, settings.probe, settings.objective.max_tokens)
    batch_of = StepBatches(batches.rows, batches.num_rows, own_spans(batches.num_rows, settings.fit.chunk))
    steps = settings.num_steps(len(batches.cache))
    if settings.warm_heads and settings.warm_heads >= steps:  # with epochs, only known here
        raise UserError(f"pretrain.warm_heads: expected fewer than all {steps} steps, found {settings.warm_heads}")
    fit(
        objective, batch_of, steps, out=out, settings=settings.fit, seed=settings.seed, probe=retrieval_probe,
        frozen=frozen_encoders(encoder, settings.warm_heads, "pretrain.warm_heads"),
    )  # fmt: skip
    save_checkpoint(encoder, out, tokenizer=start.path, retriever=read_settings(start.path))
    if heads:
        with writing(out / HEADS_FILE) as temporary:
            save_file({name: head.detach().contiguous() for name, head in heads.items()}, temporary)


def check(settings: Pretraining[Any], backbone: BackboneSettings, folder: Path) -> None:
    """Raise UserError for settings that the stage would refuse after hours, before anything is built.

    The modules are built without memory. If the backbone's folder is missing, as in a plan, nothing is checked.
    """
    if not (folder / CONFIG).is_file():
        return
    paper = import_module(f"models.papers.{settings.paper}")
    with on_meta_device():
        try:
            encoder = untrained(folder, backbone)
        except ValueError as error:
            raise UserError(f"backbone: {error}") from None
        ones = np.ones(encoder.passage.config.vocab_size, dtype=np.int64)
        try:
            objective = paper.Pretraining(
                pretraining.Initialisation(encoder, pretraining.TermCounts(1000, ones, ones)), settings.objective
            )
        except ValueError as error:
            raise UserError(f"pretrain.objective: {error}") from None
    if settings.heads == "continued":
        if backbone.start != "weights":
            raise UserError(
                f"pretrain.heads: the backbone has no heads to continue with backbone.start={backbone.start}; expected "
                "fresh"
            )
        continue_heads(heads_of(objective, encoder), folder)
    if settings.warm_heads and not getattr(settings.objective, "trains_heads", True):
        raise UserError(f"pretrain.warm_heads: {settings.paper} trains no head or decoder; leave the setting out")
    trained = {id(parameter) for parameter in objective.parameters()}
    if any(id(parameter) not in trained for parameter in encoder.parameters()):
        raise UserError(
            f"backbone.towers: {settings.paper} pre-trains one encoder; expected siamese, not {backbone.towers}"
        )


class PretrainingBatches:
    """The batches of a pre-training; processes and workers build any rows of any step on their own."""

    def __init__(
        self, cache: TokenCache, terms: pretraining.TermCounts | None, tokenizer: Tokenizer, settings: Pretraining[Any]
    ) -> None:
        self.cache, self.terms, self.tokenizer = cache, terms, tokenizer
        self.paper, self.objective = settings.paper, settings.objective
        self.mix, self.batch, self.seed = settings.mix, settings.batch, settings.seed

    @staticmethod
    def read(
        out: Path, pairs: Artifact[Pairs], terms: Artifact[Terms] | None, start: Artifact[Checkpoint],
        settings: Pretraining[Any],
    ) -> PretrainingBatches:  # fmt: skip
        """Tokenise all pairs into a cache below `out`, and read the term counts if the paper needs them."""
        tokenizer = Tokenizer.load(start.path)
        cache = tokenised(out, pairs, tokenizer, contexts=settings.objective.reads != "texts")
        if not len(cache):
            raise UserError(f"{pairs.reference}: expected pairs to pre-train on, found none")
        counts = None
        if terms is not None:
            table = read_table(terms, Terms)
            counts = pretraining.TermCounts(len(cache), table["texts"].to_numpy(), table["occurrences"].to_numpy())
        return PretrainingBatches(cache, counts, tokenizer, settings)

    @property
    def num_rows(self) -> int:
        """The number of rows of the batch of a step."""
        return self.batch * self._rows_per_text

    @property
    def _rows_per_text(self) -> int:
        return getattr(self.objective, "rows_per_text", 1)

    def rows(self, step: int, start: int, stop: int) -> Batch:
        """Build the rows of a step from `start` up to `stop`."""
        first, last = start // self._rows_per_text, -(-stop // self._rows_per_text)
        raw, random = self.sample(step, first, last)
        batch: Batch = import_module(f"models.papers.{self.paper}").make_batch(
            raw, self.tokenizer, self.objective, random
        )
        offset = first * self._rows_per_text
        return batch if len(batch) == stop - start else batch.rows(start - offset, stop - offset)

    def sample(self, step: int, first: int = 0, last: int | None = None) -> tuple[pretraining.RawBatch, RowRandom]:
        """Return texts of a step with their contexts, and the generator for masking them."""
        rows = rows_of_step(step, self.batch, len(self.cache), self.seed)[first:last]
        random = RowRandom(self.seed, step, first)
        contexts: list[Ids] = []
        if self.objective.reads != "texts":
            num_queries, num_passages = (self.cache.num_contexts(column, rows) for column in CONTEXTS)
            columns, numbers = choose_contexts(num_queries, num_passages, self.mix, random)
            contexts = self._contexts(columns, np.array(rows), numbers)
        return pretraining.RawBatch(self.cache.texts(rows), contexts, self.terms), random

    def _contexts(self, columns: Ids, rows: Ids, numbers: Ids) -> list[Ids]:
        contexts: list[Any] = [None] * len(rows)
        for column, name in enumerate(CONTEXTS):
            chosen = np.flatnonzero(columns == column)
            for row, ids in zip(chosen, self.cache.contexts(name, rows[chosen], numbers[chosen]), strict=True):
                contexts[row] = ids
        return contexts


def choose_contexts(num_queries: Ids, num_passages: Ids, mix: str | None, random: RowRandom) -> tuple[Ids, Ids]:
    """Choose a context for each text: a pseudo-query or a passage, with equal probability if it has both.

    Returns for each text 0 for a pseudo-query or 1 for a passage, and the number of the context. The paper chooses the
    kind "in a training step" (query-as-context pre-training, section 5.2), for all texts of the step; its release
    chooses for each example.
    """
    coins = (
        random.uniform(len(num_queries), 1)[:, 0] if mix == "example" else np.full(len(num_queries), random.shared())
    )
    prefers_queries = coins < 0.5 if mix else np.ones(len(num_queries), dtype=bool)
    queries = (prefers_queries & (num_queries > 0)) | (num_passages == 0)
    return np.where(queries, 0, 1), random.integers(np.where(queries, num_queries, num_passages))
