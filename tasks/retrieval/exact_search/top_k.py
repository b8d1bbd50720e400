"""Whole numbers that are greater the earlier a passage comes, and the greatest of many, while tiles of them go by.

Shape suffixes: Q queries, P passages of a tile, K passages kept, M places for keys.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasks.retrieval.exact_search.numba_kernels import add_keys
from tasks.retrieval.ranking import Places

Keys = NDArray[np.int64]
RANK_BITS = 32
RANKS = 2**RANK_BITS - 1
NO_KEY = -0x7F800001 << RANK_BITS  # that of minus infinity: below every passage's


def sort_keys(scores: Tensor, ranks: Tensor) -> Tensor:
    """Whole numbers that are greater the earlier a passage comes: by float32 score, then by rank, below 2^32."""
    bits = (scores + 0.0).view(torch.int32)  # + 0.0: -0.0 is 0.0
    return (_rising(bits).long() << RANK_BITS) | ranks


def score_of(keys: Tensor) -> Tensor:
    """The float32 scores in keys."""
    return _rising((keys >> RANK_BITS).int()).view(torch.float32)


def _rising(bits: Tensor) -> Tensor:
    """Bits of floats as whole numbers that rise with them; and back."""
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


class Best(Protocol):
    """The `kept` greatest keys of each query, of what was added."""

    def add(self, bounds_QP: Tensor, ranks_P: Places) -> None:
        """Add a tile of passages."""

    def keys(self) -> Keys:
        """The greatest keys, [Q, K], falling; there are K, once as many passages were added."""


def best_of(num_queries: int, kept: int, device: torch.device) -> Best:
    """No keys yet; on the device that the bounds will be on."""
    return OnCpu(num_queries, kept) if device.type == "cpu" else OnDevice(num_queries, kept, device)


class OnCpu:
    """A loop over the bounds gathers what is above the least that is kept, until there is no room for a tile."""

    def __init__(self, num_queries: int, kept: int) -> None:
        self.kept, self.found_QM = kept, np.full((num_queries, kept), NO_KEY, np.int64)  # the least is the first
        self.counts_Q = np.full(num_queries, kept, np.int64)

    def add(self, bounds_QP: Tensor, ranks_P: Places) -> None:
        """Add a tile of passages."""
        if self.counts_Q.max(initial=0) + len(ranks_P) > self.found_QM.shape[1]:
            self._cut(2 * len(ranks_P))
        add_keys(bounds_QP.numpy(), ranks_P, self.found_QM, self.counts_Q)

    def _cut(self, room: int) -> None:
        """Forget all but the greatest."""
        first = self.found_QM.shape[1] - self.kept
        best_QK = np.partition(self.found_QM, first)[:, first:]
        self.found_QM = np.pad(best_QK, ((0, 0), (0, room)), constant_values=NO_KEY)
        self.counts_Q[:] = self.kept

    def keys(self) -> Keys:
        """The greatest keys, [Q, K], falling."""
        return np.sort(self.found_QM)[:, ::-1][:, : self.kept]


class OnDevice:
    """Operations on whole tiles; few of a tile can be among the greatest."""

    def __init__(self, num_queries: int, kept: int, device: torch.device) -> None:
        self.kept, self.best_QK = kept, torch.empty((num_queries, 0), dtype=torch.int64, device=device)

    def add(self, bounds_QP: Tensor, ranks_P: Places) -> None:
        """Add a tile of passages."""
        if self.best_QK.shape[1] == self.kept:
            least_Q1 = score_of(self.best_QK.min(dim=1, keepdim=True).values)
        else:
            first_QK = bounds_QP.topk(min(self.kept, bounds_QP.shape[1]), sorted=False).values
            least_Q1 = first_QK.min(dim=1, keepdim=True).values
        rows, columns = (bounds_QP >= least_Q1).nonzero(as_tuple=True)
        counts = rows.bincount(minlength=len(bounds_QP))
        positions = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]
        most = int(counts.max()) if len(rows) else 0
        found_QM = torch.full((len(bounds_QP), most), NO_KEY, dtype=torch.int64, device=rows.device)
        found_QM[rows, positions] = sort_keys(
            bounds_QP[rows, columns], torch.from_numpy(ranks_P).to(rows.device)[columns]
        )
        keys_QK = torch.cat([self.best_QK, found_QM], dim=1)
        self.best_QK = keys_QK.topk(min(self.kept, keys_QK.shape[1]), sorted=False).values

    def keys(self) -> Keys:
        """The greatest keys, [Q, K], falling."""
        keys: Keys = self.best_QK.sort(descending=True).values.cpu().numpy()
        return keys
