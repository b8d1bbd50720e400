"""A Lucene index, searched from Python: results are arrays of Lucene's document numbers and scores.

Queries are built, searched and sorted as by Anserini's `SimpleSearcher.batch_search`. That method scores each hit twice
and fetches its stored text for its id, which takes three quarters of its time. Here a hit is two numbers, transferred
for all hits at once, and ids are read once, from a column of the index.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.retrieval.lucene.jvm import (
    bind,
    cast,
    chain,
    class_object,
    field,
    function,
    java,
    java_list,
    method,
    retyped,
)

CONTENTS, ID = "contents", "id"
IDS_PER_CALL = 100_000
SORT, ANALYZER = "org.apache.lucene.search.Sort", "org.apache.lucene.analysis.Analyzer"
QUERY, TOP, SCORED = (f"org.apache.lucene.search.{name}" for name in ("Query", "TopFieldDocs", "FieldDoc"))


class LuceneHits(NamedTuple):
    """The hits of several queries, concatenated; each query's are best first, with ties by ascending id."""

    docs: NDArray[np.int32] | NDArray[np.int64]
    scores: NDArray[np.float32]
    counts: NDArray[np.int32]
    """The number of hits of each query."""


class Lucene:
    """An open index, scored by BM25."""

    def __init__(self, folder: Path, k1: float, b: float) -> None:
        directory = java("org.apache.lucene.store.FSDirectory").open(java("java.io.File")(str(folder)).toPath())
        self.reader = java("org.apache.lucene.index.DirectoryReader").open(directory)
        searching = java("org.apache.lucene.search.IndexSearcher")
        searching.setMaxClauseCount(1 << 20)  # for long queries; Lucene's default is 1,024 terms
        self.searcher = searching(cast("org.apache.lucene.index.IndexReader", self.reader))
        self.searcher.setSimilarity(java("org.apache.lucene.search.similarities.BM25Similarity")(k1, b))

    def ids(self) -> Iterator[list[str]]:
        """Yield the ids of all texts, by Lucene's document number, block by block."""
        for part in range(self.reader.leaves().size()):
            context = self.reader.leaves().get(part)
            leaf = cast("org.apache.lucene.index.LeafReader", context.reader())
            name_of = function("java.util.function.IntFunction", _id_of(leaf.getBinaryDocValues(ID)))
            for start in range(0, leaf.maxDoc(), IDS_PER_CALL):
                numbers = java("java.util.stream.IntStream").range(start, min(start + IDS_PER_CALL, leaf.maxDoc()))
                yield list(numbers.mapToObj(name_of).toArray())

    def search(self, texts: list[str], depth: int, threads: int) -> LuceneHits:
        """Return the best `depth` documents for each query text."""
        of_text = bind(self._search, 1, depth, _order())
        searched = java_list(texts).parallelStream().map(function("java.util.function.Function", of_text))
        every = method("java.util.stream.Stream", "toList", "java.util.List").bindTo(searched)
        pool = java("java.util.concurrent.ForkJoinPool")(threads)  # a parallel stream runs in the pool that starts it
        try:
            results = pool.submit(function("java.util.concurrent.Callable", every)).get()
        finally:
            pool.shutdown()
        return _as_arrays(cast("java.util.List", results))

    def term_scores(self, term: str, passage_ids: list[str]) -> list[float]:
        """Return what one occurrence of a term in a query adds to the score of each passage; 0 where it is absent."""
        query, named = java("org.apache.lucene.search.TermQuery"), java("org.apache.lucene.index.Term")
        scores = []
        for passage_id in passage_ids:
            hits = self.searcher.search(query(named(ID, passage_id)), 1).scoreDocs
            # As a Query: jnius would take the protected method that explains a Weight.
            explained = self.searcher.explain(cast(QUERY, query(named(CONTENTS, term))), hits[0].doc) if hits else None
            scores.append(float(explained.getValue().doubleValue()) if explained else 0.0)
        return scores

    @cached_property
    def _search(self) -> Any:
        """A method handle: (text, depth, order) -> its hits."""
        text, owner = "java.lang.String", "io.anserini.search.query.QueryGenerator"
        build = method(owner, "buildQuery", QUERY, text, ANALYZER, text)
        generator = java("io.anserini.search.query.BagOfWordsQueryGenerator")()
        query = bind(build, 0, generator, CONTENTS, _analyzer())
        search = method("org.apache.lucene.search.IndexSearcher", "search", TOP, QUERY, "int", SORT)
        return java("java.lang.invoke.MethodHandles").filterArguments(bind(search, 0, self.searcher), 0, query)


def analysed(texts: list[str]) -> list[str]:
    """Return each text's terms as Anserini indexes and searches them, separated by spaces."""
    return list(java_list(texts).stream().map(_words()).toArray())


@cache
def _words() -> Any:
    """Return a Java function: a text -> its terms."""
    text, words = "java.lang.String", "java.util.List"
    analyse = method("io.anserini.analysis.AnalyzerUtils", "analyze", words, ANALYZER, text, static=True)
    join = method(text, "join", text, "java.lang.CharSequence", "java.lang.Iterable", static=True)
    joined = retyped(bind(join, 0, " "), text, words)
    return function("java.util.function.Function", chain(bind(analyse, 0, _analyzer()), joined))


def _analyzer() -> Any:
    return java("io.anserini.index.IndexCollection").DEFAULT_ANALYZER


def _id_of(column: Any) -> Any:
    """Return a method handle: document number -> id. It must be called with ascending numbers."""
    handles = java("java.lang.invoke.MethodHandles")
    owner, value = "org.apache.lucene.index.BinaryDocValues", "org.apache.lucene.util.BytesRef"
    move = method(owner, "advanceExact", "boolean", "int").bindTo(column)
    read = chain(method(owner, "binaryValue", value).bindTo(column), method(value, "utf8ToString", "java.lang.String"))
    return handles.foldArguments(handles.dropArguments(read, 0, class_object("boolean"), class_object("int")), move)


@cache
def _order() -> Any:
    """Return the order by score, then by id, as Anserini sorts."""
    by, kinds = java("org.apache.lucene.search.SortField"), java("org.apache.lucene.search.SortField$Type")
    return java(SORT)(by.FIELD_SCORE, by(ID, kinds.STRING_VAL))


def _as_arrays(results: Any) -> LuceneHits:
    """Return the hits of a list of queries as arrays."""
    counted, hits, number, score = _readers()

    def column(read: Any) -> Any:
        return results.stream().flatMap(hits).mapToInt(read).toArray()

    scores = np.array(column(score), np.int32).view(np.float32)
    return LuceneHits(
        np.array(column(number), np.int32), scores, np.array(results.stream().mapToInt(counted).toArray(), np.int32)
    )


@cache
def _readers() -> tuple[Any, Any, Any, Any]:
    """Return Java functions: of a query's hits, their number and a stream; of a hit, its number and score bits.

    The score is the first field of a hit, since hits are sorted by it first.
    """
    handles, listed = java("java.lang.invoke.MethodHandles"), "org.apache.lucene.search.ScoreDoc[]"
    listing = field("org.apache.lucene.search.TopDocs", "scoreDocs", listed)
    stream = method("java.util.Arrays", "stream", "java.util.stream.Stream", "java.lang.Object[]", static=True)
    first = bind(handles.arrayElementGetter(class_object("java.lang.Object[]")), 1, 0)
    bits = method("java.lang.Float", "floatToRawIntBits", "int", "float", static=True)
    to_int = "java.util.function.ToIntFunction"
    of_hits, score = retyped(stream, "java.util.stream.Stream", listed), retyped(first, "float", "java.lang.Object[]")
    return (
        function(to_int, chain(listing, handles.arrayLength(class_object(listed)))),
        function("java.util.function.Function", chain(listing, of_hits)),
        function(to_int, field("org.apache.lucene.search.ScoreDoc", "doc", "int")),
        function(to_int, chain(field(SCORED, "fields", "java.lang.Object[]"), score, bits)),
    )
