"""Where a chain starts: given weights, or some of their layers, or random ones of the same shape and vocabulary."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field

from models import bert
from models.encoder import save_pooling
from models.representation import Pooling
from models.tokens import Tokenizer, copy_tokenizer
from storage.artifact import Source
from storage.errors import UserError
from storage.settings import Settings
from storage.tables import Checkpoint
from tasks.stage import stage


class Backbone(Settings):
    """The network that every system of a recipe starts from."""

    weights: str
    """Folder, package:NAME/FOLDER or hub name of a BERT with its tokenizer."""
    start: Literal["weights", "random"]
    """`random` takes only the shape and the vocabulary."""
    layers: list[int] | None = Field(min_length=1)
    """Which of the layers to keep, counted from 0; null keeps all."""
    dropout: float = Field(ge=0, lt=1)
    """Of hidden states and attention, in every later training; BERT has 0.1. On a CPU none is twice as fast."""
    pooling: Pooling
    """What of the last layer is a text's vector: [CLS], as in the papers, or the mean over its tokens."""
    seed: int


@stage(version=1, table=Checkpoint)
def initialise(out: Path, weights: Source, *, settings: Backbone) -> None:
    """Write the starting checkpoint; a vocabulary head that the weights lack starts at random."""
    torch.manual_seed(settings.seed)
    try:
        num_words = Tokenizer.load(weights.path).num_words
        if settings.start == "weights":
            model = bert.load(weights.path, layers=settings.layers)
        else:
            config = bert.BertConfig.load(weights.path)
            num_layers = config.num_hidden_layers if settings.layers is None else len(settings.layers)
            model = bert.BertForMaskedLM(replace(config, num_hidden_layers=num_layers))
    except ValueError as error:
        raise UserError(f"backbone: {error}") from None
    if num_words > model.config.vocab_size:
        raise UserError(
            f"backbone: {weights.path}: expected a tokenizer of at most {model.config.vocab_size} word pieces, "
            f"as many as the model has embeddings, found {num_words}"
        )
    model.config = replace(
        model.config, hidden_dropout_prob=settings.dropout, attention_probs_dropout_prob=settings.dropout
    )
    save_checkpoint(model, out, pooling=settings.pooling, tokenizer=weights.path)


def save_checkpoint(model: bert.BertForMaskedLM, out: Path, *, pooling: Pooling, tokenizer: Path) -> None:
    """Write a Hugging Face folder: weights, shape, pooling, and the tokenizer's files copied from a folder."""
    bert.save(model, out)
    save_pooling(out, pooling, model.config.hidden_size)
    copy_tokenizer(tokenizer, out)
