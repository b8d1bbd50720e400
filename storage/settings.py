"""Settings: frozen, strict pydantic models that refuse unknown keys.

Each class is in the module that it configures. Recipes consist of them, and their JSON is hashed into keys.
"""

import json
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, model_validator

Seed = Annotated[int, Field(ge=0, lt=2**32)]
"""A seed of random numbers that NumPy, PyTorch and scikit-learn all accept."""


class Settings(BaseModel):
    """Values of one stage or section. Whole numbers are accepted for floats, nothing else is converted.

    Infinite numbers and NaN are refused: training and searching with one ends in results that look like results.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _seeded(cls, value: Any, info: ValidationInfo) -> Any:
        """Give a section that names no seed that of the validation's context: the recipe's."""
        seed = (info.context or {}).get("seed")
        if seed is None or not isinstance(value, dict) or "seed" not in cls.model_fields:
            return value
        return {"seed": seed, **value}


def flattened(value: object, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield every setting by its dotted name, such as `rounds.retriever_1.train.steps`, with its value as text.

    Items of a list that have a `name` are named by it.
    """
    if isinstance(value, list) and value and all(isinstance(item, dict) and "name" in item for item in value):
        value = {item["name"]: item for item in value}
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from flattened(inner, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def without_seeds(value: Any) -> Any:
    """Return settings without the seeds at any depth."""
    if isinstance(value, dict):
        return {name: without_seeds(inner) for name, inner in value.items() if name != "seed"}
    return [without_seeds(inner) for inner in value] if isinstance(value, list) else value
