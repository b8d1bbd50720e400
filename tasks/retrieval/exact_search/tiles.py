"""The stored vectors of all passages in tiles, on the run's device, where they are kept if they fit."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tasks.retrieval.exact_search.double_scores import MEMORY_BYTES, StoredVectors, row_bytes
from tasks.retrieval.exact_search.upper_bounds import DeviceTile, free_bytes, is_accelerator, tile_on_device

CACHE_BYTES = 2**20  # of a tile's bounds on the CPU: they are selected from while they are in a core's cache
MIN_TILE = 512  # passages that make a matrix product worthwhile
DEVICE_QUERIES = 4096  # whose bounds an accelerator computes at a time


class Tiles:
    """The passages of an index in tiles. An accelerator keeps them for the next pass if half of its memory holds all.

    A CPU keeps nothing: its tiles are views of the memory-mapped files, which the operating system caches.
    """

    def __init__(self, stored: StoredVectors, device: torch.device) -> None:
        self.stored, self.device = stored, device
        self._kept: dict[bool, list[tuple[int, DeviceTile]]] = {}
        self._num_queries: dict[bool, int] = {}

    def __call__(self, num_queries: int, *, coarse: bool) -> Iterator[tuple[int, DeviceTile]]:
        """Yield the first row of each tile and its representations.

        A tile fits into memory together with its bounds for `num_queries` queries.
        """
        if coarse in self._kept and num_queries <= self._num_queries[coarse]:
            yield from self._kept[coarse]
            return
        self._kept.pop(coarse, None)  # its tiles are too large for the bounds of more queries
        kept: list[tuple[int, DeviceTile]] | None = [] if is_accelerator(self.device) else None
        room = free_bytes(self.device) // 2
        for start, tile in self._read(num_queries, coarse):
            if kept is not None:
                kept.append((start, tile))
                # Bytes per passage of the first tile, times all passages: do all tiles fit into the room?
                if kept[0][1].nbytes * len(self.stored) > room * len(kept[0][1]):
                    kept = None
            yield start, tile
        if kept is not None:
            self._kept[coarse], self._num_queries[coarse] = kept, num_queries

    def _read(self, num_queries: int, coarse: bool) -> Iterator[tuple[int, DeviceTile]]:
        if is_accelerator(self.device):
            largest, memory = len(self.stored), tile_bytes(self.device)
        else:
            largest, memory = max(MIN_TILE, CACHE_BYTES // (4 * num_queries)), MEMORY_BYTES
        for start, shard in self.stored.shards():
            step = min(largest, max(1, memory // max(32 * num_queries, 2 * row_bytes(shard))))
            for first in range(0, len(shard), step):
                rows = shard.rows(first, min(first + step, len(shard)))
                yield start + first, tile_on_device(rows, self.stored.similarity, self.device, coarse=coarse)


def tile_bytes(device: torch.device) -> int:
    """Return the memory for one tile and its bounds: a sixteenth of what is free, at least that of a CPU."""
    return max(MEMORY_BYTES, free_bytes(device) // 16)
