"""What the words of a question contribute: the parts of a score add up to it."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.artifact import Artifact
from storage.rows import write_rows
from storage.store.store import Store
from storage.tables import Checkpoint, Passages
from tasks.retrieval import contributions as of
from tasks.retrieval.contributions import Terms, contributions
from tasks.retrieval.encode import Encoding, encode
from tasks.retrieval.engines import bm25, bm25s
from tasks.retrieval.engines.bm25 import Bm25
from tasks.retrieval.index import index
from tasks.retrieval.interactive import OpenSearch, Searched
from tasks.retrieval.search import QueryEncoder
from tasks.retrieval.shared_passages import temporary_index
from tasks.stage import stage
from tests.tiny import save_tokenizer, tiny_retriever

TEXTS = ["river mountain river castle", "castle painting", "music planet river", "ocean tree", "king letter"]
QUESTION = "river castle river"


@stage(version=1, table=Passages)
def given_passages(out: Path) -> None:
    """Five short ones."""
    rows = [{"passage_id": f"p{n}", "doc_id": f"p{n}", "title": "", "text": text, "start": 0, "end": len(text),
             "num_tokens": 4} for n, text in enumerate(TEXTS)]  # fmt: skip
    write_rows(out, Passages, rows)


@stage(version=1, table=Checkpoint)
def given_retriever(out: Path, *, settings: Any = None) -> None:
    """All views, untrained."""
    from models.retrievers import retriever

    retriever.save(tiny_retriever("mixture"), out)
    save_tokenizer(out)


@pytest.fixture
def everything_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of, "SHOWN", 1000)


def explained(searched: Searched, view: str | None = None) -> Iterator[tuple[dict[str, float], Terms]]:
    """Yield the scores and the terms of each passage that a question retrieves."""
    with temporary_index(searched.passages) as ids:
        search = OpenSearch(searched, ids, view)
        hits = search.hits(QUESTION, 5)
        scores, terms = search.scores(QUESTION, hits), contributions(search, QUESTION, hits.rows)
        for number in range(len(hits.rows)):
            yield {name: values[number] for name, values in scores.items()}, terms[number]


@pytest.mark.parametrize("engine", ["bm25", "bm25s"])
def test_the_terms_of_bm25_add_up_to_the_score(engine: Any, store: Store, everything_shown: None) -> None:
    passages = given_passages()
    built = index(passages=passages, settings=Bm25(engine=engine, k1=0.9, b=0.4))

    results = list(explained(Searched(passages, built, None, None)))

    assert len(results) == 3
    for scores, terms in results:
        assert sum(term.score for term in terms["bm25"]) == pytest.approx(scores["bm25"], abs=2e-4)
        assert {term.text for term in terms["bm25"]} <= {"river", "castl"}
    first = {term.text: term.score for term in results[0][1]["bm25"]}
    assert first["river"] > first["castl"] > 0


@pytest.mark.parametrize("module", [bm25, bm25s])
def test_an_index_of_bm25_is_opened_once_until_it_is_built_again(module: Any, store: Store) -> None:
    passages = given_passages()
    engine = module.__name__.rpartition(".")[2]
    searched = Searched(passages, index(passages=passages, settings=Bm25(engine=engine, k1=0.9, b=0.4)), None, None)
    before = module._opened.cache_info().misses

    first, again = list(explained(searched)), list(explained(searched))

    assert first == again
    assert module._opened.cache_info().misses - before == 1
    assert searched.index is not None
    shutil.rmtree(searched.index.path)
    searched.index.path.mkdir()
    index.body(searched.index.path, passages, None, None, settings=Bm25(engine=engine, k1=0.9, b=1.0))
    assert list(explained(searched)) != first


def test_a_question_is_encoded_once_for_all_passages(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    passages, retriever = given_passages(), given_retriever()
    vectors = encode(
        passages=passages, checkpoint=retriever, settings=Encoding(query_max_tokens=8, passage_max_tokens=12)
    )
    encoded: list[str] = []
    original = QueryEncoder.__call__
    monkeypatch.setattr(QueryEncoder, "__call__", lambda self, texts: encoded.extend(texts) or original(self, texts))
    with temporary_index(passages) as ids:
        search = OpenSearch(Searched(passages, None, vectors, retriever), ids)

        contributions(search, "river castle", np.arange(5))

    assert Counter(encoded) == {"river castle": 3, "river": 1, "castle": 1}  # once a view, and without each word


def test_the_terms_of_views_add_up_and_a_word_of_the_dense_view_is_left_out(
    store: Store, everything_shown: None
) -> None:
    passages, retriever = given_passages(), given_retriever()
    vectors: Artifact[Any] = encode(
        passages=passages, checkpoint=retriever, settings=Encoding(query_max_tokens=8, passage_max_tokens=12)
    )

    results = list(explained(Searched(passages, None, vectors, retriever)))

    assert len(results) == len(TEXTS)
    for scores, terms in results:
        assert list(terms) == ["dense", "late", "lexical"]
        for view in ("late", "lexical"):
            assert sum(term.score for term in terms[view]) == pytest.approx(scores[view], rel=1e-4, abs=1e-5), view
        assert {term.text for term in terms["late"]} >= {"river", "castle"}
        assert all(term.matched for term in terms["late"])
    with temporary_index(passages) as ids:
        search = OpenSearch(Searched(passages, None, vectors, retriever), ids)
        rows = np.arange(2)
        (dense, _) = (terms["dense"] for terms in contributions(search, QUESTION, rows))
        assert search.encode is not None
        stored = search.stored["dense"]
        both = search.encode([QUESTION, "river river"])
        with_castle, without = stored.scores(both, np.array([0, 1]), np.zeros(2, np.int64))
    castle = next(term for term in dense if term.text == "castle")
    assert castle.score == pytest.approx(with_castle - without, abs=1e-5)
