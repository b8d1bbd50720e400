"""The K greatest sort keys of each query, over tiles of passages that are added one by one.

A sort key packs a float32 score and the passage's rank by id into one int64, so that comparing two keys compares the
scores first and breaks ties by id: lists are exact also where scores are equal.

Shape suffixes: Q queries, P passages of a tile, K keys kept, M slots for keys.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasks.retrieval.exact_search.numba_kernels import append_keys
from tasks.retrieval.ranking import Indices

SortKeys = NDArray[np.int64]
RANK_BITS = 32
RANK_MASK = 2**RANK_BITS - 1
NO_KEY = -0x7F800001 << RANK_BITS  # the key of minus infinity: below the key of every passage


def sort_keys(scores: Tensor, ranks: Tensor) -> Tensor:
    """Return int64 keys that order by float32 score, then by rank; ranks are in [0, 2^32)."""
    bits = (scores + 0.0).view(torch.int32)  # + 0.0 turns -0.0 into 0.0, which must compare equal
    return (_monotonic(bits).long() << RANK_BITS) | ranks


def score_of(keys: Tensor) -> Tensor:
    """Return the float32 scores that are packed in the keys."""
    return _monotonic((keys >> RANK_BITS).int()).view(torch.float32)


def _monotonic(bits: Tensor) -> Tensor:
    """Map the bits of float32 numbers to integers of the same order; the mapping is its own inverse.

    Positive floats order like their bits. Of negative ones, whose sign bit is set, the other bits order the wrong way
    round, so these are flipped.
    """
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


class TopKeys(Protocol):
    """The K greatest keys of each query among all passages that were added."""

    def add(self, bounds_QP: Tensor, ranks_P: Indices) -> None:
        """Add a tile of passages."""

    def keys(self) -> SortKeys:
        """Return the greatest keys in descending order, [Q, K]; at least K passages must have been added."""


def top_keys(num_queries: int, num_keys: int, device: torch.device) -> TopKeys:
    """Return an empty selection for bounds on this device."""
    if device.type == "cpu":
        return CpuTopKeys(num_queries, num_keys)
    return DeviceTopKeys(num_queries, num_keys, device)


class CpuTopKeys:
    """Select with a compiled loop: it appends keys above a threshold, and sorts out the rest when slots run out.

    The threshold is the least of the K greatest keys at the last cut. A cut is a partition of each query's slots, so
    its cost is spread over many tiles.
    """

    def __init__(self, num_queries: int, num_keys: int) -> None:
        self.num_keys, self.keys_QM = num_keys, np.full((num_queries, num_keys), NO_KEY, np.int64)
        self.counts_Q = np.full(num_queries, num_keys, np.int64)

    def add(self, bounds_QP: Tensor, ranks_P: Indices) -> None:
        """Add a tile of passages."""
        if self.counts_Q.max(initial=0) + len(ranks_P) > self.keys_QM.shape[1]:
            self._cut(2 * len(ranks_P))
        append_keys(bounds_QP.numpy(), ranks_P, self.keys_QM, self.counts_Q)

    def _cut(self, free_slots: int) -> None:
        """Drop all but the greatest keys; the partition puts the least of these, the threshold, into slot 0."""
        first = self.keys_QM.shape[1] - self.num_keys
        greatest_QK = np.partition(self.keys_QM, first)[:, first:]
        self.keys_QM = np.pad(greatest_QK, ((0, 0), (0, free_slots)), constant_values=NO_KEY)
        self.counts_Q[:] = self.num_keys

    def keys(self) -> SortKeys:
        """Return the greatest keys in descending order, [Q, K]."""
        return np.sort(self.keys_QM)[:, ::-1][:, : self.num_keys]


class DeviceTopKeys:
    """Select with tensor operations on complete tiles, for GPUs.

    A tile's bounds are compared with the least key kept so far; only the few that pass are turned into keys.
    """

    def __init__(self, num_queries: int, num_keys: int, device: torch.device) -> None:
        self.num_keys = num_keys
        self.keys_QK = torch.empty((num_queries, 0), dtype=torch.int64, device=device)

    def add(self, bounds_QP: Tensor, ranks_P: Indices) -> None:
        """Add a tile of passages."""
        if self.keys_QK.shape[1] == self.num_keys:
            threshold_Q1 = score_of(self.keys_QK.min(dim=1, keepdim=True).values)
        else:
            top_QK = bounds_QP.topk(min(self.num_keys, bounds_QP.shape[1]), sorted=False).values
            threshold_Q1 = top_QK.min(dim=1, keepdim=True).values
        # >= and not >: a bound equal to the threshold may still win by its rank.
        queries, columns = (bounds_QP >= threshold_Q1).nonzero(as_tuple=True)
        counts = queries.bincount(minlength=len(bounds_QP))
        slots = torch.arange(len(queries), device=queries.device) - (counts.cumsum(0) - counts)[queries]
        num_slots = int(counts.max()) if len(queries) else 0
        new_QM = torch.full((len(bounds_QP), num_slots), NO_KEY, dtype=torch.int64, device=queries.device)
        ranks = torch.from_numpy(ranks_P).to(queries.device)[columns]
        new_QM[queries, slots] = sort_keys(bounds_QP[queries, columns], ranks)
        keys_QM = torch.cat([self.keys_QK, new_QM], dim=1)
        self.keys_QK = keys_QM.topk(min(self.num_keys, keys_QM.shape[1]), sorted=False).values

    def keys(self) -> SortKeys:
        """Return the greatest keys in descending order, [Q, K]."""
        keys: SortKeys = self.keys_QK.sort(descending=True).values.cpu().numpy()
        return keys
