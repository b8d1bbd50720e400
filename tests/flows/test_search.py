"""`pretrieve search`: what a key stands for, and what is said where it stands for nothing that can be searched."""

from pathlib import Path
from typing import Any

import pytest

from flows.search import SNIPPET, cut, open_key, search, show_answer, table
from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import write_rows
from storage.store.lookup import must_exist, newest_vectors
from storage.store.store import Store
from storage.tables import Checkpoint, Passages
from tasks.retrieval.encode import Encoding, encode
from tasks.retrieval.engines.bm25 import Bm25
from tasks.retrieval.engines.exact import Exact
from tasks.retrieval.engines.faiss import Faiss
from tasks.retrieval.index import index
from tasks.retrieval.interactive import Searched
from tasks.retrieval.truncate import Truncation, truncate
from tasks.stage import stage
from tests.finished_runs import run
from tests.tiny import save_tokenizer, tiny_retriever

TEXTS = ["river mountain", "castle painting", "[music] planet", "ocean tree", "king letter"]


@stage(version=1, table=Passages)
def given_passages(out: Path) -> None:
    """Five short ones."""
    write_rows(out, Passages, (
        {"passage_id": f"p{n}", "doc_id": f"p{n}", "title": "[Title]" if n == 2 else "", "text": text, "start": 0,
         "end": len(text), "num_tokens": 2}
        for n, text in enumerate(TEXTS)
    ))  # fmt: skip


@stage(version=1, table=Checkpoint)
def given_retriever(out: Path) -> None:
    """All views, untrained."""
    from models.retrievers import retriever

    retriever.save(tiny_retriever("mixture"), out)
    save_tokenizer(out)


@stage(version=1, table=Checkpoint)
def given_dense_retriever(out: Path) -> None:
    """One vector only, which can be truncated."""
    from models.retrievers import retriever

    retriever.save(tiny_retriever("dpr"), out)
    save_tokenizer(out)


@pytest.fixture
def built(store: Store) -> dict[str, Artifact[Any]]:
    """A retriever, its vectors, and indexes."""
    passages, retriever = given_passages(), given_retriever()
    vectors = encode(
        passages=passages, checkpoint=retriever, settings=Encoding(query_max_tokens=8, passage_max_tokens=12)
    )
    quick = Faiss(engine="faiss", factory="Flat", ef_search=None, nprobe=None, refine=1)
    return {
        "passages": passages, "retriever": retriever, "vectors": vectors,
        "exact": index(passages=passages, vectors=vectors, settings=Exact(engine="exact")),
        "faiss": index(passages=passages, vectors=vectors, settings=quick),
        "bm25": index(passages=passages, settings=Bm25(engine="bm25", k1=0.9, b=0.4)),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "views"),
    [
        ("retriever", ["sum", "dense", "late", "lexical"]), ("vectors", ["sum", "dense", "late", "lexical"]),
        ("exact", ["sum", "dense", "late", "lexical"]), ("faiss", ["dense", "late", "lexical"]), ("bm25", ["bm25"]),
    ],
)  # fmt: skip
def test_a_key_of_any_kind_is_searched(
    name: str, views: list[str], built: dict[str, Artifact[Any]], store: Store
) -> None:
    results = search(open_key(built[name].key[:10], store), "river", store, top=3)

    assert [result.rank for result in results] == list(range(1, len(results) + 1))
    assert list(results[0].scores) == views
    first = [result.scores[views[0]] for result in results]
    assert first == sorted(first, reverse=True)
    assert len(results) == (1 if name == "bm25" else 3)
    if "sum" in views:
        for result in results:
            assert result.scores["sum"] == pytest.approx(sum(result.scores[view] for view in views[1:]), rel=1e-5)


def test_a_view_may_be_named_and_more_results_requested_than_there_are(
    built: dict[str, Artifact[Any]], store: Store
) -> None:
    searched = Searched(built["passages"], None, built["vectors"], built["retriever"])

    results = search(searched, "tree", store, top=99, view="late")

    assert len(results) == len(TEXTS)
    assert next(iter(results[0].scores)) == "late"
    with pytest.raises(UserError, match="--view words: expected one of dense, lexical, late, sum"):
        search(searched, "tree", store, top=1, view="words")


def test_the_table_shows_texts_as_they_are(built: dict[str, Artifact[Any]], capsys: pytest.CaptureFixture[str]) -> None:
    store = built["bm25"].path.parent.parent

    show_answer(built["bm25"].key, "planet [bold]", store, 5, None)
    output = capsys.readouterr().out
    show_answer(built["bm25"].key, "zebra", store, 5, None)

    assert "[Title] · [music] planet" in output
    assert "planet [bold]" in output
    assert "nothing matches" in capsys.readouterr().out
    assert table([], "?").columns


def test_what_cannot_be_searched_is_named(built: dict[str, Artifact[Any]], store: Store) -> None:
    with pytest.raises(UserError, match="builds Passages; expected an index, vectors or a checkpoint"):
        open_key(built["passages"].key, store)
    with pytest.raises(UserError, match="expected some words"):
        show_answer(built["bm25"].key, "  ", store.root, 5, None)


def test_a_retriever_that_has_encoded_nothing(store: Store) -> None:
    built = given_retriever()

    with pytest.raises(UserError, match="no passages were encoded with this checkpoint"):
        open_key(built.key, store)


def test_the_name_of_a_run_lists_the_keys_of_its_retrievers(built: dict[str, Artifact[Any]], store: Store) -> None:
    trained = {"pre-training": given_dense_retriever(), "retriever_1": built["retriever"]}
    run(store, "small/toy", trained=trained)

    for name in ("small/toy", str(store.root / "reports/small/toy")):
        with pytest.raises(UserError, match=f"it has retriever_1 {built['retriever'].key}; `pretrieve browse {name}`"):
            open_key(name, store)
    with pytest.raises(UserError, match=r"no artifact has a key like this.* and this store has the runs small/toy$"):
        open_key("my-collection", store)


def test_a_store_without_runs_says_what_builds_one(store: Store) -> None:
    with pytest.raises(UserError, match=r"quickstart: no report in .*; `pretrieve reproduce quickstart` builds it"):
        open_key("quickstart", store)
    with pytest.raises(UserError, match="this store has no finished run; `pretrieve reproduce RECIPE` trains"):
        open_key("my-collection", store)


def test_a_checkpoint_is_searched_with_its_full_vectors_and_truncated_ones_by_their_key(store: Store) -> None:
    passages, retriever = given_passages(), given_dense_retriever()
    settings = Encoding(query_max_tokens=8, passage_max_tokens=12)
    full = encode(passages=passages, checkpoint=retriever, settings=settings)
    short = truncate(vectors=full, checkpoint=retriever, settings=Truncation(truncate_dim=4))
    searched = index(passages=passages, vectors=short, settings=Exact(engine="exact"))

    newest = newest_vectors(must_exist(retriever.reference, store), store)

    assert newest
    assert newest.key == full.key
    for key in (short.key, searched.key):
        opened = open_key(key, store)
        assert (opened.passages, opened.vectors, opened.checkpoint) == (passages, short, retriever)
    assert len(search(opened, "king letter", store, top=3)) == 3


def test_a_long_text_is_cut_in_any_script() -> None:
    assert cut("a  river\nin Africa") == "a river in Africa"
    assert cut("河" * SNIPPET) == "河" * SNIPPET
    assert cut("河" * 1000) == "河" * (SNIPPET - 1) + "…"
