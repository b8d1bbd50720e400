"""Nucleus sampling from any Hugging Face encoder-decoder, several samples a text, the same whoever its neighbours are.

A text is encoded once for all its samples, and their first step is one step too. Rows that have ended
leave the batch. Each sample has its own stream of uniform numbers, seeded by the seed, its text and its rank, and
a token is drawn by inverting the cumulative distribution: order, shards and batches move no draw.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import logging as transformers_logging

from storage.errors import UserError

LIVE_SHARE = 0.75  # below it a batch is compacted: copying the caches at every row's end costs more than it saves


@dataclass(frozen=True)
class Asked:
    """Queries that are wanted of one passage."""

    text: str
    """The passage alone, without prefix or prompt."""
    ranks: range
    """Which of its samples; each has a stream of uniform numbers of its own."""
    draw: int
    """How often they have been replaced: another number, other queries."""


class Writing(Protocol):
    """How to draw; the names are those of Hugging Face's `generate`, what they mean stands at `Generation`."""

    @property
    def prefix(self) -> str: ...
    @property
    def top_k(self) -> int: ...
    @property
    def top_p(self) -> float: ...
    @property
    def max_new_tokens(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def input_max_tokens(self) -> int: ...
    @property
    def batch_tokens(self) -> int: ...


class Sampler:
    """A seq2seq checkpoint (folder or hub name) that writes texts for texts. bfloat16 on a GPU."""

    def __init__(self, checkpoint: Path, settings: Writing, device: torch.device, tell: Callable[[str], None]) -> None:
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # ours counts passages
        self.settings, self.device = settings, device
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(str(checkpoint))
            model: Any = AutoModelForSeq2SeqLM.from_pretrained(str(checkpoint), dtype=dtype)
        except (OSError, ValueError) as error:
            reason = str(error).split("\n")[0]
            raise UserError(f"{checkpoint}: expected a seq2seq model that Hugging Face opens: {reason}") from error
        self.model = model.to(device).eval()
        self.special = special_tokens(self.model, self.tokenizer)

    def __call__(self, asked: Sequence[Asked]) -> Iterator[list[tuple[int, list[str]]]]:
        """For one batch after another, the place of each of its passages and its samples, one for each rank."""
        texts = [self.settings.prefix + each.text for each in asked]
        ids = self.tokenizer(texts, truncation=True, max_length=self.settings.input_max_tokens)["input_ids"]
        for batch in batches(asked, [len(each) for each in ids], self.settings.batch_tokens):
            uniforms = np.stack([self._uniforms(asked[place]) for place in batch])
            samples = self.sample([ids[place] for place in batch], torch.from_numpy(uniforms).to(self.device))
            yield [(place, self._decoded(each)) for place, each in zip(batch, samples, strict=True)]

    def _uniforms(self, asked: Asked) -> np.ndarray[Any, np.dtype[np.float64]]:
        return uniforms(asked, self.settings.seed, self.settings.max_new_tokens)

    def _decoded(self, samples: list[list[int]]) -> list[str]:
        decoded: list[str] = self.tokenizer.batch_decode(samples, skip_special_tokens=True)
        return [" ".join(text.split()) for text in decoded]

    @torch.inference_mode()
    def sample(self, ids: list[list[int]], uniforms_BST: Tensor) -> list[list[list[int]]]:
        """S samples of each of B texts, as token ids without the end; a token is drawn by its uniform number."""
        num_texts, num_samples, num_steps = uniforms_BST.shape
        uniforms_RT = uniforms_BST.flatten(0, 1)
        state = self._encoded(ids)
        candidates = self._step(state, torch.full((num_texts, 1), self.special.start, device=self.device))
        state.repeat(num_samples)
        tokens_R = candidates.repeated(num_samples).draw(uniforms_RT[:, 0])
        written = torch.full(uniforms_RT.shape, self.special.pad, device=self.device)
        rows = torch.arange(len(uniforms_RT), device=self.device)  # what row of `written` each row of the batch is
        lengths = torch.zeros_like(rows)
        live = torch.ones_like(rows, dtype=torch.bool)
        for step in range(num_steps):
            live = live & ~torch.isin(tokens_R, self.special.ends)
            written[rows[live], step] = tokens_R[live]
            lengths[rows[live]] = step + 1
            if step + 1 == num_steps or not live.any():
                break
            if int(live.sum()) < LIVE_SHARE * len(rows):
                kept = live.nonzero().squeeze(1)
                state.select(kept)
                rows, live, tokens_R = rows[kept], live[kept], tokens_R[kept]
            tokens_R = self._step(state, tokens_R[:, None]).draw(uniforms_RT[rows, step + 1])
        samples = [row[:length] for row, length in zip(written.tolist(), lengths.tolist(), strict=True)]
        return [samples[row : row + num_samples] for row in range(0, len(samples), num_samples)]

    def _encoded(self, ids: list[list[int]]) -> State:
        length = max(len(each) for each in ids)
        ids_BL = torch.full((len(ids), length), self.special.pad)
        mask_BL = torch.zeros(ids_BL.shape, dtype=torch.long)
        for row, each in enumerate(ids):
            ids_BL[row, : len(each)] = torch.tensor(each)
            mask_BL[row, : len(each)] = 1
        mask_BL = mask_BL.to(self.device)
        hidden = self.model.get_encoder()(input_ids=ids_BL.to(self.device), attention_mask=mask_BL).last_hidden_state
        return State(hidden, mask_BL, None)

    def _step(self, state: State, tokens_R1: Tensor) -> Candidates:
        found = self.model(
            encoder_outputs=BaseModelOutput(last_hidden_state=state.hidden), attention_mask=state.mask,
            decoder_input_ids=tokens_R1, past_key_values=state.cache, use_cache=True,
        )  # fmt: skip
        state.cache = found.past_key_values
        return nucleus(found.logits[:, -1], self.settings.top_k, self.settings.top_p)


@dataclass
class State:
    """What a step needs of the rows of a batch."""

    hidden: Tensor
    """[rows, length, width], the encoded texts."""
    mask: Tensor
    """[rows, length]."""
    cache: Any
    """Keys and values of the steps so far and of the encoded text."""

    def repeat(self, times: int) -> None:
        """Make each row `times` rows that stand together."""
        self.hidden = self.hidden.repeat_interleave(times, dim=0)
        self.mask = self.mask.repeat_interleave(times, dim=0)
        self.cache.batch_repeat_interleave(times)

    def select(self, rows: Tensor) -> None:
        """Keep these rows."""
        self.hidden, self.mask = self.hidden[rows], self.mask[rows]
        self.cache.batch_select_indices(rows)


@dataclass(frozen=True)
class Candidates:
    """The tokens that may come next, the likeliest first, and the sums of their probabilities up to each."""

    tokens: Tensor
    """[rows, k]"""
    cumulative: Tensor
    """[rows, k], constant from the last allowed token on."""

    def repeated(self, times: int) -> Candidates:
        """Each row `times` times."""
        return Candidates(self.tokens.repeat_interleave(times, dim=0), self.cumulative.repeat_interleave(times, dim=0))

    def draw(self, uniforms_R: Tensor) -> Tensor:
        """The first token whose cumulative probability exceeds the row's share (in [0, 1)) of the whole."""
        whole_R1 = self.cumulative[:, -1:]
        place_R1 = (self.cumulative <= uniforms_R[:, None] * whole_R1).sum(1, keepdim=True)
        last_R1 = (self.cumulative < whole_R1).sum(1, keepdim=True)  # where rounding makes a share the whole
        return self.tokens.gather(1, torch.minimum(place_R1, last_R1)).squeeze(1)


def nucleus(logits_RV: Tensor, top_k: int, top_p: float) -> Candidates:
    """The `top_k` likeliest tokens, of these the fewest that hold a share of `top_p` of their probability.

    As Hugging Face does it: top-k first, top-p of what it leaves (Holtzman et al. 2020, section 3.1).
    """
    logits_RK, tokens_RK = logits_RV.topk(min(top_k, logits_RV.shape[1]))
    shares_RK = logits_RK.double().softmax(1)
    before_RK = shares_RK.cumsum(1) - shares_RK
    return Candidates(tokens_RK, shares_RK.masked_fill(before_RK >= top_p, 0.0).cumsum(1))


@dataclass(frozen=True)
class SpecialTokens:
    """Where decoding starts, what ends it, and what fills a row."""

    start: int
    pad: int
    ends: Tensor


def special_tokens(model: Any, tokenizer: Any) -> SpecialTokens:
    """As the model's own generation settings name them."""
    settings, config = model.generation_config, model.config
    start = _first(settings.decoder_start_token_id, config.decoder_start_token_id, settings.bos_token_id)
    end = _first(settings.eos_token_id, config.eos_token_id, tokenizer.eos_token_id)
    pad = _first(settings.pad_token_id, tokenizer.pad_token_id)
    ends = torch.tensor([end] if isinstance(end, int) else end, device=model.device)
    return SpecialTokens(start, pad, ends)


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def open_sampler(checkpoint: Path, settings: Writing, device: torch.device, tell: Callable[[str], None]) -> Sampler:
    """What writes queries with this checkpoint."""
    return Sampler(checkpoint, settings, device, tell)


def uniforms(asked: Asked, seed: int, size: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """So many numbers in [0, 1) for each rank, the same whichever other ranks are asked for. [ranks, size]"""
    key = hashlib.sha256(f"{seed}\n{asked.draw}\n{asked.text}".encode()).digest()[:16]
    streams = (np.random.Philox(key=int.from_bytes(key, "little"), counter=[0, 0, 0, rank]) for rank in asked.ranks)
    return np.stack([np.random.Generator(stream).random(size) for stream in streams])


def batches(asked: Sequence[Asked], lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Places in batches of at most so many padded tokens, all asking for equally many samples.

    The longest go first, equal lengths by their text.
    """

    def order(place: int) -> tuple[int, int, str, int, int]:
        each = asked[place]
        return -len(each.ranks), -lengths[place], each.text, each.draw, each.ranks.start

    batch: list[int] = []
    for place in sorted(range(len(asked)), key=order):
        mixed = batch and len(asked[place].ranks) != len(asked[batch[0]].ranks)
        if batch and (mixed or (len(batch) + 1) * lengths[batch[0]] > tokens):
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch
