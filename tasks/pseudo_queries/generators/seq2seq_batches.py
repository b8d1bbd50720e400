"""Pairs of a passage and a query as a given seq2seq model reads and generates them, with its own tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from transformers.utils import logging as transformers_logging

from models.tokens import pad
from storage.errors import UserError
from tasks.pseudo_queries.generators.load_model import ModelSource, open_config, open_tokenizer
from tasks.pseudo_queries.generators.pair_files import Pair
from tasks.pseudo_queries.generators.seq2seq import Seq2Seq
from tasks.pseudo_queries.generators.seq2seq_objective import Batch


class Lengths(Protocol):
    """The lengths at which pairs are truncated; `GeneratorFinetuning` documents each setting."""

    @property
    def prefix(self) -> str: ...
    @property
    def input_max_tokens(self) -> int: ...
    @property
    def query_max_tokens(self) -> int: ...


class Seq2SeqTokenizer:
    """A Hugging Face encoder-decoder in float32, and the token ids of pairs for it."""

    def __init__(self, start: Path, settings: Lengths, device: torch.device) -> None:
        """Load the model; raise UserError if the folder has no such model, or if the settings do not fit it."""
        config = open_config(start)
        if not config.is_encoder_decoder:
            raise UserError(f"{start}: expected a seq2seq model, such as T5 or BART, found {config.model_type}")
        self.start, self.settings = start, settings
        self.generator = Seq2Seq(
            ModelSource(start, config, "float32", device), prefix=settings.prefix,
            max_tokens=settings.input_max_tokens, max_new_tokens=settings.query_max_tokens,
        )  # fmt: skip
        self.model = self.generator.model
        known, tokens = self.model.get_input_embeddings().num_embeddings, len(self.generator.tokenizer)
        if tokens > known:
            raise UserError(
                f"{start}: expected a tokenizer of at most {known:,} tokens, as many as the model has embeddings, "
                f"found {tokens:,}"
            )

    def batch(self, pairs: Sequence[Pair]) -> Batch:
        """Return the pairs as a batch: prefix and passage, and the query from its start token to its end."""
        targets: list[list[int]] = self.generator.tokenizer(
            text_target=[query for _, query in pairs], truncation=True, max_length=self.settings.query_max_tokens
        )["input_ids"]
        texts = self.generator.read([passage for passage, _ in pairs])
        return Batch(pad(texts, self.generator.pad), pad([self.target(query) for query in targets], self.generator.pad))

    def target(self, ids: list[int]) -> list[int]:
        """Return a query's token ids with the tokens that decoding starts from, and with an end.

        Tokenizers differ: T5's begins with the query itself, BART's with the token that BART always generates first,
        and BERT's with the token that decoding starts from, which must not occur twice.
        """
        starts, ends = self.generator.starts, self.generator.ends
        for prefix in (starts, starts[1:]):
            if prefix and ids[: len(prefix)] == prefix:
                ids = ids[len(prefix) :]
                break
        return [*starts, *ids] if ids and ids[-1] in ends else [*starts, *ids, ends[0]]

    def save(self, folder: Path) -> None:
        """Write the model with its tokenizer.

        The tokenizer is loaded again: a used one would save its last truncation and padding.
        """
        open_tokenizer(self.start).save_pretrained(str(folder))
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # ours counts steps
        self.model.save_pretrained(str(folder))
