"""Batches of texts of similar length, which a model passes at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

TOKENS_PER_BATCH = {"cpu": 2048, "cuda": 65_536}  # padding included; the fastest of those measured on each


def batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Yield the indexes of texts, the longest first, in batches of at most `tokens` when padded (one text at least)."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if batch and (len(batch) + 1) * lengths[batch[0]] > tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
