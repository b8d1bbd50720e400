"""The pydantic configuration of settings dataclasses; pydantic reads their attribute `__pydantic_config__`."""

from typing import Any

VALIDATED: dict[str, Any] = {"extra": "forbid", "allow_inf_nan": False}
"""Refuse unknown keys, and numbers that are infinite or NaN."""
