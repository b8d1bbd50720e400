"""Dense search against numpy on all vectors, and encoding that stops, goes on and comes out the same."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import read_table
from storage.tables import Checkpoint, Passages, Queries, Run
from tasks.encode import TextEncoder, batches
from tasks.engines import dense
from tasks.engines.dense import Approximate, Dense, Exact
from tasks.hits import PassageIds, passage_ids
from tasks.index import index
from tasks.search import Search, search

pytestmark = pytest.mark.usefixtures("on_one_thread")
FLAT = Dense(engine="dense", factory="Flat", query_max_tokens=16, passage_max_tokens=24)
WORDS = ["alpha", "beta", "gamma", "delta", "omega", "sigma", "kappa", "lambda"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Artifact[Checkpoint]:
    folder = tmp_path_factory.mktemp("checkpoint")
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##a"]))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    BertForMaskedLM(BertConfig(vocab_size=14, max_position_embeddings=32, **shape)).save_pretrained(folder)
    return Artifact("initialise", "tiny", folder)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    draw = random.Random(1)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 30))) for _ in range(150)] + ["alpha beta"] * 3


@pytest.fixture(scope="module")
def passages(written, texts: list[str]) -> Artifact[Passages]:
    blank = {"title": "", "start": 0, "end": 1, "num_tokens": 1}
    rows = [{"passage_id": f"p{n}", "doc_id": f"d{n % 60}", "text": text, **blank} for n, text in enumerate(texts)]
    return written(Passages, rows)


def test_a_text_has_its_own_vector_whatever_shares_its_batch(
    checkpoint: Artifact[Checkpoint], texts: list[str]
) -> None:
    encoder = TextEncoder(checkpoint.path)
    together = encoder(texts, "passage", 24)
    assert together.dtype == np.float32
    for number in range(0, len(texts), 15):
        alone = encoder([texts[number]], "passage", 24)[0]
        assert np.allclose(together[number], alone, atol=1e-5)
    assert len(np.unique(together.round(3), axis=0)) > 100  # so the comparison says something


def exact(vectors: np.ndarray, ids: PassageIds) -> Exact:
    flat = dense._faiss().IndexFlatIP(vectors.shape[1])
    flat.add(vectors)
    return Exact(flat, ids)


def names(count: int) -> PassageIds:
    found = [f"p{n}" for n in range(count)]
    return dense_ids(found)


def dense_ids(found: list[str]) -> PassageIds:
    import pyarrow as pa

    from tasks.hits import numbered

    return numbered(pa.table({"passage_id": found, "doc_id": found}))


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 200),
    depth=st.integers(1, 220),
    queries=st.integers(1, 40),
    kinds=st.integers(1, 200),
    seed=st.integers(0, 2**16),
)
def test_the_best_passages_are_numpys_with_ties_by_id(
    count: int, depth: int, queries: int, kinds: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    vectors = draw.standard_normal((kinds, 24)).astype(np.float32)[draw.integers(0, kinds, count)]  # many are equal
    queries_QD = draw.standard_normal((queries, 24)).astype(np.float32)
    ids = names(count)
    for query_D, hits in zip(queries_QD, exact(vectors, ids)(queries_QD, depth), strict=True):
        scores = (vectors.astype(np.float64) @ query_D.astype(np.float64)).astype(np.float32)
        expected = sorted(range(count), key=lambda n: (scores[n], f"p{n}"), reverse=True)[:depth]
        assert hits.places.tolist() == expected
        assert np.array_equal(hits.scores, scores[expected])


def test_more_is_fetched_while_rounding_might_hide_a_better_one() -> None:
    """All 5,000 scores lie within FAISS's rounding, so its own order says nothing."""
    draw = np.random.default_rng(1)
    vectors = np.full((5000, 64), 1000, np.float32) + draw.integers(0, 3, (5000, 64)).astype(np.float32) * 2**-13
    query = np.ones((1, 64), np.float32)
    scores = vectors.astype(np.float64).sum(axis=1).astype(np.float32)
    expected = sorted(range(5000), key=lambda n: (scores[n], f"p{n}"), reverse=True)[:5]
    assert next(exact(vectors, names(5000))(query, 5)).places.tolist() == expected


def test_a_list_does_not_depend_on_the_queries_beside_it() -> None:
    draw = np.random.default_rng(2)
    vectors, queries = (draw.standard_normal((n, 40)).astype(np.float32) for n in (3000, 50))
    find = exact(vectors, names(3000))
    together = list(find(queries, 20))
    alone = [next(find(query[None], 20)) for query in queries]
    assert all(
        np.array_equal(a.scores, b.scores) and np.array_equal(a.places, b.places)
        for a, b in zip(together, alone, strict=True)
    )


def test_index_and_search_find_what_numpy_finds(
    written, made, passages: Artifact[Passages], checkpoint: Artifact[Checkpoint], texts: list[str]
) -> None:
    built = made(index, passages, checkpoint, None, settings=FLAT)
    asked = ["alpha beta", "omega", "sigma kappa lambda"]
    queries = written(Queries, [{"query_id": f"q{n}", "text": text} for n, text in enumerate(asked)])
    rows = read_table(
        made(search, built, queries, checkpoint, passages, settings=Search(documents=60)), Run
    ).to_pylist()

    encoder = TextEncoder(checkpoint.path)
    vectors, queries_QD = encoder(texts, "passage", 24), encoder(asked, "query", 16)
    for number, query_D in enumerate(queries_QD):
        scores = (vectors.astype(np.float64) @ query_D.astype(np.float64)).astype(np.float32)
        expected = sorted(range(len(texts)), key=lambda n: (scores[n], f"p{n}"), reverse=True)
        found = [row for row in rows if row["query_id"] == f"q{number}"]
        assert [row["passage_id"] for row in found] == [f"p{n}" for n in expected[: len(found)]]
        assert [row["score"] for row in found] == pytest.approx(scores[expected[: len(found)]], rel=1e-5)
        documents = [int(row["passage_id"][1:]) % 60 for row in found]
        assert len(set(documents)) == 60  # all that there are
        assert documents.count(documents[-1]) == 1  # the list ends with the passage that brings the last
    assert {row["view"] for row in rows} == {"dense"}


def test_shards_make_the_same_run(
    written, made, passages: Artifact[Passages], checkpoint: Artifact[Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    built = made(index, passages, checkpoint, None, settings=FLAT)
    draw = random.Random(5)
    asked = [" ".join(draw.choices(WORDS, k=4)) for _ in range(30)]
    queries = written(Queries, [{"query_id": f"q{n}", "text": text} for n, text in enumerate(asked)])
    whole = made(search, built, queries, checkpoint, passages, settings=Search(documents=10))
    monkeypatch.setattr("tasks.search.QUERIES_PER_SHARD", 7)
    sharded = made(search, built, queries, checkpoint, passages, settings=Search(documents=10))
    assert len(list(sharded.path.glob("*.parquet"))) == 5
    one, other = read_table(whole, Run), read_table(sharded, Run)
    assert one.drop_columns("score") == other.drop_columns("score")
    assert np.allclose(one["score"], other["score"], rtol=1e-5)

    last = sharded.path / "part-00004.parquet"
    last.unlink()  # as if it had been killed here
    untouched = {path: path.stat().st_mtime_ns for path in sharded.path.glob("*.parquet")}
    search.body(sharded.path, built, queries, checkpoint, passages, settings=Search(documents=10))
    assert read_table(sharded, Run) == other
    assert all(path.stat().st_mtime_ns == time for path, time in untouched.items())


def test_encoding_goes_on_from_its_shards_and_is_the_same_to_the_byte(
    passages: Artifact[Passages], checkpoint: Artifact[Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense, "PASSAGES_PER_SHARD", 40)
    whole, cut_off = tmp_path / "whole", tmp_path / "cut_off"
    index.body(whole, passages, checkpoint, None, settings=FLAT)

    real, calls = TextEncoder.__call__, []

    def killed(self: TextEncoder, *arguments: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(TextEncoder, "__call__", killed)
    with pytest.raises(KeyboardInterrupt):
        index.body(cut_off, passages, checkpoint, None, settings=FLAT)
    assert not (cut_off / "index.faiss").exists()
    index.body(cut_off, passages, checkpoint, None, settings=FLAT)
    assert len(calls) == 5  # four shards: two before, one that was killed, two after
    for name in ("index.faiss", "index.json"):
        assert (whole / name).read_bytes() == (cut_off / name).read_bytes()


def test_approximate_indexes_search_and_say_less() -> None:
    draw = np.random.default_rng(3)
    vectors, queries = (draw.standard_normal((n, 16)).astype(np.float32) for n in (500, 20))
    ids, faiss = names(500), dense._faiss()
    cells = faiss.index_factory(16, "IVF8,Flat", faiss.METRIC_INNER_PRODUCT)
    cells.train(vectors)
    cells.add(vectors)
    best = exact(vectors, ids)
    hits = list(Approximate(cells, ids)(queries, 400))
    assert all((found.places >= 0).all() and len(found.places) < 400 for found in hits)  # one cell of eight is searched
    for found, truth in zip(hits, best(queries, 500), strict=True):
        assert np.allclose(found.scores, [truth.scores[truth.places == place][0] for place in found.places], atol=1e-4)


def test_an_unknown_factory_is_an_error_that_names_the_key(
    passages: Artifact[Passages], checkpoint: Artifact[Checkpoint], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"index\.factory: FAISS does not know 'Flatt'"):
        index.body(tmp_path, passages, checkpoint, None, settings=FLAT.model_copy(update={"factory": "Flatt"}))


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 200))
def test_every_text_is_in_one_batch_that_fits(lengths: list[int], tokens: int) -> None:
    found = list(batches(lengths, tokens))
    assert sorted(place for batch in found for place in batch) == list(range(len(lengths)))
    for batch in found:
        assert len(batch) == 1 or len(batch) * max(lengths[place] for place in batch) <= tokens


def test_passage_ids_are_those_of_the_table(passages: Artifact[Passages]) -> None:
    ids = passage_ids(passages)
    assert len(ids) == 153
    assert ids.ids[3].as_py() == "p3"
    assert len(set(ids.documents.tolist())) == 60
