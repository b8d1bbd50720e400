"""A suite: a list of collections on which any retriever is measured, and how each of them is read.

A suite is a YAML file in `configs/suites/`, as complete as a recipe. Its columns are its collections, or groups of
them, such as CQADupStack's twelve forums, whose value is the mean of its members'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Protocol

from pydantic import Field, model_validator

from flows.chain import collection
from flows.chain.collection import Asked
from flows.chain.evaluation import ANSWER, measurable
from flows.recipe.load import read_settings
from flows.recipe.sections import SearchDepth
from flows.recipe.shipped import SUITES
from storage import datasets
from storage.artifact import Artifact
from storage.errors import UserError, suggestion
from storage.rows import num_rows
from storage.settings import Seed, Settings
from storage.store import sources
from storage.tables import Metrics, Passages, Queries, Run
from tasks.corpus.split_corpus import Splitting
from tasks.evaluation.evaluate import Comparison, Evaluation, evaluate
from tasks.evaluation.metrics import METRIC
from tasks.retrieval.encode import Encoding, Model, encode
from tasks.retrieval.engines.bm25 import Bm25
from tasks.retrieval.engines.exact import Exact
from tasks.retrieval.fuse import Fusion, fuse
from tasks.retrieval.index import index
from tasks.retrieval.search import Search, search
from tasks.session import Execution, in_round

Name = Annotated[str, Field(pattern=r"^\S+$")]
Metric = Annotated[str, Field(pattern=METRIC.pattern)]


class Collection(Settings):
    """A collection, one of its splits, and what is known of it."""

    name: Name
    reader: str
    """A file of `storage/datasets`."""
    path: str
    """Where it lies: absolute, or below the working folder, $PRETRIEVE_COLLECTIONS or the project's `data`."""
    eval_split: str
    retrieve: Literal["corpus", "documents"] = "corpus"
    group: Name | None = None
    """The column that it shares with others."""
    metric: Metric | None = None
    """What its column shows; null for the suite's."""
    encode: Encoding | None = None
    """How much of its texts is read; null for what the suite says."""
    documents: Annotated[int, Field(gt=0)] | None = None
    """How many documents the official collection has; another number is refused, and null takes what there is."""
    complete: bool = False
    """Refuse files with other counts than the reader knows the whole collection to have, or other checksums."""
    expected: dict[str, dict[Metric, float]] = Field(default_factory=dict)
    """What others have measured, by model and metric: where a model of this name differs, something is wrong here."""

    @property
    def fraction(self) -> None:
        """All of it is read."""

    @property
    def column(self) -> str:
        """The column that it is in."""
        return self.group or self.name


class Measuring(Settings):
    """What is measured, and how models are tested against the first of them."""

    metrics: Annotated[list[Metric], Field(min_length=1)]
    seed: Seed
    resamples: Annotated[int, Field(ge=10_000)]


class Suite(Settings):
    """Collections, and how all of them are read, split, searched and measured."""

    title: str
    description: str
    """The collections in words, with the attribution that they ask for."""
    seed: Seed
    tokenizer: str
    """Whose word pieces passages are counted in: a folder, package:NAME/FOLDER or hub name. Recipes with this backbone
    share what is made of their collections."""
    split: Splitting
    encode: Encoding
    """How much of a text is read at most; less where a model reads less."""
    bm25: Bm25
    index: Exact
    search: SearchDepth
    evaluate: Measuring
    metric: Metric
    """What the table shows."""
    expected_from: str | None = None
    """Where the values that collections name as `expected` come from."""
    tolerance: Annotated[float, Field(ge=0)] = 0.001
    """How far a model may be from what is expected of it."""
    collections: Annotated[list[Collection], Field(min_length=1)]
    execution: Execution = Execution()

    @model_validator(mode="after")
    def _consistent(self) -> Suite:
        names = [each.name for each in self.collections]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"collections: the name {min(twice)!r} stands twice; give each its own")
        for each in self.collections:
            if each.group in names:
                raise ValueError(f"collections: the group {each.group!r} has a collection's name; give it another")
            asked = {self.metric_of(each), *(metric for values in each.expected.values() for metric in values)}
            if unknown := asked - set(self.evaluate.metrics):
                raise ValueError(f"collections: {each.name}: {min(unknown)} is none of evaluate.metrics")
        if any(each.expected for each in self.collections) and not self.expected_from:
            raise ValueError("expected_from: say where the expected values come from")
        return self

    def metric_of(self, of: Collection) -> str:
        """What a collection's column shows."""
        return of.metric or self.metric

    def chosen(self, names: Sequence[str]) -> list[Collection]:
        """The collections or groups of these names, in the suite's order; all where none is named."""
        known = {each.name for each in self.collections} | {each.column for each in self.collections}
        for name in names:
            if name not in known:
                hint = suggestion(name, sorted(known))
                raise UserError(f"--only {name}: the suite has no collection of this name; {hint}")
        return [each for each in self.collections if not names or {each.name, each.column} & set(names)]


class Ranker(Protocol):
    """What ranks a collection's passages for its queries."""

    def __call__(
        self, passages: Artifact[Passages], queries: Artifact[Queries], limits: Encoding, documents: int
    ) -> Artifact[Run]:
        """The ranking, of so many documents; texts are cut as the limits say."""


@dataclass(frozen=True)
class ByWords:
    """BM25."""

    settings: Bm25

    def __call__(
        self, passages: Artifact[Passages], queries: Artifact[Queries], limits: Encoding, documents: int
    ) -> Artifact[Run]:
        built = index(passages=passages, settings=self.settings)
        return search(
            index=built, queries=queries, passages=passages, settings=Search(documents=documents, view="bm25")
        )


@dataclass(frozen=True)
class ByRetriever:
    """A retriever, by the sum of its views or by a fusion of their rankings."""

    model: Model
    views: Sequence[str]
    fusion: Fusion | None = None
    max_tokens: int | None = None
    """How much it can read; None where nobody knows yet, as of a retriever that is still to be trained."""

    def __call__(
        self, passages: Artifact[Passages], queries: Artifact[Queries], limits: Encoding, documents: int
    ) -> Artifact[Run]:
        vectors = encode(passages=passages, checkpoint=self.model, settings=self._within(limits))
        flat = index(passages=passages, vectors=vectors, settings=Exact(engine="exact"))

        def found(view: str) -> Artifact[Run]:
            settings = Search(documents=documents, view=view)
            return search(
                index=flat,
                vectors=vectors,
                queries=queries,
                checkpoint=self.model,
                passages=passages,
                settings=settings,
            )

        if self.fusion is not None:
            return fuse(runs=[found(view) for view in self.views], settings=self.fusion)
        return found(self.views[0] if len(self.views) == 1 else "sum")

    def _within(self, limits: Encoding) -> Encoding:
        most = self.max_tokens
        return limits if most is None else Encoding(**{name: min(n, most) for name, n in limits.model_dump().items()})


def load_suite(name: str, changes: Sequence[str] = ()) -> tuple[Suite, str]:
    """The suite at a path, or shipped under a name, after `section.key=value` changes; and what it is called."""
    path, shipped = Path(name), shipped_suites()
    if path.suffix not in (".yaml", ".yml"):
        if name not in shipped:
            raise UserError(f"--suite {name}: no suite has this name; {suggestion(name, shipped)}")
        path = shipped[name]
    elif not path.is_file():
        raise UserError(f"--suite {path}: there is no such file")
    return read_settings(path, changes, lambda value, file: Suite), path.stem


def shipped_suites() -> dict[str, Path]:
    """Name to file."""
    return {file.stem: file for file in sorted(SUITES.glob("*.yaml"))}


def measured(suite: Suite, of: Collection, rankers: Mapping[str, Ranker]) -> Artifact[Metrics]:
    """How well each ranker ranks a collection, by name; the others are tested against the first."""
    with in_round(of.name):
        passages, asked = read(suite, of)
        alike = datasets.ignores_identical_ids(of.reader)
        depth, limits = suite.search.documents + alike, of.encode or suite.encode
        runs = [rank(passages, asked.queries, limits, depth) for rank in rankers.values()]
        first, *others = rankers
        settings = Evaluation(
            dataset=of.name, split=of.eval_split, titles=suite.split.titles,
            relevant_from=datasets.relevant_from(of.reader, of.eval_split), ignore_identical_ids=alike,
            names=list(rankers), comparisons=[Comparison(run=other, baseline=first) for other in others],
            **suite.evaluate.model_dump() | {"metrics": measurable(suite.evaluate.metrics, asked)},
        )  # fmt: skip
        return evaluate(qrels=asked.qrels, answers=asked.answers, passages=passages, runs=runs, settings=settings)


def read(suite: Suite, of: Collection) -> tuple[Artifact[Passages], Asked]:
    """A collection's passages and what is asked of them."""
    _expect(of)
    passages = collection.split(of, of.retrieve, sources.tokenizer(suite.tokenizer), suite.split)
    answers = any(metric.startswith(ANSWER) for metric in suite.evaluate.metrics)
    return passages, collection.topics(of, of.retrieve, of.eval_split, answers=answers)


def _expect(of: Collection) -> None:
    """Refuse a collection that has another number of documents than the official one, before it is encoded."""
    documents = collection.texts(of, of.retrieve)
    if of.documents is not None and documents.path.is_dir() and (found := num_rows(documents.path)) != of.documents:
        raise UserError(
            f"{of.name}: expected the {of.documents:,} documents of the official collection, found {found:,}; fetch it "
            "again, or measure it as it is with a suite that says documents: null"
        )
