"""Texts to vectors with a checkpoint.

What shares a batch is decided by the texts alone, never by how the run is executed: padding and the shape of
a product move the last bits of a vector, and equal builds must be equal to the byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from models.representation import Role
from models.tokens import Tokenizer
from models.towers import load
from storage.vectors import Vectors
from tasks.stage import execution

TOKENS_PER_BATCH = {"cpu": 4096, "cuda": 65_536}  # with padding; what measures well on each


class TextEncoder:
    """A checkpoint's tokenizer and encoder, on the device of the run."""

    def __init__(self, checkpoint: Path) -> None:
        self.device = device()
        self.tokenizer = Tokenizer.load(checkpoint)
        self.encoder = load(checkpoint).to(self.device).eval()

    def __call__(
        self, texts: Sequence[str], role: Role, max_tokens: int, done: Callable[[int], object] = lambda number: None
    ) -> Vectors:
        """The texts' vectors, [texts, dimension], in their order; `done` is told of each batch's size."""
        ids = self.tokenizer.encode(list(texts), max_tokens)
        vectors: list[Vectors] = []
        order: list[int] = []
        for batch in batches([len(each) for each in ids], TOKENS_PER_BATCH[self.device.type]):
            vectors.append(self._vectors([ids[place] for place in batch], role))
            order += batch
            done(len(batch))
        return np.concatenate(vectors)[np.argsort(order)]

    @torch.inference_mode()
    def _vectors(self, ids: list[list[int]], role: Role) -> Vectors:
        dense_BD = self.encoder(self.tokenizer.pad_batch(ids).to(self.device), role).dense
        if dense_BD is None:
            raise ValueError("the checkpoint's encoder makes no dense vectors")
        vectors_BD: Vectors = dense_BD.float().cpu().numpy()
        return vectors_BD


def batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Places of texts, the longest first, in batches of at most so many tokens when padded (one text at least)."""
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if batch and (len(batch) + 1) * lengths[batch[0]] > tokens:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def device() -> torch.device:
    """The device that the run's settings name; auto takes a GPU where there is one."""
    torch.set_num_threads(execution().threads)
    name = execution().device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)
