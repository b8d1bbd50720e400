"""What pydantic is to enforce in the dataclasses that recipes are made of; it reads `__pydantic_config__` by itself."""

from typing import Any

VALIDATED: dict[str, Any] = {"extra": "forbid", "allow_inf_nan": False}
"""Unknown keys and numbers that are infinite or NaN are refused."""
