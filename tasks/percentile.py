"""Percentiles of more numbers than should be in memory at once, exactly: they are read twice and counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

COUNTERS = 1 << 16

Keys = NDArray[np.uint32]


def percentile(read: Callable[[], Iterable[NDArray[np.float32]]], percent: float) -> float:
    """Of n numbers in rising order, counted from 0, number ceil(percent / 100 * (n - 1)): numpy's method `higher`.

    The same numbers are at or above it as at or above a percentile that is interpolated. `read` gives all of them,
    block by block, the same each time. Raises ValueError where there are none.
    """
    upper = sum((np.bincount(_keys(block) >> 16, minlength=COUNTERS) for block in read()), np.zeros(COUNTERS, np.int64))
    if not (total := int(upper.sum())):
        raise ValueError("there is no percentile of no numbers")
    place = math.ceil(Fraction(str(percent)) * (total - 1) / 100)
    high = int(np.searchsorted(upper.cumsum(), place, side="right"))
    lower = np.zeros(COUNTERS, np.int64)
    for block in read():
        keys = _keys(block)
        lower += np.bincount(keys[keys >> 16 == high] & (COUNTERS - 1), minlength=COUNTERS)
    low = int(np.searchsorted(lower.cumsum(), place - int(upper[:high].sum()), side="right"))
    return _number(high << 16 | low)


def _keys(numbers: NDArray[np.float32]) -> Keys:
    """Whole numbers in the order of these: the bits, with the sign turned, and all others where it is set."""
    bits = numbers.view(np.uint32)
    return np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))


def _number(key: int) -> float:
    """What has this key."""
    bits = key ^ (1 << 31) if key >> 31 else key ^ 0xFFFFFFFF
    return float(np.array(bits, np.uint32).view(np.float32))
