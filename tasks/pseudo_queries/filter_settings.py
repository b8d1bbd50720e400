"""The settings of a recipe's section `queries.filter`: what changes, scores and drops pseudo-queries, in this order."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from storage.settings import Settings
from tasks.cross_encoder.pairs import Scoring
from tasks.pseudo_queries.drop_duplicates import Duplicates
from tasks.pseudo_queries.filter_queries import Cut
from tasks.pseudo_queries.round_trip import RoundTrip
from tasks.pseudo_queries.text_rules import TextRules

MODEL_OF_EXAMPLES = "cross-encoder/ms-marco-MiniLM-L6-v2"  # in messages only


class Relevance(Scoring):
    """The cross-encoder, the lengths that it reads and its precision."""

    model: str
    """By hub name, folder or package:NAME/FOLDER."""

    @property
    def scoring(self) -> Scoring:
        """Return the lengths that it reads, and its precision."""
        return Scoring(**self.limits, precision=self.precision)


SECTIONS = ("detokenise", "round_trip", "relevance", "texts", "duplicates")


class Filtering(Settings):
    """The settings for detokenising, scoring and filtering pseudo-queries."""

    detokenise: Annotated[bool, Field(examples=[True], exclude_if=lambda wanted: not wanted)] = False
    """Join " ?", "' s" and other punctuation that a generator over WordPiece tokens has separated."""
    round_trip: Annotated[RoundTrip | None, Field(examples=[{"depth": 100}])] = None
    relevance: Annotated[
        Relevance | None, Field(examples=[{"model": MODEL_OF_EXAMPLES, "query_max_tokens": 64, "max_tokens": 256}])
    ] = None
    cut: Annotated[Cut | None, Field(examples=[{"round_trip": 3}])] = None
    """Null drops no query by its scores."""
    texts: Annotated[
        TextRules | None,
        Field(examples=[{"numbers": "in_passage"}], exclude_if=lambda texts: not texts),
    ] = None
    duplicates: Annotated[
        Duplicates | None, Field(examples=[{"exact": "corpus"}], exclude_if=lambda scopes: not scopes)
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _read_rank(cls, value: Any) -> Any:
        """Read `round_trip: 3` as a search of depth 3 that drops queries whose own passage is not in the list."""
        if not isinstance(value, dict) or type(rank := value.get("round_trip")) is not int:
            return value
        return {"cut": {"round_trip": rank}, **value, "round_trip": {"depth": rank}}

    @model_validator(mode="after")
    def _cuts_what_is_scored(self) -> Filtering:
        if not (self.detokenise or self.round_trip or self.relevance or self.texts or self.duplicates):
            raise ValueError(f"expected some of {', '.join(SECTIONS)}; to change and drop nothing, set filter to null")
        for name in ("round_trip", "relevance"):
            if getattr(self, name) is None and getattr(self.cut, name, None) is not None:
                raise ValueError(f"cut.{name}: expected null where no {name} is scored; give {name}, or set it to null")
        if self.round_trip and self.cut and (self.cut.round_trip or 0) > self.round_trip.depth:
            raise ValueError(
                f"cut.round_trip: expected at most {self.round_trip.depth}, the round trip's depth, found "
                f"{self.cut.round_trip}"
            )
        return self
