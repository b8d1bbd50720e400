"""A cross-encoder that scores pairs of a query and a passage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator

from models.retrievers import cross_encoder
from models.retrievers.cross_encoder import CrossEncoder, Pair, pad_pairs
from models.settings import omitted_at
from models.tokens import Tokenizer
from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.settings import Settings
from storage.tables import Checkpoint
from tasks.runtime.device import Precision, autocast, choose_device
from tasks.runtime.token_batches import TOKENS_PER_BATCH, batches


class PairLengths(Settings):
    """The lengths at which a cross-encoder truncates a pair."""

    query_max_tokens: int = Field(gt=2)
    """Includes [CLS] and [SEP]; a longer query is truncated, whatever its passage."""
    max_tokens: int
    """The length of the complete pair; the passage is truncated to what its query leaves free."""

    @model_validator(mode="after")
    def _passages_have_room(self) -> PairLengths:
        if self.max_tokens < self.query_max_tokens + 2:
            raise ValueError(
                f"max_tokens: expected at least {self.query_max_tokens + 2}, two more than query_max_tokens, so that "
                f"something of a passage is read; found {self.max_tokens}"
            )
        return self

    @property
    def limits(self) -> dict[str, int]:
        """The keyword arguments of `encode_pair`."""
        return {"query_max_tokens": self.query_max_tokens, "max_tokens": self.max_tokens}


class Scoring(PairLengths):
    """The lengths at which a cross-encoder truncates a pair, and the precision in which it scores."""

    precision: Annotated[Precision | None, omitted_at(None)] = None
    """The number format of the layers' products; scores are float32. Null, as before this setting, is bfloat16 on a GPU
    and float32 on a CPU."""


class Scorer:
    """A cross-encoder and its tokenizer, on the device of the run."""

    def __init__(self, teacher: Artifact[Checkpoint] | Source, settings: Scoring, name: str = "teacher") -> None:
        """Load the cross-encoder; error messages call it `name`, the key of the recipe that names it."""
        self.device, self.precision = choose_device(), settings.precision
        self.tokenizer, encoder = load_teacher(teacher.path, settings, name)
        self.encoder = encoder.to(self.device)

    @torch.inference_mode()
    def __call__(self, pairs: Sequence[Pair], done: Callable[[int], object]) -> NDArray[np.float32]:
        """Return the score of each pair; `done` is called with the size of each batch.

        Equal pairs have equal scores. The network does not ensure this: the last digit of a score depends on the
        pair's position in its batch, in a way that differs between CPUs, and so would the order of two passages with
        the same text.
        """
        scores = np.empty(len(pairs), np.float32)
        limit = TOKENS_PER_BATCH["cpu" if self.device.type == "cpu" else "cuda"]
        for batch in batches([len(ids) for ids, _ in pairs], limit):
            tokens = pad_pairs(self.tokenizer, [pairs[number] for number in batch]).to(self.device)
            with autocast(self.device, self.precision):
                scores[batch] = self.encoder(tokens).cpu().numpy()
            done(len(batch))
        first: dict[tuple[tuple[int, ...], int], int] = {}
        return scores[[first.setdefault((tuple(ids), begin), number) for number, (ids, begin) in enumerate(pairs)]]


def load_teacher(folder: Path, settings: PairLengths, name: str) -> tuple[Tokenizer, CrossEncoder]:
    """Return the tokenizer and the trained cross-encoder of a folder; error messages call it `name`."""
    return load_cross_encoder(folder, cross_encoder.load, settings, name)


def load_cross_encoder(
    folder: Path, load: Callable[[Path], CrossEncoder], settings: PairLengths, name: str
) -> tuple[Tokenizer, CrossEncoder]:
    """Return a folder's tokenizer and its network by `load`; raise UserError if they or the settings do not fit."""
    try:
        tokenizer, encoder = Tokenizer.load(folder), load(folder)
        tokenizer.check_vocabulary_size(encoder.config.vocab_size, folder)
    except ValueError as error:
        raise UserError(f"{name}: {error}") from None
    if settings.max_tokens > (positions := encoder.config.max_position_embeddings):
        raise UserError(f"{name}: max_tokens: expected at most {positions}, found {settings.max_tokens}")
    return tokenizer, encoder
