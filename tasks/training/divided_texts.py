"""Texts of a step that the processes of a training tokenise together: each a share, and all receive all token ids.

The result is that of one process, so a batch does not depend on the number of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor

from tasks.runtime import distributed

TokenIds = list[list[int]]


class DividedTexts:
    """Divides the texts of a step among the processes of a training.

    The processes have a connection of their own for it, since a thread may build batches while the main thread sums
    gradients, and two threads must not share a connection.
    """

    def __init__(self) -> None:
        """Connect the processes; all of them must call it."""
        self._group = None
        if distributed.size() > 1:
            self._group = dist.new_group(backend="gloo", timeout=distributed.ALONE_IN_A_STEP)  # else half an hour

    def tokenised(self, rows: Sequence[int], tokenise: Callable[[Sequence[int]], TokenIds]) -> TokenIds:
        """Return the token ids of all rows; `tokenise` is called with this process's share of them."""
        if self._group is None:
            return tokenise(rows)
        shares = [distributed.shard_of_rank(rows, rank) for rank in range(distributed.size())]
        own = tokenise([rows[number] for number in shares[distributed.rank()]])
        lengths = self._gathered([len(ids) for ids in own], [len(share) for share in shares])
        ids = self._gathered([number for row in own for number in row], [int(part.sum()) for part in lengths])
        flat, ends = torch.cat(ids).tolist(), list(accumulate(torch.cat(lengths).tolist()))
        return [flat[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]

    def _gathered(self, own: list[int], sizes: Sequence[int]) -> list[Tensor]:
        """Return the numbers of all processes; `sizes` has their counts, since collectives need equal sizes."""
        padded = torch.zeros(max(sizes), dtype=torch.int32)
        padded[: len(own)] = torch.tensor(own, dtype=torch.int32)
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded, group=self._group)
        return [part[:size] for part, size in zip(parts, sizes, strict=True)]
