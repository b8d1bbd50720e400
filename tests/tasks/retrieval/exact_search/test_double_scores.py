"""Scores of pairs against the formula, and that coarse products never hide what is best."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from storage.vectors import Encoded, TokenRows
from tasks.retrieval.exact_search import double_scores, matmul
from tasks.retrieval.exact_search.double_scores import StoredVectors, blocks_of_pairs, parts_of
from tasks.retrieval.exact_search.matmul import factors_with_errors
from tasks.retrieval.exact_search.numba_kernels import all_lexical_scores
from tests.tasks.stored import multiply, offsets, pair_score, store, texts


@pytest.mark.parametrize(
    ("view", "exact_match"), [("dense", False), ("lexical", False), ("late", False), ("late", True), ("sum", False)]
)
def test_pair_scores_equal_the_formula_in_any_order(
    view: str, exact_match: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(double_scores, "PRODUCTS_PER_BLOCK", 40)
    draw = np.random.default_rng(11)
    queries, passages = texts(draw, 7, signed=True), texts(draw, 30, signed=True)
    stored = StoredVectors(store(tmp_path, passages, rows=11, exact_match=exact_match), view)
    query_rows, passage_rows = draw.integers(0, 7, 90), draw.integers(0, 30, 90)
    wanted = [
        np.float32(pair_score(queries.taken([query]), passages.taken([passage]), view, exact_match))
        for query, passage in zip(query_rows, passage_rows, strict=True)
    ]
    assert stored.scores(queries, query_rows, passage_rows).tolist() == wanted
    assert stored.scores(queries, query_rows[:0], passage_rows[:0]).tolist() == []


@pytest.mark.parametrize("view", ["dense", "late", "sum"])
def test_threads_share_the_pairs_and_change_no_score(
    view: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(15)
    queries, passages = texts(draw, 6, signed=True), texts(draw, 30, signed=True)
    folder, threads = store(tmp_path, passages, rows=11), set[int]()
    query_rows, passage_rows = np.repeat(np.arange(6), 15), draw.integers(0, 30, 90)
    alone = StoredVectors(folder, view).scores(queries, query_rows, passage_rows)
    stored = StoredVectors(folder, view, threads=4)
    monkeypatch.setattr(double_scores, "PAIRS_PER_THREAD", 1)
    inner, barrier = double_scores.read_shard, threading.Barrier(4, timeout=60.0)

    def read(*given: Any) -> Any:
        if threading.get_ident() not in threads:
            threads.add(threading.get_ident())
            barrier.wait()
        return inner(*given)

    monkeypatch.setattr(double_scores, "read_shard", read)
    together = stored.scores(queries, query_rows, passage_rows)

    assert len(threads) == 4
    assert together.tolist() == alone.tolist()


def test_parts_have_complete_queries_and_about_equal_numbers_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(double_scores, "PAIRS_PER_THREAD", 10)
    draw = np.random.default_rng(16)
    for _ in range(200):
        counts = draw.integers(0, 30, int(draw.integers(1, 40)))
        rows, number = np.repeat(np.arange(len(counts)), counts), int(draw.integers(1, 9))
        parts = parts_of(rows, number)
        queries = [set(rows[part].tolist()) for part in parts]

        assert np.concatenate([rows[part] for part in parts]).tolist() == rows.tolist()
        assert sum(map(len, queries)) == len(set(rows.tolist()))
        assert len(parts) <= max(1, min(number, len(rows) // 10))
        assert all(part.stop - part.start <= len(rows) / len(parts) + 60 for part in parts)
    assert parts_of(np.empty(0, np.int64), 8) == [slice(0, 0)]


def test_max_sim_is_exact_where_coarse_products_have_another_order(tmp_path: Path) -> None:
    draw = np.random.default_rng(12)
    vectors = (1 + draw.random((40 * 25, 64)) / 100).astype(np.float32)  # products differ in the fourth digit
    passages = Encoded(late=TokenRows(offsets([25] * 40), vectors, np.empty(0, np.int32)))
    queries = passages.rows(0, 3)
    stored = StoredVectors(store(tmp_path, passages, rows=40), "late")
    query_rows, passage_rows = np.divmod(np.arange(3 * 40), 40)
    doubles = vectors.astype(np.float64).reshape(40, 25, 64)
    wanted = np.einsum("qid,ptd->qpit", doubles[:3], doubles).max(axis=-1).sum(axis=-1)
    np.testing.assert_allclose(stored.scores(queries, query_rows, passage_rows), wanted.ravel(), rtol=1e-7)


@pytest.mark.parametrize("coarse", [False, True])
@pytest.mark.parametrize("as_amx", [None, False, True])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_errors_of_products_are_within_their_bounds(
    coarse: bool, as_amx: bool | None, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if as_amx is not None:
        multiply(monkeypatch, as_amx=as_amx)
    draw = np.random.default_rng(13)
    for one, other in (
        (draw.standard_normal((50, 96)), draw.standard_normal((80, 96)) * scale),
        (np.full((50, 96), 1 + 2**-8.01), np.full((80, 96), (1 + 2**-8.01) * scale)),  # all round to the same side
    ):
        queries, right = (torch.from_numpy(vectors.astype(np.float32)) for vectors in (one, other))
        factors, errors = factors_with_errors(queries, coarse=coarse)
        error = (
            matmul.inner_products(factors, right, coarse=coarse).double() - queries.double() @ right.double().T
        ).abs()
        assert (error <= errors[:, None] * right.norm(dim=1)).all()
        assert torch.backends.mkldnn.matmul.fp32_precision != "bf16"


def test_blocks_join_adjacent_queries_with_the_same_passages() -> None:
    query_rows = np.array([4, 4, 2, 2, 5, 5, 7, 7, 7, 8])
    passage_rows = np.array([0, 3, 0, 3, 3, 0, 1, 2, 3, 1])
    assert list(blocks_of_pairs(query_rows, passage_rows)) == [(0, 4, 2), (4, 6, 2), (6, 9, 3), (9, 10, 1)]


def test_all_lexical_scores_equal_those_of_pairs(tmp_path: Path) -> None:
    draw = np.random.default_rng(14)
    queries, passages = texts(draw, 6, words=30, signed=True), texts(draw, 50, words=30, signed=True)
    stored = StoredVectors(store(tmp_path, passages, rows=50), "lexical")
    query_rows, passage_rows = np.divmod(np.arange(300), 50)
    every = all_lexical_scores(queries.lexical, passages.lexical)
    assert every.ravel().tolist() == stored.scores(queries, query_rows, passage_rows).tolist()
