"""Random draws from a seed and what they are for: a step, a row, an id.

A draw depends on nothing else. So it is the same however rows are divided among processes, and a resumed run needs no
stored random state.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator


def random_generator(seed: int, *parts: int | str) -> Generator:
    """Return NumPy's generator for a seed and numbers or texts.

    Generators differ between calls with the same number of parts and at most one text. Beyond that they may be equal:
    NumPy ignores zeros at the end, so (1, 5) and (1, 5, 0) are equal, and texts are joined without separators. No stage
    mixes numbers of parts for one purpose; a rule without these exceptions would change what published artifacts drew.
    For the same reason `train_generator` draws its sample of passages, the initial weights for copying and the steps'
    batches with the same (seed, number), so these draws are not independent.
    """
    numbers = [number for part in parts for number in (part.encode() if isinstance(part, str) else [part])]
    return np.random.default_rng((seed, *numbers))


def mix_seeds(*numbers: int) -> int:
    """Return one seed of several numbers, for PyTorch, which takes a single one."""
    value = 0
    for number in numbers:
        # + 1: leading zeros count. The modulus keeps the seed a positive int64.
        value = (value * 1_000_003 + number + 1) % (2**63 - 1)
    return value
