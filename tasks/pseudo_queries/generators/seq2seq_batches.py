"""A given seq2seq model that is taught pairs: what it reads and writes of them, with its own tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from transformers.utils import logging as transformers_logging

from models.tokens import pad
from storage.errors import UserError
from tasks.pseudo_queries.generators.load_model import open_config, open_tokenizer
from tasks.pseudo_queries.generators.pair_files import Pair
from tasks.pseudo_queries.generators.seq2seq import Seq2Seq
from tasks.pseudo_queries.generators.seq2seq_objective import Batch


class Lengths(Protocol):
    """How pairs are cut; the meaning stands at `tasks.pseudo_queries.finetune_generator.GeneratorFinetuning`."""

    @property
    def prefix(self) -> str: ...
    @property
    def input_max_tokens(self) -> int: ...
    @property
    def query_max_tokens(self) -> int: ...


class Teacher:
    """Any Hugging Face encoder-decoder in float32, and pairs as it reads and writes them."""

    def __init__(self, start: Path, settings: Lengths, device: torch.device) -> None:
        """Raises `UserError` where the folder is no such model, or the settings do not fit it."""
        config = open_config(start)
        if not config.is_encoder_decoder:
            raise UserError(f"{start}: expected a seq2seq model, such as T5 or BART, found {config.model_type}")
        self.start, self.settings = start, settings
        self.writer = Seq2Seq(
            start, config, "float32", device, prefix=settings.prefix, max_tokens=settings.input_max_tokens,
            max_new_tokens=settings.query_max_tokens,
        )  # fmt: skip
        self.model = self.writer.model
        known, tokens = self.model.get_input_embeddings().num_embeddings, len(self.writer.tokenizer)
        if tokens > known:
            raise UserError(
                f"{start}: expected a tokenizer of at most {known:,} tokens, as many as the model has embeddings, "
                f"found {tokens:,}"
            )

    def batch(self, pairs: Sequence[Pair]) -> Batch:
        """Passages behind the prefix, and queries from the start token to their end, both cut and padded."""
        targets: list[list[int]] = self.writer.tokenizer(
            text_target=[query for _, query in pairs], truncation=True, max_length=self.settings.query_max_tokens
        )["input_ids"]
        texts = self.writer.read([passage for passage, _ in pairs])
        return Batch(pad(texts, self.writer.pad), pad([self.written(each) for each in targets], self.writer.pad))

    def written(self, ids: list[int]) -> list[int]:
        """What the tokenizer makes of a query, behind what decoding starts from, and with an end.

        Tokenizers differ: T5's begins with the query itself, BART's with what BART always writes first, and BERT's
        with the token that decoding starts from, which is not to be written again.
        """
        starts, ends = self.writer.starts, self.writer.ends
        for known in (starts, starts[1:]):
            if known and ids[: len(known)] == known:
                ids = ids[len(known) :]
                break
        return [*starts, *ids] if ids and ids[-1] in ends else [*starts, *ids, ends[0]]

    def save(self, folder: Path) -> None:
        """Write the model with its tokenizer.

        The tokenizer is opened anew: one that has been used would save how it cut and padded last.
        """
        open_tokenizer(self.start).save_pretrained(str(folder))
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # ours counts steps
        self.model.save_pretrained(str(folder))
