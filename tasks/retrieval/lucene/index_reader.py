"""A Lucene index, searched from Python: what is found comes as arrays of Lucene's own numbers.

Queries are made, searched and sorted as Anserini's `SimpleSearcher.batch_search` does it. That one scores each hit a
second time and fetches its stored text to learn its id, which takes three quarters of its time; here a hit is two
numbers, read of all hits at once, and ids are read once, from a column of the index.
"""

from __future__ import annotations

from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.retrieval.lucene.jvm import (
    cast,
    chain,
    class_object,
    field,
    function,
    given,
    java,
    java_list,
    method,
    retyped,
)

CONTENTS, ID = "contents", "id"
IDS_AT_ONCE = 100_000
SORT, ANALYZER = "org.apache.lucene.search.Sort", "org.apache.lucene.analysis.Analyzer"
QUERY, TOP, SCORED = (f"org.apache.lucene.search.{name}" for name in ("Query", "TopFieldDocs", "FieldDoc"))


class Found(NamedTuple):
    """What several queries found, one after the other, each best first and equal scores by ascending id."""

    numbers: NDArray[np.int32] | NDArray[np.int64]
    scores: NDArray[np.float32]
    counts: NDArray[np.int32]
    """How many hits each query has."""


class Lucene:
    """An open index, scored by BM25."""

    def __init__(self, folder: Path, k1: float, b: float) -> None:
        directory = java("org.apache.lucene.store.FSDirectory").open(java("java.io.File")(str(folder)).toPath())
        self.reader = java("org.apache.lucene.index.DirectoryReader").open(directory)
        searching = java("org.apache.lucene.search.IndexSearcher")
        searching.setMaxClauseCount(1 << 20)  # long queries; Lucene allows 1,024 words
        self.searcher = searching(cast("org.apache.lucene.index.IndexReader", self.reader))
        self.searcher.setSimilarity(java("org.apache.lucene.search.similarities.BM25Similarity")(k1, b))

    def ids(self) -> list[str]:
        """The id of each text, by Lucene's number."""
        named: list[str] = []
        for part in range(self.reader.leaves().size()):
            context = self.reader.leaves().get(part)
            leaf = cast("org.apache.lucene.index.LeafReader", context.reader())
            name_of = function("java.util.function.IntFunction", _id_of(leaf.getBinaryDocValues(ID)))
            for start in range(0, leaf.maxDoc(), IDS_AT_ONCE):
                numbers = java("java.util.stream.IntStream").range(start, min(start + IDS_AT_ONCE, leaf.maxDoc()))
                named.extend(numbers.mapToObj(name_of).toArray())
        return named

    def best(self, texts: list[str], depth: int, threads: int) -> Found:
        """The best `depth` texts of the index for each query."""
        of_text = given(self._search, 1, depth, _order())
        searched = java_list(texts).parallelStream().map(function("java.util.function.Function", of_text))
        every = method("java.util.stream.Stream", "toList", "java.util.List").bindTo(searched)
        pool = java("java.util.concurrent.ForkJoinPool")(threads)  # where a stream begins, its parts are worked on
        try:
            found = pool.submit(function("java.util.concurrent.Callable", every)).get()
        finally:
            pool.shutdown()
        return _as_arrays(cast("java.util.List", found))

    @cached_property
    def _search(self) -> Any:
        """A handle: (text, depth, order) -> its hits."""
        text, owner = "java.lang.String", "io.anserini.search.query.QueryGenerator"
        build = method(owner, "buildQuery", QUERY, text, ANALYZER, text)
        generator = java("io.anserini.search.query.BagOfWordsQueryGenerator")()
        query = given(build, 0, generator, CONTENTS, _analyzer())
        search = method("org.apache.lucene.search.IndexSearcher", "search", TOP, QUERY, "int", SORT)
        return java("java.lang.invoke.MethodHandles").filterArguments(given(search, 0, self.searcher), 0, query)


def analysed(texts: list[str]) -> list[str]:
    """Each text's words as Anserini indexes and searches them, with spaces between."""
    return list(java_list(texts).stream().map(_words()).toArray())


@cache
def _words() -> Any:
    """A function of Java: a text -> its words."""
    text, words = "java.lang.String", "java.util.List"
    analyse = method("io.anserini.analysis.AnalyzerUtils", "analyze", words, ANALYZER, text, static=True)
    join = method(text, "join", text, "java.lang.CharSequence", "java.lang.Iterable", static=True)
    joined = retyped(given(join, 0, " "), text, words)
    return function("java.util.function.Function", chain(given(analyse, 0, _analyzer()), joined))


def _analyzer() -> Any:
    return java("io.anserini.index.IndexCollection").DEFAULT_ANALYZER


def _id_of(column: Any) -> Any:
    """A handle: Lucene's number -> id. Numbers must be asked for in ascending order."""
    handles = java("java.lang.invoke.MethodHandles")
    owner, value = "org.apache.lucene.index.BinaryDocValues", "org.apache.lucene.util.BytesRef"
    move = method(owner, "advanceExact", "boolean", "int").bindTo(column)
    read = chain(method(owner, "binaryValue", value).bindTo(column), method(value, "utf8ToString", "java.lang.String"))
    return handles.foldArguments(handles.dropArguments(read, 0, class_object("boolean"), class_object("int")), move)


@cache
def _order() -> Any:
    """By score, and equal ones by id, as Anserini sorts."""
    by, kinds = java("org.apache.lucene.search.SortField"), java("org.apache.lucene.search.SortField$Type")
    return java(SORT)(by.FIELD_SCORE, by(ID, kinds.STRING_VAL))


def _as_arrays(found: Any) -> Found:
    """A list of queries' hits as numbers."""
    counted, hits, number, score = _readers()

    def column(read: Any) -> Any:
        return found.stream().flatMap(hits).mapToInt(read).toArray()

    scores = np.array(column(score), np.int32).view(np.float32)
    return Found(
        np.array(column(number), np.int32), scores, np.array(found.stream().mapToInt(counted).toArray(), np.int32)
    )


@cache
def _readers() -> tuple[Any, Any, Any, Any]:
    """Functions of Java: a query's hits -> how many, and a stream of them; a hit -> its number, and its score's bits.

    A hit's first field is what it was first sorted by.
    """
    handles, listed = java("java.lang.invoke.MethodHandles"), "org.apache.lucene.search.ScoreDoc[]"
    listing = field("org.apache.lucene.search.TopDocs", "scoreDocs", listed)
    stream = method("java.util.Arrays", "stream", "java.util.stream.Stream", "java.lang.Object[]", static=True)
    first = given(handles.arrayElementGetter(class_object("java.lang.Object[]")), 1, 0)
    bits = method("java.lang.Float", "floatToRawIntBits", "int", "float", static=True)
    to_int = "java.util.function.ToIntFunction"
    of_hits, score = retyped(stream, "java.util.stream.Stream", listed), retyped(first, "float", "java.lang.Object[]")
    return (
        function(to_int, chain(listing, handles.arrayLength(class_object(listed)))),
        function("java.util.function.Function", chain(listing, of_hits)),
        function(to_int, field("org.apache.lucene.search.ScoreDoc", "doc", "int")),
        function(to_int, chain(field(SCORED, "fields", "java.lang.Object[]"), score, bits)),
    )
