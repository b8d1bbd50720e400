"""BM25 with Lucene, through Anserini's Java classes that pyserini wraps.

Analysis is Anserini's default: English, Porter stemming, Lucene's stop words. Lists are those of pyserini's
`batch_search`, to the last bit of a score.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from storage.artifact import Artifact
from storage.pseudo_queries import Alongside
from storage.rows import num_rows, read_rows
from storage.tables import Passages, PseudoQueries, Vectors, passage_text
from storage.vectors import Encoded
from tasks.retrieval.index import EngineSettings, describe
from tasks.retrieval.lucene.index_reader import Found, Lucene
from tasks.retrieval.lucene.jvm import java
from tasks.retrieval.ranking import Hits, Indices, Lookup, PassageIds, Searcher
from tasks.runtime.leftovers import record, unfinished
from tasks.runtime.progress import progress
from tasks.session import execution

VIEWS = ("bm25",)
LUCENE = Path("logs/lucene")  # below logs/: Lucene writes random ids, so its bytes are not hashed
HITS_PER_CALL = 200_000  # Java holds all hits of a call at once


class Bm25(EngineSettings):
    """Lucene's BM25; `bm25s` finds the same, and faster where passages are few (`tasks/retrieval/engines/bm25s.py`)."""

    engine: Literal["bm25", "bm25s"]
    k1: float = Field(ge=0, le=1000)
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
    if not unfinished(out, [str(LUCENE)]):
        return
    building = out / "scratch" / "lucene"
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    _write_lucene(building, expanded(passages, pseudo_queries))
    (out / LUCENE).parent.mkdir(exist_ok=True)
    building.rename(out / LUCENE)
    record(out, str(LUCENE))


def expanded(passages: Artifact[Passages], pseudo_queries: Artifact[PseudoQueries] | None) -> Iterator[tuple[str, str]]:
    """The id and the searched text of every passage: title, text, and its pseudo-queries where they are given."""
    queries = Alongside(pseudo_queries)
    rows = progress(read_rows(passages, Passages), total=num_rows(passages.path), what="indexing", unit="passages")
    for row in rows:
        text = passage_text(row["title"], row["text"])
        yield row["passage_id"], " ".join([text, *queries.of(row["passage_id"])])
    queries.end()


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
    lucene = Lucene(path / LUCENE, float(str(settings["k1"])), float(str(settings["b"])))
    places = pc.index_in(pa.array(lucene.ids(), pa.string()), value_set=ids.ids).to_numpy().astype(np.int64)
    return lambda texts: _lookup(lucene, texts, places, ids)


def _lookup(lucene: Lucene, texts: Sequence[str], places: Indices, ids: PassageIds) -> Lookup:
    def lookup(queries: Sequence[int], depth: int) -> list[Hits]:
        step = max(1, HITS_PER_CALL // depth)
        blocks = ([texts[query] for query in queries[at : at + step]] for at in range(0, len(queries), step))
        found = (lucene.best(block, depth, execution().threads) for block in blocks)
        return [ids.in_order(places[numbers], scores) for each in found for numbers, scores in lists(each)]

    return lookup


def lists(found: Found) -> Iterator[tuple[Indices, NDArray[np.float32]]]:
    """Each query's numbers and scores, as Anserini gives them."""
    ends = np.cumsum(found.counts)[:-1]
    return zip(np.split(found.numbers, ends), np.split(apart(found.scores, found.counts), ends), strict=True)


def apart(scores: NDArray[np.float32], counts: NDArray[np.int32]) -> NDArray[np.float32]:
    """Scores of several lists, one after the other, as Anserini's `ScoreTiesAdjusterReranker` takes ties apart.

    Scores are rounded to four places; one that is no more than 1e-4 below the one before it is taken down by 1e-6, the
    next such one by 2e-6, and so on.
    """
    # Java rounds halves up; a float32 times 1e4 is exact in double precision.
    found = (np.floor(scores.astype(np.float64) * 1e4 + 0.5) / 1e4).astype(np.float32)
    begins, before = np.cumsum(counts) - counts, np.zeros(len(counts), np.int32)
    for rank in range(1, int(counts.max(initial=0))):  # all lists at once, as each score depends on the one before
        long = counts > rank
        at = begins[long] + rank
        tied = found[at - 1] - found[at] <= np.float32(1e-4)
        before[long] = np.where(tied, before[long] + 1, 0)
        found[at] -= np.float32(1e-6) * before[long].astype(np.float32)
    return found
