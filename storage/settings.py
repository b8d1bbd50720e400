"""Settings: frozen, strict pydantic models that refuse unknown keys.

They stand beside what they configure; a recipe is made of them, and their JSON is hashed into keys.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Seed = Annotated[int, Field(ge=0, lt=2**32)]
"""Of random numbers: what NumPy, PyTorch and scikit-learn all accept."""


class Settings(BaseModel):
    """Values of one stage or section. Whole numbers are accepted for floats, nothing else is converted.

    Infinite numbers and NaN are refused: training and searching with one ends in results that look like results.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
