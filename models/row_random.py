"""Random numbers of training steps: those of a row depend on seed, step and row only.

A process or a worker that builds some rows of a batch thus samples for them what any other would. The generator is
counter-based (Philox; Salmon et al. 2011, Parallel Random Numbers: As Easy as 1, 2, 3): the numbers of a row are
computed from its place in the sequence, without those of earlier rows, and for all rows in one call.
"""

from __future__ import annotations

from copy import copy
from itertools import count

import numpy as np
from numpy.typing import NDArray

NUMBERS_PER_BLOCK = 4  # a value of Philox's counter gives four 64-bit numbers


class RowRandom:
    """The generator of consecutive rows of a step. Every call has new numbers; equal calls in equal order are equal."""

    def __init__(self, seed: int, step: int, first: int = 0) -> None:
        self._key, self._first, self._calls = np.array([seed, step], dtype=np.uint64), first, count()

    def times(self, number: int) -> RowRandom:
        """Return the generator for `number` rows in place of each row."""
        other = copy(self)  # which shares the number of calls, so that no two have equal numbers
        other._first = self._first * number
        return other

    def bits(self, rows: int, width: int) -> NDArray[np.uint64]:
        """Return 64 random bits for each row and column [rows, width]; the width must not depend on the rows."""
        blocks = -(-width // NUMBERS_PER_BLOCK)
        return self._sample(self._first * blocks, rows * blocks).reshape(rows, -1)[:, :width]

    def uniform(self, rows: int, width: int) -> NDArray[np.float64]:
        """Return numbers from 0 up to 1 [rows, width]."""
        return as_uniform(self.bits(rows, width))

    def integers(self, bounds: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return a number for each row, from 0 up to the row's bound (below 2**32)."""
        return as_integers(self.bits(len(bounds), 1)[:, 0], bounds)

    def shared(self) -> float:
        """Return a number from 0 up to 1 that is the same for all rows of the step."""
        return float(as_uniform(self._sample(0, 1))[0])

    def _sample(self, block: int, blocks: int) -> NDArray[np.uint64]:
        counter = np.array([block, 0, next(self._calls), 0], dtype=np.uint64)
        return np.random.Philox(key=self._key, counter=counter).random_raw(blocks * NUMBERS_PER_BLOCK)


def as_uniform(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return numbers from 0 up to 1 from random bits."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def as_integers(bits: NDArray[np.uint64], bounds: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """Return numbers from 0 up to their bounds (below 2**32) from the upper halves of random bits.

    Two numbers differ in probability by at most 2**-32.
    """
    scaled = (bits >> np.uint64(32)) * np.asarray(bounds).astype(np.uint64)
    return (scaled >> np.uint64(32)).astype(np.int64)
