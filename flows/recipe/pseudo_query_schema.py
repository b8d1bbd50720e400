"""The shape of a recipe's section `queries`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from storage.settings import Settings
from tasks.pseudo_queries.filter_queries import Filtering
from tasks.pseudo_queries.generate_queries import Generation
from tasks.pseudo_queries.query_quality import Sampling
from tasks.pseudo_queries.train_generator import GeneratorTraining


class Also(Settings):
    """A further generator, whose queries follow those of the ones before it."""

    generator: str
    """The name that the table gives it."""
    model: str
    generate: Generation


class PseudoQuerying(Settings):
    """Who writes the pseudo-queries, how, and what they are for."""

    for_: Annotated[list[Literal["pretrain", "retrieve"]], Field(alias="for")]
    """`retrieve` adds the row of BM25 over passages expanded with their pseudo-queries."""
    generator: str
    """The name that table and report give the generator."""
    model: str | None
    """By hub name, folder or package:NAME/FOLDER; null where `train` makes one, or `file` has the queries."""
    train: GeneratorTraining | None
    file: str | None = None
    """Queries that were written elsewhere (`tasks.pseudo_queries.import_queries`), instead of a generator."""
    generate: Generation | None
    """Null where a file has the queries."""
    also: list[Also] = Field(default_factory=list)
    shares: Literal[1, 2, 4, 8] = 1
    """Stages that write queries side by side, for as many GPU workers."""
    filter: Filtering | None = None
    """Null keeps all that was written."""
    quality: Sampling

    @model_validator(mode="after")
    def _one_source(self) -> PseudoQuerying:
        if [self.model, self.train, self.file].count(None) != 2:
            raise ValueError("give one: a model, how to train one (train), or a file; set the others to null")
        if (self.file is None) != (self.generate is not None):
            raise ValueError("generate: expected null where a file has the queries, and only there")
        if self.file is not None and (self.also or self.shares > 1):
            raise ValueError("also, shares: expected neither beside a file")
        names = [self.generator, *(each.generator for each in self.also)]
        if len(set(names)) < len(names):
            raise ValueError(f"also: expected generators of different names, found {names}")
        return self

    @property
    def queries_per_passage(self) -> int | None:
        """How many each passage gets; None where a file decides."""
        if self.generate is None:
            return None
        return sum(each.queries_per_passage for each in (self.generate, *(other.generate for other in self.also)))
