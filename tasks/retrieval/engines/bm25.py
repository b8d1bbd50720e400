"""BM25 with Lucene, through Anserini's Java classes that pyserini wraps.

Text analysis is Anserini's default: English, Porter stemming, Lucene's stop words. Lists are equal to those of
pyserini's `batch_search`, bit by bit.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from storage.artifact import Artifact
from storage.pseudo_queries import Alongside, kept_queries
from storage.row_index import PassageIndex
from storage.rows import num_rows, read_rows
from storage.store.publishing import SCRATCH
from storage.tables import Passages, PseudoQueries, Vectors, passage_text
from storage.vectors import Encoded
from tasks.retrieval.index import EngineSettings, describe
from tasks.retrieval.lucene.index_reader import Lucene, LuceneHits
from tasks.retrieval.lucene.jvm import java
from tasks.retrieval.ranking import Hits, Indices, Lookup, Searcher, in_order
from tasks.runtime.leftovers import record, unfinished
from tasks.runtime.progress import progress
from tasks.session import execution

VIEWS = ("bm25",)
LUCENE = Path("logs/lucene")  # below logs/: Lucene writes random ids, so its bytes are not hashed
HITS_PER_CALL = 200_000  # Java holds all hits of a call at once
OPEN_INDEXES = 4  # a process keeps them open, since each question about contributions reads one


class Bm25(EngineSettings):
    """Lucene's BM25; the engine `bm25s` returns the same lists, and is faster on small collections."""

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
    """Index every passage's text, followed by its pseudo-queries if there are any, in one Lucene segment."""
    if vectors is not None:
        raise TypeError("BM25 reads no vectors")
    if not unfinished(out, [str(LUCENE)]):
        return
    building = out / SCRATCH / "lucene"
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    _write_lucene(building, expanded(passages, pseudo_queries))
    (out / LUCENE).parent.mkdir(exist_ok=True)
    building.rename(out / LUCENE)
    record(out, str(LUCENE))


def expanded(passages: Artifact[Passages], pseudo_queries: Artifact[PseudoQueries] | None) -> Iterator[tuple[str, str]]:
    """Yield the id and the indexed text of every passage: title, text, and its pseudo-queries if there are any."""
    queries = Alongside(kept_queries(pseudo_queries) if pseudo_queries else ())
    rows = progress(read_rows(passages, Passages), total=num_rows(passages.path), what="indexing", unit="passages")
    for row in rows:
        text = passage_text(row["title"], row["text"])
        yield row["passage_id"], " ".join([text, *queries.texts(row["passage_id"])])
    queries.end()


def _write_lucene(folder: Path, texts: Iterator[tuple[str, str]]) -> None:
    """Index (id, contents) in one thread, for a reproducible index, and merge it to one segment."""
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
    ids: PassageIndex,
    view: str,
) -> Searcher:
    """Return a searcher of a Lucene index with the k1 and b of `index.json`."""
    if vectors is not None or encode is not None:
        raise TypeError("BM25 reads no vectors")
    built_at = modified(path / LUCENE)
    lucene = _opened(path, built_at)
    name = f"lucene-{path.name}-{built_at}"  # another index numbers the same passages otherwise
    rows = ids.derive(name, (ids.rows(pa.array(block, pa.string())) for block in lucene.ids()))
    return lambda texts: _lookup(lucene, texts, rows, ids)


def term_contributions(
    path: Path, terms: Sequence[str], passage_ids: list[str], ids: PassageIndex
) -> list[list[float]]:
    """Return what one occurrence of each term adds to the score of each passage, a list for each term."""
    lucene = _opened(path, modified(path / LUCENE))
    return [lucene.term_scores(term, passage_ids) for term in terms]


def modified(folder: Path) -> int:
    """Return the time of an index, by which one that is built again under the same key is not taken for the earlier."""
    return folder.stat().st_mtime_ns


@lru_cache(maxsize=OPEN_INDEXES)
def _opened(path: Path, modified: int) -> Lucene:
    settings = describe(path)
    return Lucene(path / LUCENE, float(str(settings["k1"])), float(str(settings["b"])))


def _lookup(lucene: Lucene, texts: Sequence[str], rows: Indices, ids: PassageIndex) -> Lookup:
    def lookup(queries: Sequence[int], depth: int) -> list[Hits]:
        step = max(1, HITS_PER_CALL // depth)
        blocks = ([texts[query] for query in queries[start : start + step]] for start in range(0, len(queries), step))
        results = (lucene.search(block, depth, execution().threads) for block in blocks)
        return [in_order(ids, rows[docs], scores) for block in results for docs, scores in lists(block)]

    return lookup


def lists(results: LuceneHits) -> Iterator[tuple[Indices, NDArray[np.float32]]]:
    """Yield each query's document numbers and scores, as Anserini returns them."""
    ends = np.cumsum(results.counts)[:-1]
    scores = separate_ties(results.scores, results.counts)
    return zip(np.split(results.docs, ends), np.split(scores, ends), strict=True)


def separate_ties(scores: NDArray[np.float32], counts: NDArray[np.int32]) -> NDArray[np.float32]:
    """Return the scores of several consecutive lists, with ties separated as by Anserini's `ScoreTiesAdjusterReranker`.

    Scores are rounded to four decimals. A score at most 1e-4 below the previous one counts as a tie: the first in a row
    of ties is lowered by 1e-6, the second by 2e-6, and so on.
    """
    # Java rounds halves up; a float32 times 1e4 is exact in double precision.
    adjusted = (np.floor(scores.astype(np.float64) * 1e4 + 0.5) / 1e4).astype(np.float32)
    starts, num_ties = np.cumsum(counts) - counts, np.zeros(len(counts), np.int32)
    for rank in range(1, int(counts.max(initial=0))):  # all lists at once, as each score depends on the one before
        reaches_rank = counts > rank
        at = starts[reaches_rank] + rank
        tied = adjusted[at - 1] - adjusted[at] <= np.float32(1e-4)
        num_ties[reaches_rank] = np.where(tied, num_ties[reaches_rank] + 1, 0)
        adjusted[at] -= np.float32(1e-6) * num_ties[reaches_rank].astype(np.float32)
    return adjusted
