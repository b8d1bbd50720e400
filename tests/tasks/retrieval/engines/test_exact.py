"""Exact search against scores in double precision, pair by pair, in every view and in their sum."""

import tempfile
import tracemalloc
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.vectors import Encoded, SparseRows, TokenRows
from tasks.retrieval.engines import exact
from tasks.retrieval.engines.exact import ExactSearch
from tasks.retrieval.exact_search import double_scores, tiles, upper_bounds
from tasks.retrieval.exact_search.double_scores import StoredVectors, read_similarity
from tasks.retrieval.ranking import Hits
from tests.tasks.stored import expected, multiply, names, numbers, offsets, store, texts

pytestmark = pytest.mark.usefixtures("on_one_thread")
CPU = torch.device("cpu")
VIEWS = [("dense", False), ("lexical", False), ("late", False), ("late", True), ("sum", False), ("sum", True)]


def exact_search(folder: Path, view: str) -> ExactSearch:
    stored = StoredVectors(folder, view)
    return ExactSearch(stored, names(len(stored)))


def same(one: list[Hits], other: list[Hits]) -> bool:
    return len(one) == len(other) and all(
        np.array_equal(a.rows, b.rows) and np.array_equal(a.scores, b.scores) for a, b in zip(one, other, strict=True)
    )


def limit_memory(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    for module in (exact, upper_bounds, double_scores, tiles):
        monkeypatch.setattr(module, "MEMORY_BYTES", size)


@pytest.mark.parametrize(("view", "exact_match"), VIEWS)
@settings(max_examples=25, deadline=None)
@given(
    count=st.integers(1, 60), depth=st.integers(1, 70), queries=st.integers(1, 6), kinds=st.integers(1, 60),
    rows=st.integers(1, 60), size=st.sampled_from([1, 3000, 2**26]), signed=st.booleans(), seed=st.integers(0, 2**16),
)  # fmt: skip
def test_lists_are_those_of_double_precision_with_ties_by_id(
    view: str, exact_match: bool, count: int, depth: int, queries: int, kinds: int, rows: int, size: int, signed: bool,
    seed: int,
) -> None:  # fmt: skip
    draw = np.random.default_rng(seed)
    query_rows = texts(draw, queries, signed=signed, ids=exact_match)
    passages = texts(draw, kinds, signed=signed, ids=exact_match).taken(
        draw.integers(0, kinds, count)
    )  # some are equal
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        limit_memory(patch, size)
        search = exact_search(store(Path(folder), passages, rows=rows, exact_match=exact_match), view)
        result = search(query_rows, depth)
    for number, hits in enumerate(result):
        wanted = list(islice(expected(query_rows.taken([number]), passages, view, exact_match), depth))
        assert hits.rows.tolist() == [row for row, _ in wanted]
        assert hits.scores.dtype == np.float32
        assert hits.scores.tolist() == [score for _, score in wanted]


def nearly_tied(draw: np.random.Generator, view: str) -> tuple[Encoded, Encoded]:
    """A query and 1,500 passages whose scores differ by less than single precision adds up."""
    values = np.full((1500, 64), 1000, np.float32) + draw.integers(0, 3, (1500, 64)).astype(np.float32) * 2**-13
    ones = np.ones((1, 64), np.float32)
    if view == "dense":
        return Encoded(dense=ones), Encoded(dense=values)
    if view == "lexical":
        rows = [SparseRows(offsets([64] * len(x)), np.tile(np.arange(64, dtype=np.int32), len(x)), x.ravel())
                for x in (ones, values)]  # fmt: skip
        return Encoded(lexical=rows[0]), Encoded(lexical=rows[1])
    none = np.empty(0, np.int32)
    tokens = [TokenRows(offsets([1] * len(x)), x, none) for x in (ones, values)]
    return Encoded(late=tokens[0]), Encoded(late=tokens[1])


@pytest.mark.parametrize("view", ["dense", "lexical", "late"])
@pytest.mark.parametrize("sign", [1, -1])
def test_candidates_grow_while_rounding_may_hide_a_better_passage(view: str, sign: int, tmp_path: Path) -> None:
    query, passages = nearly_tied(np.random.default_rng(1), view)
    if sign == -1:
        query = Encoded(
            None if query.dense is None else -query.dense,
            query.lexical and SparseRows(query.lexical.offsets, query.lexical.ids, -query.lexical.values),
            query.late and TokenRows(query.late.offsets, -query.late.vectors, query.late.ids),
        )
    result = exact_search(store(tmp_path, passages, rows=400), view)(query, 5)[0]
    wanted = list(islice(expected(query, passages, view), 5))
    assert result.rows.tolist() == [row for row, _ in wanted]


def mixed(passages: int, queries: int) -> tuple[Encoded, Encoded]:
    """Passages and queries of all views, whose scores are no round numbers."""
    draw = np.random.default_rng(2)

    def normal(*shape: int) -> np.ndarray:
        return draw.standard_normal(shape, dtype=np.float32)

    def texts_of_all_views(count: int) -> Encoded:
        lengths = draw.integers(1, 20, count)
        words = np.concatenate([np.sort(draw.choice(500, n, replace=False)) for n in lengths]).astype(np.int32)
        total = int(lengths.sum())
        return Encoded(
            normal(count, 30), SparseRows(offsets(lengths), words, normal(total)),
            TokenRows(offsets(lengths), normal(total, 16), draw.integers(0, 50, total).astype(np.int32)),
        )  # fmt: skip

    return texts_of_all_views(passages), texts_of_all_views(queries)


@pytest.mark.parametrize(("view", "exact_match"), VIEWS)
def test_lists_are_equal_with_and_without_amx(
    view: str, exact_match: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passages, queries = mixed(300, 5)
    search, results = exact_search(store(tmp_path, passages, rows=300, exact_match=exact_match), view), []
    for as_amx in (False, True):
        with monkeypatch.context() as patch:
            multiply(patch, as_amx=as_amx)
            results.append(search(queries, 10))
    assert same(*results)


def test_lists_do_not_depend_on_other_queries_tiles_or_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passages, queries = mixed(700, 9)
    for view, exact_match in VIEWS:
        name = f"{view}{exact_match}"
        one = exact_search(store(tmp_path / f"one{name}", passages, rows=700, exact_match=exact_match), view)
        other = exact_search(store(tmp_path / f"other{name}", passages, rows=64, exact_match=exact_match), view)
        together = one(queries, 20)
        assert same(together, [one(queries.taken([number]), 20)[0] for number in range(9)])
        assert same(together, other(queries, 20))
        with monkeypatch.context() as patch:
            limit_memory(patch, 40_000)
            assert same(together, one(queries, 20))
            assert same(together, other(queries, 20))
        assert same(one(queries, 5), [Hits(hits.rows[:5], hits.scores[:5]) for hits in together])


@pytest.mark.parametrize(("view", "exact_match"), [("lexical", False), ("late", True)])
def test_passages_without_a_match_follow_by_id_without_more_candidates(
    view: str, exact_match: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def word(number: int, count: int) -> Encoded:
        ids, ones = np.full(count, number, np.int32), np.ones(count, np.float32)
        starts = offsets([1] * count)
        return Encoded(lexical=SparseRows(starts, ids, ones), late=TokenRows(starts, ones[:, None], ids))

    passages = Encoded.concatenated([word(1, 3), word(2, 997)])
    search, num_candidates = exact_search(store(tmp_path, passages, rows=300, exact_match=exact_match), view), []
    candidates = search._candidates

    def counted(queries: Encoded, count: int, *others: Any) -> np.ndarray:
        num_candidates.append(count)
        return candidates(queries, count, *others)

    monkeypatch.setattr(search, "_candidates", counted)
    results = search(word(1, 1), 10)[0]
    assert [f"p{row}" for row in results.rows] == ["p2", "p1", "p0"] + [f"p{n}" for n in range(999, 992, -1)]
    assert results.scores.tolist() == [1.0] * 3 + [0.0] * 7
    assert num_candidates == [52]
    assert len(search(word(1, 1), 5000)[0].rows) == 1000


@pytest.mark.parametrize(("view", "exact_match"), VIEWS)
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(("coarse", "as_amx"), [(False, False), (True, False), (True, True)])
def test_bounds_are_above_the_scores_and_tight(
    view: str, exact_match: bool, signed: bool, coarse: bool, as_amx: bool, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    multiply(monkeypatch, as_amx=as_amx)
    draw = np.random.default_rng(3)
    queries, passages = (texts(draw, count, words=30, signed=signed, ids=exact_match) for count in (20, 200))
    stored = StoredVectors(store(tmp_path, passages, rows=200, exact_match=exact_match), view)
    tile = upper_bounds.tile_on_device(passages, stored.similarity, CPU, coarse=coarse)
    bound_QP = upper_bounds.upper_bounds(queries, stored.similarity, CPU, coarse=coarse)(tile).numpy()
    pairs = np.divmod(np.arange(20 * 200), 200)
    score_QP = stored.scores(queries, *pairs).reshape(20, 200)
    assert (bound_QP >= score_QP).all()
    assert np.abs(bound_QP - score_QP).max() < (4e-2 if as_amx else 1e-3) * np.abs(score_QP).max()


def test_bounds_include_every_rounding_error(tmp_path: Path) -> None:
    """Random numbers round up and down alike, so that half of all sums without a share are too small."""
    draw = np.random.default_rng(7)
    rows = SparseRows(offsets([40] * 50), np.tile(np.arange(40, dtype=np.int32), 50), draw.random(2000, np.float32))
    built = Encoded(draw.standard_normal((50, 9), np.float32), rows, texts(draw, 50).late)
    compared = read_similarity(store(tmp_path, built, rows=50), "sum")
    bounds = {view: upper_bounds._view_bounds(built, view, compared, CPU, coarse=False) for view in compared.weights}
    tile = upper_bounds.tile_on_device(built, compared, CPU, coarse=False)
    views = {view: bound(tile).double() for view, bound in bounds.items()}
    total = sum(compared.weights[view] / 3 * views[view] for view in views)
    thirds = double_scores.Similarity(
        {view: weight / 3 for view, weight in compared.weights.items()}, exact_match=False
    )
    assert (upper_bounds.upper_bounds(built, thirds, CPU, coarse=False)(tile) >= total).all()


def test_a_search_reads_one_tile_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, size = np.random.default_rng(4), 2**18
    passages = Encoded(
        numbers(draw, 20_000, 64),
        late=TokenRows(offsets([4] * 20_000), numbers(draw, 80_000, 32), np.empty(0, np.int32)),
    )
    folder = store(tmp_path, passages, rows=5000)  # 5 MB and 10 MB
    queries = passages.rows(0, 10).taken(range(10))
    sizes: list[int] = []
    original = upper_bounds.on_device
    monkeypatch.setattr(upper_bounds, "on_device", lambda array, on: sizes.append(array.nbytes) or original(array, on))
    limit_memory(monkeypatch, size)
    search = exact_search(folder, "sum")
    tracemalloc.start()
    try:
        search(queries, 10)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert max(sizes) <= size
    assert peak < 8 * size  # 2 MB, of 15


def test_other_passages_than_those_of_the_vectors_are_refused(tmp_path: Path) -> None:
    folder = store(tmp_path, texts(np.random.default_rng(5), 4), rows=4)
    with pytest.raises(ValueError, match="holds 4 passages' vectors, the passages are 5"):
        ExactSearch(StoredVectors(folder, "dense"), names(5))


def test_no_passages_give_empty_lists(tmp_path: Path) -> None:
    draw = np.random.default_rng(6)
    folder = store(tmp_path, texts(draw, 0), rows=1)
    for view in ("dense", "lexical", "late"):
        results = exact_search(folder, view)(texts(draw, 2), 10)
        assert [len(hits.rows) for hits in results] == [0, 0]
