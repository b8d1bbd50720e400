"""Finished runs that take no time: evaluated and reported as any; only their ranked lists are synthetic."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from storage.artifact import Artifact
from storage.rows import write_rows
from storage.settings import Settings
from storage.store.store import Store
from storage.tables import Checkpoint, Passages, Positives, Qrels, Queries, Run
from tasks.evaluation.evaluate import Comparison, Evaluation, evaluate
from tasks.report.publish import publish
from tasks.report.report import Reporting, report
from tasks.stage import stage

QUERIES, DOCUMENTS = 24, 12


class Made(Settings):
    """Which collection."""

    queries: int


class Ranking(Settings):
    """A made-up retriever: 0 of noise finds what is relevant."""

    noise: float
    seed: int


@stage(version=1, table=Passages)
def split_corpus(out: Path, *, settings: Made) -> None:
    """Two passages a document; q1's own document is among them."""
    named = ["q1", *(f"d{n}" for n in range(1, DOCUMENTS))]
    text = {"title": "", "text": "x", "start": 0, "end": 1, "num_tokens": 1}
    rows = ({"passage_id": f"{doc}#{n}", "doc_id": doc, **text} for doc in named for n in range(2))
    write_rows(out, Passages, rows)


@stage(version=1, table=Queries)
def ingest_queries(out: Path, *, settings: Made) -> None:
    """q1 and so on."""
    write_rows(out, Queries, ({"query_id": f"q{n}", "text": f"question {n}"} for n in range(1, settings.queries + 1)))


@stage(version=1, table=Qrels)
def ingest_qrels(out: Path, *, settings: Made) -> None:
    """A relevant document and one that is a little relevant for each query."""
    write_rows(out, Qrels, (
        {"query_id": f"q{n}", "doc_id": f"d{1 + (n + grade) % (DOCUMENTS - 1)}", "grade": grade}
        for n in range(1, settings.queries + 1) for grade in (1, 2)
    ))  # fmt: skip


@stage(version=1, table=Positives)
def label_passages(out: Path, qrels: Artifact[Qrels], passages: Artifact[Passages]) -> None:
    """A positive that a retriever is said to have learned from."""
    write_rows(out, Positives, [{"query_id": "q1", "passage_id": "d1#0", "doc_id": "d1"}])


@stage(version=1, table=Run)
def search(
    out: Path, queries: Artifact[Queries], passages: Artifact[Passages], positives: Artifact[Positives] | None = None,
    *, settings: Ranking,
) -> None:  # fmt: skip
    """Scores of whether a document is the relevant one, and noise; with ties, and each query's own document on top."""
    draw = random.Random(settings.seed)
    named = ["q1", *(f"d{n}" for n in range(1, DOCUMENTS))]
    rows = [
        {
            "query_id": f"q{n}", "passage_id": f"{doc}#{part}", "view": "dense", "rank": 1,
            "score": 9.0 if doc == "q1" else round((doc == f"d{1 + (n + 2) % (DOCUMENTS - 1)}")
                                                   + settings.noise * draw.random(), 1),
        }
        for n in range(1, QUERIES + 1) for doc in named for part in range(2)
    ]  # fmt: skip
    write_rows(out, Run, rows)


def run(
    store: Store, name: str, *, noise: float = 1.0, seed: int = 1, queries: int = QUERIES, split: str = "dev",
    last: str = "retriever_2", transfer: Sequence[str] = (), trained: Mapping[str, Artifact[Checkpoint]] | None = None,
    **changed: Any,
) -> Artifact[Any]:  # fmt: skip
    """A finished run called `name`, published in the current session's store; bm25 depends on nothing of it.

    `last` names its last row, `transfer` other collections that it was measured on, `trained` its checkpoints.
    """
    built = Made(queries=queries)
    passages, topics, qrels = split_corpus(settings=built), ingest_queries(settings=built), ingest_qrels(settings=built)
    positives = label_passages(qrels=qrels, passages=passages)
    searched = {"queries": topics, "passages": passages, "positives": positives}
    runs = {
        "bm25": search(queries=topics, passages=passages, settings=Ranking(noise=2.0, seed=0)),
        "retriever_1": search(**searched, settings=Ranking(noise=noise, seed=seed)),
        last: search(**searched, settings=Ranking(noise=noise / 2, seed=seed)),
    }
    own = Evaluation(
        dataset="toy", split=split, titles=False, relevant_from=1, ignore_identical_ids=True, resamples=10_000, seed=1,
        metrics=["MRR@10", "nDCG@10"], names=list(runs), averaged={"both": ["retriever_1", last]},
        comparisons=[Comparison(run=last, baseline="bm25")],
    )  # fmt: skip
    metrics, *others = (
        evaluate(qrels=qrels, passages=passages, runs=list(runs.values()), settings=settings)
        for settings in (own, *(own.model_copy(update={"dataset": name}) for name in transfer))
    )
    recipe = {
        "title": f"Title of {name}", "seed": seed, "dataset": {"reader": "beir", "train_split": "train"},
        "rounds": [{"name": "retriever_1", "train": {"noise": noise}}, {"name": "retriever_2", "train": None}],
        "headline": {"run": "retriever_2", "baseline": "bm25", "metric": "MRR@10"}, "reported": {},
    } | changed  # fmt: skip
    reporting = Reporting(
        recipe=name, title=recipe["title"], paper="cot_mae", dataset="A toy", generator=None,
        text=yaml.safe_dump(recipe, sort_keys=False), runs={"bm25": "Lucene's BM25"}, absent={}, main=last,
        baseline="bm25", metric="MRR@10", reported={}, trained=list(trained or {}), stored=[], views={},
    )  # fmt: skip
    results = report(
        metrics=[metrics],
        queries=topics,
        agreements=[],
        checkpoints=list((trained or {}).values()),
        stored=[],
        analyses=[],
        transfer=others,
        settings=reporting,
    )
    publish(store.root / "reports" / name, results, [])
    return results
