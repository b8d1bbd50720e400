"""Rank passages for queries: by BM25, or by a retriever whose vectors of the passages are searched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from flows.chain.model_weights import with_safetensors
from storage.artifact import Artifact
from storage.tables import Index, Passages, Queries, Run, Vectors
from tasks.retrieval.encode import Encoding, Model, encode
from tasks.retrieval.engines.bm25 import Bm25
from tasks.retrieval.engines.exact import Exact
from tasks.retrieval.fuse import Fusion, fuse
from tasks.retrieval.index import index
from tasks.retrieval.search import Search, search
from tasks.retrieval.truncate import Truncation, truncate
from tasks.runtime.device import Precision


class Ranker(Protocol):
    """Ranks the passages of one collection."""

    def rank(self, queries: Artifact[Queries], documents: int, view: str | None = None) -> Artifact[Run]:
        """Return a ranking of `documents` documents for each query, by one view or, without one, by all."""


class System(Protocol):
    """A retrieval system that can rank the passages of any collection."""

    def on(self, passages: Artifact[Passages], limits: Encoding, exact: Exact) -> Ranker:
        """Return the system's ranker of these passages; texts that are encoded are cut at the limits."""


@dataclass(frozen=True)
class IndexedBm25:
    """BM25 over the passages of one collection."""

    passages: Artifact[Passages]
    index: Artifact[Index]

    def rank(self, queries: Artifact[Queries], documents: int, view: str | None = None) -> Artifact[Run]:
        """Return a ranking of `documents` documents for each query; there are no views."""
        settings = Search(documents=documents, view="bm25")
        return search(index=self.index, queries=queries, passages=self.passages, settings=settings)


@dataclass(frozen=True)
class Bm25System:
    """BM25."""

    settings: Bm25

    def on(self, passages: Artifact[Passages], limits: Encoding, exact: Exact) -> IndexedBm25:
        """Return BM25 over these passages, whose texts are indexed in full."""
        return IndexedBm25(passages, index(passages=passages, settings=self.settings))


@dataclass(frozen=True)
class RetrieverSystem:
    """A trained retriever, which ranks by the sum of its views or by a fusion of their rankings."""

    checkpoint: Model
    views: Sequence[str]
    fusion: Fusion | None = None
    max_tokens: int | None = None
    """The most tokens that it can read; None where that is not known, as before it is trained."""
    precision: Precision | None = None
    """The precision in which its recipe encodes, for limits that state none."""

    def on(self, passages: Artifact[Passages], limits: Encoding, exact: Exact) -> IndexedRetriever:
        """Encode and index these passages, with texts cut at the limits or at what the retriever can read."""
        if (most := self.max_tokens) is not None:
            limits = limits.model_copy(update={name: min(number, most) for name, number in limits.limits.items()})
        if limits.precision is None and self.precision is not None:
            limits = limits.model_copy(update={"precision": self.precision})
        retriever = replace(self, checkpoint=with_safetensors(self.checkpoint))
        vectors = encode(passages=passages, checkpoint=retriever.checkpoint, settings=limits)
        return IndexedRetriever(retriever, passages, vectors, index(passages=passages, vectors=vectors, settings=exact))


@dataclass(frozen=True)
class IndexedRetriever:
    """A retriever with its vectors and exact index of the passages of one collection."""

    retriever: RetrieverSystem
    passages: Artifact[Passages]
    vectors: Artifact[Vectors]
    index: Artifact[Index]
    approximate: Mapping[str, Artifact[Index]] = field(default_factory=dict)
    """The indexes that replace exact search, by view."""

    def rank(self, queries: Artifact[Queries], documents: int, view: str | None = None) -> Artifact[Run]:
        """Return a ranking of `documents` documents for each query, by one view or as the retriever ranks."""
        views, fusion = self.retriever.views, self.retriever.fusion
        if view is None and fusion is not None:
            return fuse(runs=[self.rank(queries, documents, fused) for fused in views], settings=fusion)
        ranking_view = view or (views[0] if len(views) == 1 else "sum")
        return self.search(self.approximate.get(ranking_view, self.index), queries, documents, ranking_view)

    def truncated(self, dim: int, exact: Exact) -> IndexedRetriever:
        """Index the first dimensions of the dense vectors, which are not encoded again."""
        settings = Truncation(truncate_dim=dim)
        vectors = truncate(vectors=self.vectors, checkpoint=self.retriever.checkpoint, settings=settings)
        return replace(self, vectors=vectors, index=index(passages=self.passages, vectors=vectors, settings=exact))

    def search(self, searched: Artifact[Index], queries: Artifact[Queries], documents: int, view: str) -> Artifact[Run]:
        """Search an index of the retriever's vectors by one view or by the sum of all."""
        return search(
            index=searched, vectors=self.vectors, queries=queries, checkpoint=self.retriever.checkpoint,
            passages=self.passages, settings=Search(documents=documents, view=view),
        )  # fmt: skip
