"""The sections of a recipe that are no stage's settings: what is read, how deep is searched, what is measured."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from storage.settings import Seed, Settings
from tasks.analyses import divergence, expert_disagreement, pair_relatedness, text_statistics, word_distribution
from tasks.evaluation.evaluate import Comparison
from tasks.evaluation.metrics import METRIC

Analysing = Annotated[
    divergence.Settings
    | expert_disagreement.Settings
    | pair_relatedness.Settings
    | text_statistics.Settings
    | word_distribution.Settings,
    Field(discriminator="analysis"),
]


class Dataset(Settings):
    """Which collection, and which of its splits."""

    reader: str
    """A file of `storage/datasets`."""
    path: str | None
    """Where it lies: absolute, or below the working folder, $PRETRIEVE_COLLECTIONS or the project's `data`."""
    train_split: str | None
    """Null where the collection has no train queries: then its pseudo-queries are trained on."""
    eval_splits: Annotated[list[str], Field(min_length=1)]
    """What is measured on; the first is that of the headline."""
    description: str
    """The collection in words, with the attribution that it asks for."""
    fraction: Annotated[float, Field(gt=0, lt=1)] | None
    """Keep this share of the documents, chosen by the hash of their id; null keeps all."""
    complete: bool = False
    """Refuse files with other counts than the reader knows the whole collection to have, or other checksums."""


class Elsewhere(Settings):
    """Texts of another collection than the one that is retrieved, all of them."""

    reader: str
    path: str | None
    description: str
    complete: bool = False

    @property
    def fraction(self) -> None:
        """Of another collection all is read."""


class Corpora(Settings):
    """Which of the collection's texts are pre-trained on and which are retrieved."""

    pretrain: Literal["corpus", "documents"]
    pretrain_from: Elsewhere | None
    """Another collection whose texts are pre-trained on; null takes the recipe's own."""
    retrieve: Literal["corpus", "documents"]


class Depth(Settings):
    """How much is searched for."""

    documents: Annotated[int, Field(gt=0)]
    """Different documents that every list has, unless fewer match."""


class Transfer(Settings):
    """Other collections that retrievers are measured on as they are."""

    suite: str
    """One that is shipped (`configs/suites`), or the path of its file."""
    rounds: Annotated[list[str], Field(min_length=1)]
    """Whose retrievers, or bm25; the others are tested against the first."""


class Headline(Settings):
    """What the report is about."""

    run: str
    baseline: str
    metric: str


class Testing(Settings):
    """How runs are measured and which are tested against each other."""

    metrics: Annotated[list[Annotated[str, Field(pattern=METRIC.pattern)]], Field(min_length=1)]
    comparisons: list[Comparison]
    seed: Seed
    resamples: Annotated[int, Field(ge=10_000)]
