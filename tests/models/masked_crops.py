"""What the rows of all masked texts have in common."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.masking import IGNORED


def masked_crop(
    ids: Tensor, mask: Tensor, labels: Tensor, text: Sequence[int], longest: int = 20
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Check that a row is a crop of its text, masked only between [CLS] and [SEP]; return its ids and its mask."""
    hidden = (labels != IGNORED)[mask].numpy()
    original = torch.where(labels == IGNORED, ids, labels)[mask].numpy()
    assert len(original) == min(longest, len(text) + 2)
    assert " ".join(map(str, original[1:-1])) in " ".join(map(str, text))
    assert (labels[~mask] == IGNORED).all()
    assert not hidden[0]
    assert not hidden[-1]
    return original, hidden


def mask_budget(num_tokens: int, rate: float) -> int:
    """The number of tokens to mask out of `num_tokens`; halves are rounded to even."""
    return max(1, min(512, round(num_tokens * rate)))
