"""The settings of a recipe's section `queries`: how pseudo-queries are generated, and for what."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from storage.settings import Settings
from tasks.pseudo_queries.filter_settings import Filtering
from tasks.pseudo_queries.generate_queries import Generation
from tasks.pseudo_queries.query_quality import Sampling
from tasks.pseudo_queries.train_generator import GeneratorTraining


def _label(section: dict[str, Any]) -> str:
    """Return the default name of a generator: its model's name, that of the model's folder or of the queries' file.

    Only the last part of a path is taken, so that equal models have equal labels on every machine.
    """
    name = section.get("model") or section.get("file")
    if not isinstance(name, str):
        return "a model that this recipe trains"
    return Path(name).name if name.startswith(("/", ".", "~")) or section.get("model") is None else name


def _with_label(section: Any) -> Any:
    """Return the section with its default label where it gives none."""
    if isinstance(section, dict) and section.get("generator") is None:
        return {**section, "generator": _label(section)}
    return section


SOURCES = ("model", "train", "file")
"""The keys of which a recipe gives one: where its queries come from."""
MODEL = "a generator's folder or hub name, such as doc2query/all-with_prefix-t5-base-v1"


class FurtherGenerator(Settings):
    """A further generator; its queries come after those of the generators before it."""

    generator: str
    """The generator's name in the tables; by default its model's."""
    model: str
    generate: Generation

    @model_validator(mode="before")
    @classmethod
    def _labelled(cls, value: Any) -> Any:
        return _with_label(value)


class PseudoQuerySettings(Settings):
    """The models that generate pseudo-queries, their settings, and the use of the queries."""

    for_: Annotated[list[Literal["pretrain", "retrieve"]], Field(alias="for")]
    """`retrieve` adds BM25 over passages that are expanded with their pseudo-queries (doc2query)."""
    generator: str
    """The generator's name in the tables and the report; by default that of its model, or of the queries' file."""
    model: str | None
    """By hub name, folder or package:NAME/FOLDER; null where `train` trains one, or `file` has the queries."""
    train: GeneratorTraining | None
    file: str | None = None
    """Imported queries instead of a generator (`tasks.pseudo_queries.import_queries`)."""
    generate: Generation | None
    """Null where a file has the queries."""
    also: list[FurtherGenerator] = Field(default_factory=list)
    shares: Literal[1, 2, 4, 8] = 1
    """Number of stages that generate queries in parallel, for as many GPU workers."""
    filter: Annotated[Filtering | None, Field(examples=[{"round_trip": 3}])] = None
    """Null keeps all queries."""
    quality: Sampling

    @model_validator(mode="before")
    @classmethod
    def _labelled(cls, value: Any) -> Any:
        return _with_label(value)

    @model_validator(mode="after")
    def _one_source(self) -> PseudoQuerySettings:
        given = [name for name in SOURCES if getattr(self, name) is not None]
        if not given:
            raise ValueError(
                f"expected one of {', '.join(SOURCES)}, found none; add --set queries.model=MODEL ({MODEL})"
            )
        if len(given) > 1:
            raise ValueError(
                f"expected one of {', '.join(SOURCES)}, found {' and '.join(given)}; set the others to null, for "
                f"example --set queries.{given[-1] if given[0] == 'model' else given[0]}=null"
            )
        if (self.file is None) != (self.generate is not None):
            raise ValueError("generate: expected null where a file has the queries, and only there")
        if self.file is not None and (self.also or self.shares > 1):
            raise ValueError("also, shares: expected neither together with a file")
        names = [self.generator, *(further.generator for further in self.also)]
        if len(set(names)) < len(names):
            raise ValueError(f"also: expected generators of different names, found {names}")
        return self

    @property
    def queries_per_passage(self) -> int | None:
        """The number of queries of a passage; None where a file has them."""
        if self.generate is None:
            return None
        generations = (self.generate, *(further.generate for further in self.also))
        return sum(generation.queries_per_passage for generation in generations)
