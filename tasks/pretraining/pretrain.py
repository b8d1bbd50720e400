"""Pre-train an encoder on passages and their contexts: `paper: cot_mae` means `models/papers/cot_mae.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import torch
from numpy.random import Generator
from pydantic import Field, model_validator
from safetensors.torch import save_file
from torch import nn

from models import pretraining
from models.layers import bert
from models.model_files import read_weights
from models.objective import Batch
from models.retrievers import towers
from models.retrievers.bi_encoder import DenseEncoder
from models.retrievers.retriever import HEADS
from models.tokens import Tokenizer
from storage.artifact import Artifact
from storage.errors import UserError
from storage.files import writing
from storage.rows import read_table
from storage.settings import Seed, Settings
from storage.tables import Checkpoint, Pairs, Terms
from tasks.pretraining.draw_probe import Probe, RetrievalProbe
from tasks.pretraining.initialise import Backbone, save_checkpoint, shape
from tasks.pretraining.token_cache import Pieces, tokenised
from tasks.stage import stage
from tasks.training.checkpoints import load_parameters
from tasks.training.epochs import rows_of_step
from tasks.training.loop import OptimisationSettings, fit
from tasks.training.meta_device import on_meta_device
from tasks.training.seeds import random_generator

P = TypeVar("P")
T = TypeVar("T")


class Pretraining(Settings, Generic[P]):
    """The objective of a paper, and how it is optimised."""

    paper: str
    """A file of `models`."""
    objective: P
    """The paper's own settings."""
    mix: Literal["step", "example"] | None
    """For contexts of both kinds: whether pseudo-query or passage is sampled per step or per example."""
    heads: Literal["fresh", "continued"]
    """Whether decoder and heads are initialised randomly or loaded from the backbone's folder."""
    steps: int | None = Field(gt=0)
    epochs: float | None = Field(gt=0)
    """Instead of steps: passes over the texts."""
    batch: int = Field(gt=0)
    """Texts per step, each with its context."""
    probe: Probe | None
    fit: OptimisationSettings
    seed: Seed

    @model_validator(mode="after")
    def _one_length(self) -> Pretraining[P]:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give either steps or epochs, and set the other to null")
        return self

    def num_steps(self, num_texts: int) -> int:
        """Return the number of steps for a number of texts."""
        return self.steps or math.ceil(num_texts * (self.epochs or 0) / self.batch)


@stage(version=3, table=Checkpoint, trains=True, gpu=True)
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
    paper, data = import_module(f"models.papers.{settings.paper}"), Data.read(out, pairs, terms, start, settings)
    encoder = towers.load(start.path)
    torch.manual_seed(settings.seed)
    try:
        objective = paper.Pretraining(pretraining.Initialisation(encoder, data.terms), settings.objective)
    except ValueError as error:
        raise UserError(f"pretrain.objective: {error}") from None
    heads = heads_of(objective, encoder)
    if settings.heads == "continued":
        continue_heads(heads, start.path)

    def batch_of(step: int) -> Batch:
        drawn, random = data.sample(step)
        made: Batch = paper.make_batch(drawn, data.tokenizer, settings.objective, random)
        return made

    retrieval_probe = RetrievalProbe(probe, encoder, data.tokenizer, settings.probe, settings.objective.max_tokens)
    steps = settings.num_steps(len(data.pieces))
    fit(objective, batch_of, steps, out=out, settings=settings.fit, seed=settings.seed, probe=retrieval_probe)
    save_checkpoint(encoder, out, tokenizer=start.path)
    if heads:
        with writing(out / HEADS) as temporary:
            save_file({name: each.detach().contiguous() for name, each in heads.items()}, temporary)


def check(settings: Pretraining[Any], backbone: Backbone, folder: Path) -> None:
    """Raise UserError for settings that the stage would refuse after hours, before anything is built.

    The modules are built without memory. If the backbone's folder is missing, as in a plan, nothing is checked.
    """
    if not (folder / bert.CONFIG).is_file():
        return
    paper = import_module(f"models.papers.{settings.paper}")
    with on_meta_device():
        try:
            config = shape(folder, backbone)
            encoder = towers.build_encoders(
                DenseEncoder(bert.BertForMaskedLM(config), backbone.pooling), backbone.towers
            )
        except ValueError as error:
            raise UserError(f"backbone: {error}") from None
        ones = np.ones(config.vocab_size, dtype=np.int64)
        try:
            objective = paper.Pretraining(
                pretraining.Initialisation(encoder, pretraining.TermCounts(1000, ones, ones)), settings.objective
            )
        except ValueError as error:
            raise UserError(f"pretrain.objective: {error}") from None
    if settings.heads == "continued":
        continue_heads(heads_of(objective, encoder), folder if backbone.start == "weights" else Path(backbone.start))
    trained = {id(parameter) for parameter in objective.parameters()}
    if any(id(parameter) not in trained for parameter in encoder.parameters()):
        raise UserError(
            f"backbone.towers: {settings.paper} pre-trains one BERT; expected siamese, not {backbone.towers}"
        )


class Data:
    """The texts with their contexts, and the sample of each step."""

    def __init__(
        self, pieces: Pieces, terms: pretraining.TermCounts | None, tokenizer: Tokenizer, settings: Pretraining[Any]
    ) -> None:
        self.pieces, self.terms, self.tokenizer, self.settings = pieces, terms, tokenizer, settings

    @staticmethod
    def read(
        out: Path, pairs: Artifact[Pairs], terms: Artifact[Terms] | None, start: Artifact[Checkpoint],
        settings: Pretraining[Any],
    ) -> Data:  # fmt: skip
        """Tokenise all pairs into a cache below `out`, and read the term counts if the paper needs them."""
        tokenizer = Tokenizer.load(start.path)
        pieces = tokenised(out, pairs, tokenizer, contexts=settings.objective.reads != "texts")
        if not len(pieces):
            raise UserError(f"{pairs.reference}: expected pairs to pre-train on, found none")
        counted = None
        if terms is not None:
            table = read_table(terms, Terms)
            counted = pretraining.TermCounts(len(pieces), table["texts"].to_numpy(), table["occurrences"].to_numpy())
        return Data(pieces, counted, tokenizer, settings)

    def sample(self, step: int) -> tuple[pretraining.RawBatch, Generator]:
        """Return the texts of a step with their contexts, and the step's random generator for masking."""
        settings = self.settings
        rows = rows_of_step(step, settings.batch, len(self.pieces), settings.seed)
        random = random_generator(settings.seed, step)
        contexts: list[Any] = []
        if settings.objective.reads != "texts":
            queries, passages = (self.pieces.of(column, rows) for column in ("queries", "passages"))
            contexts = one_of_each(queries, passages, settings.mix, random)
        texts, contexts = ([row.as_py() for row in rows] for rows in (self.pieces.of("text", rows), contexts))
        return pretraining.RawBatch(texts, contexts, self.terms), random


def one_of_each(
    queries: Sequence[Sequence[T]], passages: Sequence[Sequence[T]], mix: str | None, random: Generator
) -> list[T]:
    """Return a context for each text: a pseudo-query or a passage, with equal probability if it has both.

    The paper chooses "in a training step" (query-as-context pre-training, section 5.2), for all texts of the step; its
    release chooses for each example.
    """
    coins = random.random(len(queries)) < 0.5 if mix else np.ones(len(queries), dtype=bool)
    if mix == "step":
        coins[:] = coins[0]
    pools = [
        own_queries if (coin and own_queries) or not own_passages else own_passages
        for own_queries, own_passages, coin in zip(queries, passages, coins, strict=True)
    ]
    return [pool[int(random.integers(len(pool)))] for pool in pools]


def heads_of(objective: nn.Module, encoder: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of an objective that are not the encoder's, by name."""
    of_encoder = {id(parameter) for parameter in encoder.parameters()}
    return {name: value for name, value in objective.named_parameters() if id(value) not in of_encoder}


def continue_heads(heads: dict[str, nn.Parameter], folder: Path) -> None:
    """Load the heads of an earlier pre-training with the same paper's objective, or with one that it builds on."""
    path = folder / HEADS
    if not path.is_file():
        raise UserError(
            f"pretrain.heads: the backbone has no {HEADS} to continue; "
            "start from an exported pre-training, or say fresh"
        )
    try:
        load_parameters(heads, read_weights(path), path)
    except ValueError as error:
        raise UserError(f"pretrain.heads: {error}") from None
