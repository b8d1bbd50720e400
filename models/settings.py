"""Validation and dumping of the dataclasses that recipes consist of; pydantic reads `__pydantic_config__` by itself."""

from typing import Any

from pydantic import Field

VALIDATED: dict[str, Any] = {"extra": "forbid", "allow_inf_nan": False}
"""Unknown keys and numbers that are infinite or NaN are refused."""


def omitted_at(default: object) -> Any:
    """Return an annotation that leaves a field out of a dump where it has its default.

    Dumps are hashed into keys, so a setting that is added later leaves the keys of earlier artifacts as they are.
    """
    return Field(exclude_if=lambda value: value == default)
