"""The stages that read a collection: its documents, its passages, and the topics of a split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from storage import datasets
from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.store import sources
from storage.tables import Answers, Documents, Passages, Qrels, Queries
from tasks.corpus.ingest import TextSelection, Topics, ingest_answers, ingest_corpus, ingest_qrels, ingest_queries
from tasks.corpus.split_corpus import Splitting, SplittingWithTitles, TokenizerFile, split_corpus

Part = Literal["corpus", "documents"]
ANSWER = "answer@"  # how the metrics begin that compare passages with answers


class CollectionSource(Protocol):
    """The location of a collection and the part of it that is read, as in the sections of recipes and suites."""

    @property
    def reader(self) -> str:
        """The dataset loader: a module of `storage/datasets`."""

    @property
    def path(self) -> str | None:
        """The folder (`storage.store.sources.locate`)."""

    @property
    def fraction(self) -> float | None:
        """The fraction of the documents that is kept; None for all."""

    @property
    def complete(self) -> bool:
        """Return whether an incomplete collection is refused."""


@dataclass(frozen=True)
class SplitTopics:
    """The queries of a split with what they are evaluated by: judgements, answers, or both."""

    split: str
    queries: Artifact[Queries]
    qrels: Artifact[Qrels] | None
    answers: Artifact[Answers] | None


def documents(source: CollectionSource, part: Part) -> Artifact[Documents]:
    """Return the documents of a part of a collection."""
    files = sources.dataset(source.reader, source.path, part)
    settings = TextSelection(
        reader=source.reader, name=part, fraction=source.fraction, complete=source.complete,
        version=1 if isinstance(files, sources.Absent) else datasets.version(source.reader, files.path),
    )  # fmt: skip
    return ingest_corpus(files, settings=settings)


def split(
    source: CollectionSource, part: Part, tokenizer: TokenizerFile, settings: Splitting | SplittingWithTitles, *,
    without_titles: Callable[[], Sequence[str]] = lambda: ["split.titles=false"],
) -> Artifact[Passages]:  # fmt: skip
    """Return the passages of a part of a collection; their lengths are counted in the tokenizer's tokens.

    Raises UserError where the settings put titles into passages and the collection has none; the message names the
    changes of `without_titles`, with which the recipe or suite needs no titles.
    """
    if settings.titles and lacks_titles(source, part):
        path, changes = sources.dataset(source.reader, source.path, part).path, without_titles()
        key, remedy = changes[0].partition("=")[0], datasets.titles_from(source.reader, path)
        raise UserError(f"{key}: the {part} in {path} has no titles; {remedy}, or set {' and '.join(changes)}")
    return split_corpus(documents=documents(source, part), tokenizer=tokenizer, settings=settings)


def lacks_titles(source: CollectionSource, part: Part) -> bool:
    """Return whether a part of a collection is here without titles."""
    files = sources.dataset(source.reader, source.path, part)
    return not isinstance(files, sources.Absent) and not datasets.has_titles(source.reader, files.path, part)


def topics(
    source: CollectionSource, part: Part, name: str, *, training: bool = False, answers: bool = False
) -> SplitTopics:
    """Return the topics of the split `name`, whose judgements are of the documents of `part`.

    For `training`, queries without a relevant document are left out. `answers` are read where the split has some.
    """
    settings = Topics(
        reader=source.reader, split=name, fraction=source.fraction, complete=source.complete, relevant_alone=training
    )

    def files(what: str) -> Source:
        return sources.dataset(source.reader, source.path, what, name)

    query_files = files("queries")
    queries = ingest_queries(query_files, settings=settings)
    qrels, judged = None, datasets.has_qrels(source.reader, name)
    if judged:
        qrels = ingest_qrels(source=files("qrels"), corpus=documents(source, part), queries=queries, settings=settings)
    answered = None
    if answers and (not judged or has_answers(source, query_files, name)):
        answered = ingest_answers(source=files("answers"), queries=queries, settings=settings)
    return SplitTopics(name, queries, qrels, answered)


def has_answers(source: CollectionSource, queries: Source, split: str) -> bool:
    """Return whether a split's queries have answers; False for files that are absent, as in a plan."""
    reader = datasets.answer_loader(source.reader)
    return reader is not None and not isinstance(queries, sources.Absent) and reader.has_answers(queries.path, split)
