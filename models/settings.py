"""Validation and dumping of the dataclasses that recipes consist of; pydantic reads `__pydantic_config__` by itself."""

from typing import Any

from pydantic import Field

VALIDATED: dict[str, Any] = {"extra": "forbid", "allow_inf_nan": False}
"""Unknown keys and numbers that are infinite or NaN are refused."""


def check_weight(weight: float) -> None:
    """Raise ValueError unless a view's weight in the sum of scores is above 0 and finite."""
    if not 0 < weight < float("inf"):
        raise ValueError("weight: expected a number above 0; leave out a view that is not used")


def omitted_at(default: object) -> Any:
    """Return an annotation that leaves a field out of a dump where it has its default.

    Dumps are hashed into keys, so a setting that is added later leaves the keys of earlier artifacts as they are.
    """
    return Field(exclude_if=lambda value: value == default)
