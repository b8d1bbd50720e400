"""The sections of a recipe that are not the settings of one stage: collections, search depth, evaluation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from storage.settings import Seed, Settings
from tasks.analyses import divergence, expert_disagreement, pair_relatedness, text_statistics, word_distribution
from tasks.corpus.split_corpus import Splitting, SplittingWithTitles
from tasks.evaluation.evaluate import Comparison
from tasks.evaluation.metrics import METRIC

AnalysisSettings = Annotated[
    divergence.Settings
    | expert_disagreement.Settings
    | pair_relatedness.Settings
    | text_statistics.Settings
    | word_distribution.Settings,
    Field(discriminator="analysis"),
]


class Dataset(Settings):
    """A collection and its splits."""

    reader: str
    """The collection's dataset loader: a module of `storage/datasets`."""
    path: str | None
    """The collection's folder: absolute, or in the working folder, $PRETRIEVE_COLLECTIONS or the project's `data`."""
    train_split: str | None
    """Null where the collection has no train queries; retrievers are then trained on pseudo-queries."""
    eval_splits: Annotated[list[str], Field(min_length=1)]
    """The splits that are evaluated; the headline is about the first."""
    description: str
    """The collection in words, with the attribution that its licence requires."""
    fraction: Annotated[float, Field(gt=0, lt=1)] | None
    """Keep this fraction of the documents, chosen by the hash of their id; null keeps all."""
    complete: bool = False
    """Refuse files whose counts or checksums differ from those of the complete collection."""


class OtherCollection(Settings):
    """A collection for pre-training that differs from the collection for retrieval."""

    reader: str
    path: str | None
    description: str
    complete: bool = False

    @property
    def fraction(self) -> None:
        """None: all of another collection is read."""


class Corpora(Settings):
    """The texts that are pre-trained on, and those that are retrieved."""

    pretrain: Literal["corpus", "documents"]
    pretrain_from: OtherCollection | None
    """Another collection to pre-train on; null for the recipe's own."""
    retrieve: Literal["corpus", "documents"]


class Split(Splitting):
    """The split of documents into passages for retrieval and spans for pre-training.

    `titles` is about the passages, and about the spans where `pretrain_titles` is null.
    """

    pretrain_titles: Literal["never", "once", "every"] | None = None
    """Which spans have their document's title: none, the first of a document, or every span. `max_tokens` then counts
    title and text, so that no text is cropped because of a title. Null for the spans that `titles` gives."""

    @model_validator(mode="after")
    def _complete_documents_are_one_span(self) -> Split:
        if self.max_tokens is None and self.pretrain_titles == "every":
            raise ValueError("pretrain_titles: without max_tokens a document is one span; expected never or once")
        return self

    @model_serializer(mode="wrap")
    def _null_is_left_out(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out null: the text of a recipe is in its report's key, which earlier versions computed without."""
        values: dict[str, Any] = dump(self)
        return values if self.pretrain_titles else {name: values[name] for name in values if name != "pretrain_titles"}

    @property
    def of_passages(self) -> Splitting:
        """Return the settings of the split into passages for retrieval."""
        return self._with(self.titles)

    @property
    def of_spans(self) -> Splitting | SplittingWithTitles:
        """Return the settings of the split into spans for pre-training; equal to `of_passages` if both splits agree."""
        titles = self.pretrain_titles
        if titles is None or titles == "never":
            return self._with(self.titles and titles is None)
        if self.max_tokens is None:
            return self._with(True)
        return SplittingWithTitles(max_tokens=self.max_tokens, titles=titles, language=self.language)

    def _with(self, titles: bool) -> Splitting:
        return Splitting(max_tokens=self.max_tokens, titles=titles, language=self.language)


class SearchDepth(Settings):
    """The number of documents to retrieve."""

    documents: Annotated[int, Field(gt=0)]
    """Different documents in every ranking, unless fewer match."""


class Transfer(Settings):
    """Other collections on which the trained retrievers are evaluated without further training."""

    suite: str
    """A shipped suite (`configs/suites`), or the path of its file."""
    rounds: Annotated[list[str], Field(min_length=1)]
    """Rounds, or bm25; the others are tested against the first."""


class Headline(Settings):
    """The comparison that the report begins with."""

    run: str
    baseline: str
    metric: str


class EvaluationSettings(Settings):
    """The metrics, and which runs are tested against each other."""

    metrics: Annotated[list[Annotated[str, Field(pattern=METRIC.pattern)]], Field(min_length=1)]
    comparisons: list[Comparison]
    seed: Seed
    resamples: Annotated[int, Field(ge=10_000)]
    bm25_without_titles: bool = False
    """Whether BM25 over the passages' texts without titles is evaluated too, as papers print BM25 on MS MARCO."""

    @model_serializer(mode="wrap")
    def _false_is_left_out(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out false: the text of a recipe is in its report's key, which earlier versions computed without."""
        values: dict[str, Any] = dump(self)
        return values if self.bm25_without_titles else {n: values[n] for n in values if n != "bm25_without_titles"}
