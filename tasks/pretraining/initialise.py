"""Initial checkpoints: given weights, some of their layers, or random weights of the same architecture."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import Field, field_validator

from models import backbones
from models.layers.bert_config import CONFIG, BertConfig
from models.model_files import read_weights, refuse_unusable
from models.representation import Pooling
from models.retrievers import towers
from models.retrievers.bi_encoder import DenseEncoder
from models.retrievers.load import is_foreign
from models.retrievers.retriever import HEADS_FILE, LOADED, NEW, RETRIEVER_SETTINGS, RETRIEVER_WEIGHTS, save_settings
from models.retrievers.retriever_settings import RetrieverSettings
from models.retrievers.stated_retriever import contradiction, pooling_of, read_stated_retriever
from models.retrievers.towers import Towers
from models.retrievers.views.dense import DenseSettings
from models.tokens import FILES, Tokenizer, copy_tokenizer
from storage.artifact import Source
from storage.errors import UserError
from storage.files import writing, writing_files
from storage.settings import Seed, Settings
from storage.tables import Checkpoint
from tasks.stage import stage
from tasks.training.initial_heads import log_heads


class BackboneSettings(Settings):
    """The initial network of all systems of a recipe."""

    weights: str
    """Folder, package:NAME/FOLDER or hub name of a model of `models.families`, such as a BERT, with its tokenizer."""
    start: Literal["weights", "random"]
    """`random` takes only the architecture and the vocabulary, for a random initialisation."""
    towers: Towers
    """One encoder for queries and passages; one with feed-forward experts for each (CoT-MoTE); or two."""
    layers: list[Annotated[int, Field(ge=0)]] | None = Field(min_length=1)
    """The layers to keep, counted from 0, each once; null keeps all."""
    vocabulary: Annotated[int, Field(gt=0)] | None = Field(default=None, exclude_if=lambda tokens: tokens is None)
    """The number of tokens to keep: special tokens, characters, and those most used in the documents; null for all."""
    dropout: float = Field(ge=0, lt=1)
    """Of hidden states and attention, in all trainings; BERT has 0.1. Without dropout a CPU is twice as fast."""
    pooling: Pooling | None
    """The pooling of the last layer into a text's vector: [CLS], as in the papers, or the mean over its tokens. Null
    for a model of sentence-transformers: pooling, normalisation and prompts are those that its files state."""
    seed: Seed

    @field_validator("layers")
    @classmethod
    def _each_once(cls, layers: list[int] | None) -> list[int] | None:
        if layers is not None and len(set(layers)) < len(layers):
            raise ValueError("expected each layer once")
        return layers


@stage(version=2, table=Checkpoint)
def initialise(out: Path, weights: Source, *, settings: BackboneSettings) -> None:
    """Write the initial checkpoint; a vocabulary head that the weights lack is initialised randomly.

    If the weights are a checkpoint of this project with two encoders, pre-training heads or a retriever's views, these
    are copied.
    """
    torch.manual_seed(settings.seed)
    encoder = open_backbone(weights.path, settings)
    is_new = encoder.passage.has_new_head
    everything = "newly initialised, as all weights" if settings.start == "random" else LOADED
    log_heads("initialise", {"vocabulary head": NEW if is_new else everything})
    for tower in (encoder.passage, encoder.query):
        tower.configure_dropout(settings.dropout)
    stated = read_stated_retriever(weights.path) if settings.pooling is None else None
    save_checkpoint(encoder, out, tokenizer=weights.path, retriever=stated.settings if stated else None)
    for name in (HEADS_FILE, RETRIEVER_SETTINGS, RETRIEVER_WEIGHTS):
        if settings.start == "weights" and (weights.path / name).is_file():
            with writing(out / name) as temporary:
                shutil.copyfile(weights.path / name, temporary)


def open_backbone(folder: Path, settings: BackboneSettings) -> DenseEncoder:
    """Return the encoders of a folder and the settings; raise UserError if the folder is broken or does not fit."""
    try:
        with refuse_unusable(folder):
            encoder = _encoder(folder, settings)
            Tokenizer.load(folder).check_vocabulary_size(encoder.passage.config.vocab_size, folder)
            for name in (HEADS_FILE, RETRIEVER_WEIGHTS):
                if settings.start == "weights" and (folder / name).is_file():
                    read_weights(folder / name)
    except ValueError as error:
        raise UserError(f"backbone: {error}") from None
    return encoder


def _encoder(folder: Path, settings: BackboneSettings) -> DenseEncoder:
    if settings.start == "random":
        return untrained(folder, settings)
    if not (folder / towers.SHARING).exists():
        model = backbones.load(folder, layers=settings.layers)
        return towers.build_encoders(DenseEncoder(model, pooling_of(folder, settings.pooling)), settings.towers)
    encoder = towers.load(folder)
    if (sharing := towers.sharing(encoder)) != settings.towers:
        raise ValueError(f"{folder} has towers that are {sharing}; expected towers: {sharing}")
    if settings.layers is not None:
        raise ValueError(f"{folder} has query and passage encoders, which keep all layers; expected null for layers")
    return DenseEncoder(encoder.passage, pooling_of(folder, settings.pooling), encoder.query)


def untrained(folder: Path, settings: BackboneSettings) -> DenseEncoder:
    """Return encoders like a folder's model with random weights; raise ValueError if the settings do not fit it."""
    model = backbones.create(folder, with_vocabulary(backbones.sizes(folder), settings), layers=settings.layers)
    return towers.build_encoders(DenseEncoder(model, pooling_of(folder, settings.pooling)), settings.towers)


def check_tokenizer(folder: Path) -> None:
    """Raise UserError if the tokenizer in the backbone's folder has more tokens than its model."""
    if (folder / CONFIG).is_file() and (folder / FILES[0]).is_file():
        try:
            Tokenizer.load(folder).check_vocabulary_size(backbones.sizes(folder).vocab_size, folder)
        except ValueError as error:
            raise UserError(f"backbone: {error}") from None


def check_retriever(requested: RetrieverSettings, backbone: BackboneSettings, folder: Path) -> None:
    """Raise ValueError if a retriever contradicts the files of the backbone's folder where these state all of it."""
    stated = read_stated_retriever(folder) if backbone.pooling is None else None
    if stated and (problem := contradiction(requested, stated.settings)):
        raise ValueError(f"{problem}; backbone.pooling {stated.pooling} in place of null takes the pooling only")


def with_vocabulary(config: BertConfig, settings: BackboneSettings) -> BertConfig:
    """Return a configuration with the size of the reduced vocabulary, in which [PAD] has the first id."""
    return config if settings.vocabulary is None else replace(config, vocab_size=settings.vocabulary, pad_token_id=0)


def save_checkpoint(
    encoder: DenseEncoder, out: Path, *, tokenizer: Path, retriever: RetrieverSettings | None = None
) -> None:
    """Write a Hugging Face folder: weights, configuration, pooling, and the tokenizer's files copied from a folder.

    `retriever` has the encoder's normalisation and prompts; None for the defaults.
    """
    kept = retriever.of_encoder() if retriever else None
    with writing_files(out) as folder:
        towers.save(encoder, folder)
        if kept or is_foreign(folder):  # without settings another family is opened by sentence-transformers' rules
            save_settings(kept or RetrieverSettings(dense=DenseSettings(dim=None)), folder)
        copy_tokenizer(tokenizer, folder)
        if (folder / towers.QUERY).is_dir():
            copy_tokenizer(tokenizer, folder / towers.QUERY)


def additional_files(files: Iterable[str]) -> Iterator[str]:
    """Yield sentences about the files of a checkpoint other than the passage encoder."""
    names = set(files)
    if towers.SHARING in names:
        yield f"Queries have their own encoder in `{towers.QUERY}/`; `{towers.SHARING}` states what both share."
    if RETRIEVER_SETTINGS in names:
        weights = f", and `{RETRIEVER_WEIGHTS}` has their weights" if RETRIEVER_WEIGHTS in names else ""
        yield f"`{RETRIEVER_SETTINGS}` states the views of the retriever{weights}."
    if HEADS_FILE in names:
        yield f"`{HEADS_FILE}` has the decoder and the heads, for a later pre-training to continue."
