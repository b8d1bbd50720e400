"""A finished run to browse: few texts and untrained models, but rankings, indexes and negatives as any run has them.

Its texts have what a page must not interpret.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
import yaml

from flows.browse.application import application
from flows.browse.loading import contents_of
from flows.browse.searches import Searches
from models.retrievers import retriever
from storage.artifact import Artifact
from storage.rows import write_rows
from storage.store.store import Store
from storage.tables import Checkpoint, Negatives, Passages, Positives, PseudoQueries, Qrels, Queries
from tasks.evaluation.evaluate import Comparison, Evaluation, evaluate
from tasks.finetuning.mine import mine
from tasks.finetuning.miners import MiningSettings
from tasks.report.publish import publish
from tasks.report.report import Reporting, report
from tasks.retrieval.encode import Encoding, encode
from tasks.retrieval.engines.bm25 import Bm25
from tasks.retrieval.engines.exact import Exact
from tasks.retrieval.fuse import Fusion, fuse
from tasks.retrieval.index import index
from tasks.retrieval.search import Search, search
from tasks.stage import stage
from tests.tasks.corpora import pseudo_query
from tests.tiny import WORDS, save_tokenizer, tiny_retriever

MARKUP = "<script>document.title = 'run'</script> & \"quoted\""
NAME, TOKEN = "browsed", "the-token"
TEXTS = [f"{first} {second} {third}" for first, second, third in zip(WORDS, WORDS[3:], WORDS[7:], strict=False)]
TRAIN, TEST = range(4), range(4, 9)


@stage(version=1, table=Passages)
def given_passages(out: Path) -> None:
    """A passage a document; the fifth has markup as its title and in its text."""
    write_rows(out, Passages, (
        {"passage_id": f"d{n}#0", "doc_id": f"d{n}", "title": "<b>Title</b>" if n == 5 else "",
         "text": f"{text} {MARKUP}" if n == 5 else text, "start": 0, "end": len(text), "num_tokens": 3}
        for n, text in enumerate(TEXTS)
    ))  # fmt: skip


def _queries(out: Path, numbers: Sequence[int]) -> None:
    texts = {n: f"{TEXTS[n].split()[0]} {TEXTS[n].split()[2]}" + (" <i>&" if n == 5 else "") for n in numbers}
    write_rows(out, Queries, ({"query_id": f"q{n}", "text": text} for n, text in texts.items()))


@stage(version=1, table=Queries)
def train_queries(out: Path) -> None:
    """Words of the first documents."""
    _queries(out, TRAIN)


@stage(version=1, table=Queries)
def test_queries(out: Path) -> None:
    """Words of the next documents."""
    _queries(out, TEST)


test_queries.__test__ = False  # type: ignore[attr-defined]  # a stage, which pytest would take for a test


@stage(version=1, table=Qrels)
def given_qrels(out: Path) -> None:
    """The document of a query's words."""
    write_rows(out, Qrels, ({"query_id": f"q{n}", "doc_id": f"d{n}", "grade": 1} for n in TEST))


@stage(version=1, table=Positives)
def given_positives(out: Path) -> None:
    """The document of a training query's words."""
    write_rows(out, Positives, ({"query_id": f"q{n}", "passage_id": f"d{n}#0", "doc_id": f"d{n}"} for n in TRAIN))


@stage(version=1, table=PseudoQueries)
def given_pseudo_queries(out: Path, passages: Artifact[Passages]) -> None:
    """Two for each document, one of which a filter has dropped."""
    write_rows(out, PseudoQueries, (
        row for n in range(len(TEXTS)) for row in (
            pseudo_query(f"d{n}#0", 0, f"where is the {TEXTS[n].split()[0]} <u>"),
            pseudo_query(f"d{n}#0", 1, "nonsense", kept=False, reason="round trip", round_trip=0),
        )
    ))  # fmt: skip


@stage(version=1, table=Checkpoint)
def train(
    out: Path, passages: Artifact[Passages], queries: Artifact[Queries], positives: Artifact[Positives],
    negatives: Artifact[Negatives],
) -> None:  # fmt: skip
    """A retriever with all views, not trained."""
    retriever.save(tiny_retriever("mixture"), out)
    save_tokenizer(out)
    (out / "logs").mkdir()
    (out / "logs" / "metrics.jsonl").write_text("")


def finished(store: Store) -> Artifact[Any]:
    """Build and publish the run in the current session's store."""
    passages, test, to_train = given_passages(), test_queries(), train_queries()
    bm25 = index(passages=passages, settings=Bm25(engine="bm25", k1=0.9, b=0.4))
    expanded = index(
        passages=passages, pseudo_queries=given_pseudo_queries(passages=passages),
        settings=Bm25(engine="bm25", k1=0.9, b=0.4),
    )  # fmt: skip
    words = Search(view="bm25", documents=10)
    positives = given_positives()
    mined = mine(
        runs=[search(index=expanded, queries=to_train, passages=passages, settings=words)], positives=positives,
        passages=passages, settings=MiningSettings(miner="top", depth=5, negatives=2, seed=1),
    )  # fmt: skip
    checkpoint = train(passages=passages, queries=to_train, positives=positives, negatives=mined)
    vectors = encode(passages=passages, checkpoint=checkpoint,
                     settings=Encoding(query_max_tokens=16, passage_max_tokens=24))  # fmt: skip
    by_words = search(index=bm25, queries=test, passages=passages, settings=words)
    by_vectors = search(
        index=index(passages=passages, vectors=vectors, settings=Exact(engine="exact")), vectors=vectors, queries=test,
        checkpoint=checkpoint, passages=passages, settings=Search(view="sum", documents=10),
    )  # fmt: skip
    runs = {
        "bm25": by_words, "retriever_1": by_vectors,
        "hybrid": fuse(runs=[by_words, by_vectors], settings=Fusion(kind="sum_rr", depth=10)),
    }  # fmt: skip
    metrics = evaluate(
        qrels=given_qrels(), passages=passages, runs=list(runs.values()), settings=Evaluation(
            dataset="toy", split="test", titles=True, relevant_from=1, ignore_identical_ids=False, resamples=10_000,
            seed=1, metrics=["MRR@10"], names=list(runs), averaged={},
            comparisons=[Comparison(run="retriever_1", baseline="bm25")],
        ),
    )  # fmt: skip
    recipe = {"title": f"A run {MARKUP}", "headline": {"run": "retriever_1", "baseline": "bm25", "metric": "MRR@10"}}
    results = report(
        metrics=[metrics], queries=test, agreements=[], checkpoints=[checkpoint], stored=[], analyses=[], transfer=[],
        settings=Reporting(
            recipe=NAME, title=str(recipe["title"]), paper="none", dataset="Words & their documents", generator=None,
            text=yaml.safe_dump(recipe), runs={"bm25": "Lucene's BM25", "retriever_1": "three views"}, absent={},
            main="retriever_1", baseline="bm25", metric="MRR@10", reported={}, trained=["retriever_1"], stored=[],
            views={},
        ),
    )  # fmt: skip
    publish(store.root / "reports" / NAME, results, [])
    return results


@contextmanager
def served(store: Store, run: str | None = None) -> Iterator[str]:
    """Serve a run as the command does, in a thread; yield the address of its first page."""
    contents = contents_of(run, store.root)
    searches = Searches(contents.store)
    server = uvicorn.Server(uvicorn.Config(application(contents, searches, TOKEN), port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/{TOKEN}/"
    finally:
        server.should_exit = True
        thread.join()
        searches.close()
