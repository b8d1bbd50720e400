"""Nucleus sampling from any Hugging Face generator; the samples of a passage do not depend on the other passages.

A text is encoded, or a prompt read, once for all its samples, which also share their first step. Finished rows leave
the batch. Each sample has its own random numbers, which depend only on the seed, the text and the sample's rank
(`gumbel_sampling`), not on the order of texts, on shards or on batches. Equal batches on the same number of threads
give identical texts; other batches may change the last bits of logits, and so one query in some thousands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from storage.errors import UserError
from tasks.pseudo_queries.generators.gumbel_sampling import Candidates, nucleus, numbers
from tasks.pseudo_queries.generators.text_generator import Decoder, SamplingSettings, TextGenerator, load_generator

TEXTS_PER_CALL = 1024  # of the tokenizer
LIVE_SHARE = 0.75  # a batch with fewer live rows is compacted; doing so at each row's end costs more than it saves


@dataclass(frozen=True)
class GenerationRequest:
    """The queries to generate for one passage."""

    text: str
    """The passage, without prefix or prompt."""
    ranks: range
    """The ranks of the samples to generate."""
    draw: int
    """How often the queries have been resampled; another number gives other queries."""


class Sampler:
    """Samples texts from a checkpoint (folder or hub name).

    If a batch does not fit in memory, `report` is called with a message, and all later batches are smaller.
    """

    def __init__(
        self, checkpoint: Path, settings: SamplingSettings, device: torch.device, report: Callable[[str], None]
    ) -> None:
        self.settings, self.device, self.report = settings, device, report
        self.batch_tokens = settings.batch_tokens
        self.generator: TextGenerator = load_generator(checkpoint, settings, device)

    def __call__(self, requests: Sequence[GenerationRequest]) -> Iterator[list[tuple[int, list[str]]]]:
        """Yield batch by batch the index of each request and its samples, one for each rank."""
        ids = self._read(requests)
        waiting = batch_order(requests, [len(tokens) for tokens in ids])
        while waiting:
            batch = waiting[: batch_size(waiting, requests, ids, self.batch_tokens)]
            samples = self._sample_texts([requests[index] for index in batch], [ids[index].tolist() for index in batch])
            if samples is not None:
                yield list(zip(batch, samples, strict=True))
                waiting = waiting[len(batch) :]

    def _read(self, requests: Sequence[GenerationRequest]) -> list[NDArray[np.int32]]:
        """Return the input token ids, as arrays: the Python lists of a complete bucket would fill the memory."""
        parts = (requests[start : start + TEXTS_PER_CALL] for start in range(0, len(requests), TEXTS_PER_CALL))
        return [
            np.array(ids, np.int32) for part in parts for ids in self.generator.read([request.text for request in part])
        ]

    def _sample_texts(self, requests: Sequence[GenerationRequest], ids: list[list[int]]) -> list[list[str]] | None:
        """Return the queries of a batch, or None if it does not fit in memory; the batch size is lowered then."""
        settings = self.settings
        bits = [
            numbers(settings.seed, request.draw, request.text, request.ranks, settings.max_new_tokens)
            for request in requests
        ]
        try:
            samples = sample(self.generator, ids, torch.from_numpy(np.stack(bits)).to(self.device), settings)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        else:
            return [[" ".join(text.split()) for text in self.generator.text(tokens)] for tokens in samples]
        self._lower_batch_size(requests, len(ids[0]))  # outside the handler: the error no longer holds tensors
        return None

    def _lower_batch_size(self, requests: Sequence[GenerationRequest], length: int) -> None:
        queries = len(requests[0].ranks)
        if len(requests) == 1:
            raise UserError(
                f"passage {requests[0].text[:60]!r}: {queries} queries for its {length} tokens do not fit in memory; "
                "set input_max_tokens or queries_per_passage lower"
            )
        self.batch_tokens = length * (len(requests) // 2)
        self.report(
            f"out of memory: {queries} queries for each of {len(requests)} passages of {length} tokens; "
            f"batches have at most {self.batch_tokens} tokens from now on"
        )
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


@torch.inference_mode()
def sample(
    generator: Decoder, ids: list[list[int]], numbers_BST: Tensor, settings: SamplingSettings
) -> list[list[list[int]]]:
    """Return S samples of each of B inputs as token ids without the end; random numbers select the tokens."""

    def candidates(logits_RV: Tensor) -> Candidates:
        return nucleus(logits_RV, settings.top_k, settings.top_p, settings.temperature)

    num_texts, num_samples, num_steps = numbers_BST.shape
    numbers_RT = numbers_BST.flatten(0, 1)
    state, logits_BV = generator.start(ids)
    ends_V, stops_V = (token_mask(tokens, logits_BV) for tokens in (generator.ends, generator.stops))
    state.repeat(num_samples)
    tokens_R = candidates(logits_BV).repeated(num_samples).draw(numbers_RT[:, 0])
    generated_RT = torch.zeros_like(numbers_RT)
    rows = torch.arange(len(numbers_RT), device=numbers_BST.device)  # of `generated_RT`, for each row in the batch
    lengths = torch.zeros_like(rows)
    live = torch.ones_like(rows, dtype=torch.bool)
    for step in range(num_steps):
        # An end token is not part of the text, so the row ends before it is counted.
        live = live & ~ends_V[tokens_R]
        generated_RT[rows, step] = tokens_R
        lengths[rows] += live
        # A token with the stop string is part of the text, so the row ends after it is counted.
        live = live & ~stops_V[tokens_R]
        num_live = int(live.sum())
        if step + 1 == num_steps or not num_live:
            break
        if num_live < LIVE_SHARE * len(rows):
            kept = live.nonzero().squeeze(1)
            state.select(kept)
            rows, live, tokens_R = rows[kept], live[kept], tokens_R[kept]
        tokens_R = candidates(state.step(tokens_R[:, None])).draw(numbers_RT[rows, step + 1])
    samples = [row[:length] for row, length in zip(generated_RT.tolist(), lengths.tolist(), strict=True)]
    return [samples[row : row + num_samples] for row in range(0, num_texts * num_samples, num_samples)]


def batch_order(requests: Sequence[GenerationRequest], lengths: Sequence[int]) -> list[int]:
    """Return the indices sorted by falling number of samples, then falling length, then text."""

    def key(index: int) -> tuple[int, int, str, int, int]:
        request = requests[index]
        return -len(request.ranks), -lengths[index], request.text, request.draw, request.ranks.start

    return sorted(range(len(requests)), key=key)


def batch_size(
    waiting: Sequence[int], requests: Sequence[GenerationRequest], ids: Sequence[Sized], max_tokens: int
) -> int:
    """Return how many of the first requests form a batch, at least one.

    All have the same number of samples, and padded to the first one's length they have at most `max_tokens` tokens.
    """
    length, ranks = len(ids[waiting[0]]), len(requests[waiting[0]].ranks)
    fitting = waiting[: max(1, max_tokens // length)]
    return next((size for size, index in enumerate(fitting) if len(requests[index].ranks) != ranks), len(fitting))


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether PyTorch failed to allocate memory on a GPU or a CPU."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator: can't allocate memory" in str(error)


def token_mask(ids: Sequence[int], logits: Tensor) -> Tensor:
    """Return a mask over the vocabulary that is true at these tokens. [V]"""
    mask = torch.zeros(logits.shape[1], dtype=torch.bool)
    mask[[token for token in ids if token < len(mask)]] = True
    return mask.to(logits.device)
