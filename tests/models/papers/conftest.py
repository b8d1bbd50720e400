"""Fixtures of the tests of papers."""

import pytest

from models.papers import retro_mae
from tests.models.papers.test_retro_mae import fixed_mask


@pytest.fixture
def fixed_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Position-specific masks of the enhanced decoder that are computed instead of sampled."""
    monkeypatch.setattr(retro_mae, "position_specific_mask", fixed_mask)
