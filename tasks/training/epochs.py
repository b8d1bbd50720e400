"""The rows of a training step: every row once an epoch, in an order that differs from epoch to epoch."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tasks.training.seeds import random_generator


def rows_of_step(step: int, batch: int, num_rows: int, seed: int) -> list[int]:
    """Return the rows of a step, counted from 0; a batch may cross epochs."""
    first = step * batch
    rows: list[int] = []
    while len(rows) < batch:
        epoch, offset = divmod(first + len(rows), num_rows)
        rows += _epoch_order(epoch, num_rows, seed)[offset : offset + batch - len(rows)].tolist()
    return rows


@lru_cache(maxsize=2)
def _epoch_order(epoch: int, num_rows: int, seed: int) -> NDArray[np.int64]:
    return random_generator(seed, epoch, num_rows).permutation(num_rows)
