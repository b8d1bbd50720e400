"""The interface of a model that generates text, and how the settings and the folder of one are opened."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from storage.errors import UserError

if TYPE_CHECKING:  # they import transformers, which reading a recipe does not need
    from tasks.pseudo_queries.generators.causal import Causal
    from tasks.pseudo_queries.generators.seq2seq import Seq2Seq


class SamplingSettings(Protocol):
    """The settings for sampling text; `tasks.pseudo_queries.generate_queries.Generation` documents each setting."""

    @property
    def prefix(self) -> str: ...
    @property
    def prompt(self) -> str | None: ...
    @property
    def stop(self) -> str | None: ...
    @property
    def input_max_tokens(self) -> int: ...
    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def top_p(self) -> float: ...
    @property
    def max_new_tokens(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def batch_tokens(self) -> int: ...
    @property
    def dtype(self) -> str: ...


class DecodingState(Protocol):
    """The partly decoded rows of a batch, with their cached keys and values."""

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token to each row, [rows, 1], and return the logits of the next token. [rows, V]"""

    def repeat(self, times: int) -> None:
        """Replace each row by `times` neighbouring copies."""

    def select(self, rows: Tensor) -> None:
        """Keep only these rows."""


class Decoder(Protocol):
    """A seq2seq or causal language model that samples token ids from others."""

    ends: list[int]
    """Tokens that end a text and are not part of it."""
    stops: list[int]
    """Tokens that contain the stop string; the characters before it belong to the text."""

    def start(self, ids: Sequence[list[int]]) -> tuple[DecodingState, Tensor]:
        """Return a row for each input, and the logits of its first token. [B, V]"""


class TextGenerator(Decoder, Protocol):
    """A model that generates text."""

    def read(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the input token ids of each passage."""

    def text(self, samples: Sequence[list[int]]) -> list[str]:
        """Return the texts of generated token ids."""


def load_generator(checkpoint: Path, settings: SamplingSettings, device: torch.device) -> Seq2Seq | Causal:
    """Load the model of a folder or hub name, of the kind that its config.json states.

    Raises UserError if the settings are for the other kind, or if the folder is broken.
    """
    generator = _load(checkpoint, settings, device)
    known, tokens = generator.model.get_input_embeddings().num_embeddings, generator.tokenizer.vocab_size
    if tokens > known:
        raise UserError(
            f"{checkpoint}: expected a tokenizer of at most {known:,} tokens, as many as the model has "
            f"embeddings, found {tokens:,}; use the tokenizer that the model was trained with"
        )
    return generator


def _load(checkpoint: Path, settings: SamplingSettings, device: torch.device) -> Seq2Seq | Causal:
    from tasks.pseudo_queries.generators.causal import Causal
    from tasks.pseudo_queries.generators.load_model import ModelSource, open_config
    from tasks.pseudo_queries.generators.seq2seq import Seq2Seq

    config = open_config(checkpoint)
    source = ModelSource(checkpoint, config, settings.dtype, device)
    lengths = {"max_tokens": settings.input_max_tokens, "max_new_tokens": settings.max_new_tokens}
    if config.is_encoder_decoder:
        if settings.prompt is not None:
            raise UserError(f"prompt: {checkpoint} is a seq2seq model ({config.model_type}); give it a prefix instead")
        return Seq2Seq(source, prefix=settings.prefix, **lengths)
    if settings.prompt is None:
        raise UserError(
            f"prompt: {checkpoint} is a causal language model ({config.model_type}); give it a prompt, a text with "
            "{passage} in it"
        )
    return Causal(source, prompt=settings.prompt, stop=settings.stop, **lengths)
