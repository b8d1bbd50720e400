"""Settings: frozen, strict pydantic models that refuse unknown keys.

They stand beside what they configure; a recipe is made of them, and their JSON is hashed into keys.
"""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Values of one stage or section. Whole numbers are accepted for floats, nothing else is converted."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
