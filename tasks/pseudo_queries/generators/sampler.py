"""Nucleus sampling from any Hugging Face model that writes, the same for a passage whoever its neighbours are.

A text is encoded, or a prompt read, once for all its samples, and their first step is one step too. Rows that have
ended leave the batch. Each sample has random numbers of its own, from the seed, its text and its rank alone
(`drawing`): order, shards and batches move none of them. Equal batches on equally many threads give equal letters;
with other batches the model's last bits may differ, and so may a query in some thousands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from storage.errors import UserError
from tasks.pseudo_queries.generators.gumbel_sampling import Candidates, nucleus, numbers

if TYPE_CHECKING:  # they bring transformers, without which a recipe is read
    from tasks.pseudo_queries.generators.causal import Causal
    from tasks.pseudo_queries.generators.seq2seq import Seq2Seq

READ_AT_ONCE = 1024  # texts
LIVE_SHARE = 0.75  # below it a batch is compacted: copying the caches at every row's end costs more than it saves


@dataclass(frozen=True)
class Asked:
    """Queries that are wanted of one passage."""

    text: str
    """The passage alone, without prefix or prompt."""
    ranks: range
    """Which of its samples."""
    draw: int
    """How often they have been replaced: another number, other queries."""


class Writing(Protocol):
    """How to write; what a setting means stands at `tasks.pseudo_queries.generate_queries.Generation`."""

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


class Rows(Protocol):
    """The rows of a batch, as far as they are written."""

    def step(self, tokens: Tensor) -> Tensor:
        """The logits of the token that comes after these, which are new: [rows, 1]."""

    def repeat(self, times: int) -> None:
        """Make each row `times` rows that stand together."""

    def select(self, rows: Tensor) -> None:
        """Keep these rows."""


class Writer(Protocol):
    """A model that writes, of either kind."""

    ends: list[int]
    """Tokens that end a text and are no part of it,"""
    stops: list[int]
    """and those of which a beginning may be a part of it."""

    def read(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of what is read for each passage."""

    def start(self, ids: Sequence[list[int]]) -> tuple[Rows, Tensor]:
        """A row for each text, and the logits of its first token. [B, V]"""

    def text(self, samples: Sequence[list[int]]) -> list[str]:
        """What was written."""


class Sampler:
    """A checkpoint (folder or hub name) that writes texts for texts.

    `tell` is given a line when a batch is too large for the memory; smaller ones are made from then on.
    """

    def __init__(self, checkpoint: Path, settings: Writing, device: torch.device, tell: Callable[[str], None]) -> None:
        self.settings, self.device, self.tell = settings, device, tell
        self.batch_tokens = settings.batch_tokens
        self.writer: Writer = open_writer(checkpoint, settings, device)

    def __call__(self, asked: Sequence[Asked]) -> Iterator[list[tuple[int, list[str]]]]:
        """For one batch after another, the place of each of its passages and its samples, one for each rank."""
        ids = self._read(asked)
        waiting = in_order(asked, [len(each) for each in ids])
        while waiting:
            batch = waiting[: batch_size(waiting, asked, ids, self.batch_tokens)]
            samples = self._sampled([asked[place] for place in batch], [ids[place].tolist() for place in batch])
            if samples is not None:
                yield list(zip(batch, samples, strict=True))
                waiting = waiting[len(batch) :]

    def _read(self, asked: Sequence[Asked]) -> list[NDArray[np.int32]]:
        """Token ids, some texts at a time: as Python's lists, those of a whole bucket would fill the memory."""
        parts = (asked[start : start + READ_AT_ONCE] for start in range(0, len(asked), READ_AT_ONCE))
        return [np.array(ids, np.int32) for part in parts for ids in self.writer.read([each.text for each in part])]

    def _sampled(self, asked: Sequence[Asked], ids: list[list[int]]) -> list[list[str]] | None:
        """The queries of a batch; None where it does not fit in memory, and smaller batches are to be made."""
        settings = self.settings
        bits = [numbers(settings.seed, each.draw, each.text, each.ranks, settings.max_new_tokens) for each in asked]
        try:
            samples = self.sample(ids, torch.from_numpy(np.stack(bits)).to(self.device))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        else:
            return [[" ".join(text.split()) for text in self.writer.text(each)] for each in samples]
        self._make_smaller(asked, len(ids[0]))  # here the error is gone, and with it what it held
        return None

    def _make_smaller(self, asked: Sequence[Asked], length: int) -> None:
        queries = len(asked[0].ranks)
        if len(asked) == 1:
            raise UserError(
                f"passage {asked[0].text[:60]!r}: {queries} queries for its {length} tokens do not fit in memory; set "
                "input_max_tokens or queries_per_passage lower"
            )
        self.batch_tokens = length * (len(asked) // 2)
        self.tell(
            f"out of memory: {queries} queries for each of {len(asked)} passages of {length} tokens; "
            f"batches of at most {self.batch_tokens} tokens from here on"
        )
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    @torch.inference_mode()
    def sample(self, ids: list[list[int]], numbers_BST: Tensor) -> list[list[list[int]]]:
        """S samples of each of B texts, as token ids without the end; a token is drawn by its random number."""
        num_texts, num_samples, num_steps = numbers_BST.shape
        numbers_RT = numbers_BST.flatten(0, 1)
        state, logits_BV = self.writer.start(ids)
        ends_V, stops_V = (_marked(each, logits_BV) for each in (self.writer.ends, self.writer.stops))
        candidates = self._candidates(logits_BV)
        state.repeat(num_samples)
        tokens_R = candidates.repeated(num_samples).draw(numbers_RT[:, 0])
        written = torch.zeros_like(numbers_RT)
        rows = torch.arange(len(numbers_RT), device=self.device)  # what row of `written` each row of the batch is
        lengths = torch.zeros_like(rows)
        live = torch.ones_like(rows, dtype=torch.bool)
        for step in range(num_steps):
            live = live & ~ends_V[tokens_R]  # an end is not written,
            written[rows, step] = tokens_R
            lengths[rows] += live
            live = live & ~stops_V[tokens_R]  # a token with a stop in it is
            num_live = int(live.sum())
            if step + 1 == num_steps or not num_live:
                break
            if num_live < LIVE_SHARE * len(rows):
                kept = live.nonzero().squeeze(1)
                state.select(kept)
                rows, live, tokens_R = rows[kept], live[kept], tokens_R[kept]
            tokens_R = self._candidates(state.step(tokens_R[:, None])).draw(numbers_RT[rows, step + 1])
        samples = [row[:length] for row, length in zip(written.tolist(), lengths.tolist(), strict=True)]
        return [samples[row : row + num_samples] for row in range(0, num_texts * num_samples, num_samples)]

    def _candidates(self, logits_RV: Tensor) -> Candidates:
        return nucleus(logits_RV, self.settings.top_k, self.settings.top_p, self.settings.temperature)


def open_sampler(checkpoint: Path, settings: Writing, device: torch.device, tell: Callable[[str], None]) -> Sampler:
    """What writes queries with this checkpoint."""
    return Sampler(checkpoint, settings, device, tell)


def open_writer(checkpoint: Path, settings: Writing, device: torch.device) -> Seq2Seq | Causal:
    """The model, of the kind that its config.json says.

    Raises `UserError` where the settings are for the other, or the folder is broken.
    """
    writer = _writer(checkpoint, settings, device)
    known, tokens = writer.model.get_input_embeddings().num_embeddings, writer.tokenizer.vocab_size
    if tokens > known:
        raise UserError(
            f"{checkpoint}: expected a tokenizer of at most {known:,} tokens, as many as the model has "
            f"embeddings, found {tokens:,}; use the tokenizer that the model was trained with"
        )
    return writer


def _writer(checkpoint: Path, settings: Writing, device: torch.device) -> Seq2Seq | Causal:
    from tasks.pseudo_queries.generators.causal import Causal
    from tasks.pseudo_queries.generators.load_model import open_config
    from tasks.pseudo_queries.generators.seq2seq import Seq2Seq

    config = open_config(checkpoint)
    lengths = {"max_tokens": settings.input_max_tokens, "max_new_tokens": settings.max_new_tokens}
    if config.is_encoder_decoder:
        if settings.prompt is not None:
            raise UserError(f"prompt: {checkpoint} is a seq2seq model ({config.model_type}); give it a prefix instead")
        return Seq2Seq(checkpoint, config, settings.dtype, device, prefix=settings.prefix, **lengths)
    if settings.prompt is None:
        raise UserError(
            f"prompt: {checkpoint} is a causal language model ({config.model_type}); give it a prompt, a text with "
            "{passage} in it"
        )
    return Causal(checkpoint, config, settings.dtype, device, prompt=settings.prompt, stop=settings.stop, **lengths)


def in_order(asked: Sequence[Asked], lengths: Sequence[int]) -> list[int]:
    """Places: those that ask for equally many samples together, the longest of them first, equal lengths by text."""

    def key(place: int) -> tuple[int, int, str, int, int]:
        each = asked[place]
        return -len(each.ranks), -lengths[place], each.text, each.draw, each.ranks.start

    return sorted(range(len(asked)), key=key)


def batch_size(waiting: Sequence[int], asked: Sequence[Asked], ids: Sequence[Sized], tokens: int) -> int:
    """How many of the first have at most so many tokens when padded, and ask for equally many samples; one at least."""
    length, ranks = len(ids[waiting[0]]), len(asked[waiting[0]].ranks)
    most = waiting[: max(1, tokens // length)]
    return next((size for size, place in enumerate(most) if len(asked[place].ranks) != ranks), len(most))


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether PyTorch found no memory, on a GPU or on a CPU."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator: can't allocate memory" in str(error)


def _marked(ids: Sequence[int], logits: Tensor) -> Tensor:
    """True at these tokens. [V]"""
    marks = torch.zeros(logits.shape[1], dtype=torch.bool)
    marks[[each for each in ids if each < len(marks)]] = True
    return marks.to(logits.device)
