"""What is read of a collection: its texts, split into passages, and the topics of a split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from storage import datasets
from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.store import sources
from storage.tables import Answers, Documents, Passages, Qrels, Queries
from tasks.corpus.ingest import Corpus, Topics, ingest_answers, ingest_corpus, ingest_qrels, ingest_queries
from tasks.corpus.split_corpus import Splitting, split_corpus

Part = Literal["corpus", "documents"]


class Place(Protocol):
    """Where a collection lies and how much of it is read: what a recipe and a suite say of each."""

    @property
    def reader(self) -> str:
        """A file of `storage/datasets`."""

    @property
    def path(self) -> str | None:
        """Where it lies (`storage.store.sources.locate`)."""

    @property
    def fraction(self) -> float | None:
        """The share of its documents that is kept; None for all."""

    @property
    def complete(self) -> bool:
        """Whether it must be all there."""


@dataclass(frozen=True)
class Asked:
    """The queries of a split, and by what they are measured: judgements, answers, or both."""

    split: str
    queries: Artifact[Queries]
    qrels: Artifact[Qrels] | None
    answers: Artifact[Answers] | None


def texts(place: Place, part: Part) -> Artifact[Documents]:
    """The documents of the slice."""
    settings = Corpus(reader=place.reader, name=part, fraction=place.fraction, complete=place.complete)
    return ingest_corpus(sources.dataset(place.reader, place.path, part), settings=settings)


def split(place: Place, part: Part, pieces: Source, settings: Splitting) -> Artifact[Passages]:
    """Their passages, by the word pieces of a tokenizer."""
    source = sources.dataset(place.reader, place.path, part)
    known = not isinstance(source, sources.Absent)
    if settings.titles and known and not datasets.has_titles(place.reader, source.path, part):
        raise UserError(
            f"split.titles: the {part} in {source.path} has no titles; lay them there, or set split.titles=false"
        )
    return split_corpus(documents=texts(place, part), tokenizer=pieces, settings=settings)


def topics(place: Place, part: Part, name: str, *, training: bool = False, answers: bool = False) -> Asked:
    """The topics of a split, whose qrels name documents of `part`; a training's have a relevant document each.

    Answers are read where they are asked for and the split has some.
    """
    settings = Topics(
        reader=place.reader, split=name, fraction=place.fraction, complete=place.complete, relevant_alone=training
    )

    def source(wanted: str) -> Source:
        return sources.dataset(place.reader, place.path, wanted, name)

    found = source("queries")
    queries = ingest_queries(found, settings=settings)
    qrels, judged = None, datasets.has_qrels(place.reader, name)
    if judged:
        qrels = ingest_qrels(source=source("qrels"), corpus=texts(place, part), queries=queries, settings=settings)
    given = None
    if answers and (not judged or has_answers(place, found, name)):
        given = ingest_answers(source=source("answers"), queries=queries, settings=settings)
    return Asked(name, queries, qrels, given)


def has_answers(place: Place, queries: Source, split: str) -> bool:
    """Whether a split's queries have answers; of what is not here nobody knows, and a plan counts with none."""
    reader = datasets.answer_loader(place.reader)
    return reader is not None and not isinstance(queries, sources.Absent) and reader.has_answers(queries.path, split)
