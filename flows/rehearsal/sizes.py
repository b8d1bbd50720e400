"""The sizes of a rehearsal's runs in passages."""

from __future__ import annotations

FEWEST = 1000
"""The passages of the smallest run, which is not measured."""
SHARE = 4
"""The smaller of the measured runs has one passage in four of the larger one's."""
