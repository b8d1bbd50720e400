"""Fusion against slow references written from the formulas, and what must not change it."""

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.errors import UserError
from storage.rows import read_rows
from storage.tables import Run
from tasks.retrieval.fuse import Fusion, fuse
from tests.tasks.ranked_lists import RankedLists, in_run_order, one_score, run_rows

pytestmark = pytest.mark.usefixtures("on_one_thread")
KINDS = ("sum", "norm_sum", "norm_max", "sum_rr", "max_rr")


def random_run(
    random: np.random.Generator, *, queries: int = 9, passages: int = 25, longest: int = 18
) -> dict[str, Any]:
    """A run of some of the queries in an order of its own, with short lists, equal scores and lists of one score."""
    results = {}
    for query in random.permutation(queries)[: queries - 2].tolist():
        chosen = random.choice(passages, random.integers(1, longest + 1), replace=False).tolist()
        scores = random.normal(size=len(chosen)) * 10.0 ** random.integers(-2, 3)
        if query % 3 == 0:
            scores = np.round(scores)
        if query % 4 == 0:
            scores[:] = scores[0]
        results[f"q{query}"] = in_run_order({f"p{n}é": score for n, score in zip(chosen, scores, strict=True)})
    return results


def read(run: Any) -> dict[str, list[tuple[str, float]]]:
    """A fused run, whose views and ranks are as they should be."""
    results = {}
    for query, ranked in groupby(read_rows(run, Run), key=lambda row: row["query_id"]):
        ranked = list(ranked)
        assert query not in results
        assert [row["rank"] for row in ranked] == list(range(1, len(ranked) + 1))
        assert {row["view"] for row in ranked} == {"fused"}
        results[query] = [(row["passage_id"], row["score"]) for row in ranked]
    return results


def reference_fusion(
    runs: Sequence[RankedLists], kind: str, depth: int | None, weights: Sequence[float] | None = None
) -> RankedLists:
    """CAME, equation 12 and section 5.3, in Python's numbers."""
    fused = {}
    for query in dict.fromkeys(query for run in runs for query in run):
        beginnings = [run.get(query, [])[:depth] for run in runs]
        totals = {}
        for passage in {passage for beginning in beginnings for passage, _ in beginning}:
            values = [one_score(kind, passage, beginning) for beginning in beginnings]
            if weights:
                values = [weight * score for weight, score in zip(weights, values, strict=True)]
            totals[passage] = max(values) if "max" in kind else sum(values)
        fused[query] = in_run_order(totals)[:depth]
    return fused


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards, blocks and row groups so small that lists and blocks span several."""
    monkeypatch.setattr("tasks.retrieval.fuse.QUERIES_PER_SHARD", 4)
    monkeypatch.setattr("tasks.retrieval.run_lists.QUERIES_PER_BLOCK", 3)
    monkeypatch.setattr("storage.rows.ROWS_PER_GROUP", 7)


@pytest.fixture
def fused(written, run_stage):
    def run(
        runs: Sequence[RankedLists], kind: str, depth: int | None, weights: Sequence[float] | None = None
    ) -> dict[str, list[tuple[str, float]]]:
        tables = [written(Run, run_rows(run)) for run in runs]
        learned = None
        if weights is not None:
            learned = written(Run, [])
            (learned.path / "weights.json").write_text(json.dumps({"weights": weights}))
        return read(run_stage(fuse, runs=tables, weights=learned, settings=Fusion(kind=kind, depth=depth)))

    return run


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("depth", [None, 1, 5, 40])
@pytest.mark.parametrize("kind", [*KINDS, "linear"])
def test_fusion_equals_the_reference(kind: str, depth: int | None, fused) -> None:
    random = np.random.default_rng(1)
    runs = [random_run(random) for _ in range(3)]
    weights = [0.3, -1.7, 2.9] if kind == "linear" else None

    result, expected = fused(runs, kind, depth, weights), reference_fusion(runs, kind, depth, weights)

    assert list(result) == list(expected)  # in the order of the first run, then what only others have
    assert result == expected


def test_fusion_of_two_small_runs(fused) -> None:
    one = {"q": [("a", 9.0), ("b", 5.0), ("c", 1.0)]}
    other = {"q": [("d", 0.75), ("b", 0.5)]}

    assert fused([one, other], "sum", None) == {"q": [("a", 9.5), ("b", 5.5), ("d", 1.75), ("c", 1.5)]}
    # Cut to two, a run's last is its second: c is in no list, d gets 5 of the first run.
    assert fused([one, other], "sum", 2) == {"q": [("a", 9.5), ("d", 5.75)]}
    assert fused([one, other], "norm_sum", None) == {"q": [("d", 1.0), ("a", 1.0), ("b", 0.5), ("c", 0.0)]}
    assert fused([one, other], "max_rr", None)["q"][:3] == [("d", 1.0), ("a", 1.0), ("b", 0.5)]
    assert fused([one, other], "sum_rr", 2) == {"q": [("d", 1.0), ("b", 1.0)]}  # a has 1 too, and the least id


@pytest.mark.parametrize("kind", ["norm_sum", "norm_max"])
def test_normalised_scores_of_equal_scores_are_one(kind: str, fused) -> None:
    assert fused([{"q": [("a", -3.0)]}], kind, None) == {"q": [("a", 1.0)]}
    assert fused([{"q": [("b", 2.0), ("a", 2.0)]}], kind, None) == {"q": [("b", 1.0), ("a", 1.0)]}


def test_ties_are_those_of_float32_scores(fused) -> None:
    # In double precision a has 1 + 2^-40 and b has 1; in single precision both have 1.
    runs = [{"q": [("a", 1.0), ("b", 0.0)]}, {"q": [("b", 1.0), ("a", 2.0**-40)]}]

    assert fused(runs, "sum", None) == {"q": [("b", 1.0), ("a", 1.0)]}


@pytest.mark.parametrize("kind", ["sum", "sum_rr", "max_rr"])
def test_one_run_keeps_its_order(kind: str, fused) -> None:
    run = random_run(np.random.default_rng(3))

    results = fused([run], kind, None)

    assert {q: [p for p, _ in ranked] for q, ranked in results.items()} == {q: [p for p, _ in run[q]] for q in run}
    assert (results == run) == (kind == "sum")


def test_a_linear_fusion_of_equal_weights_is_the_sum(fused) -> None:
    random = np.random.default_rng(4)
    runs = [random_run(random) for _ in range(3)]

    assert fused(runs, "linear", 8, [1, 1, 1]) == fused(runs, "sum", 8)


def whole_numbers(random: np.random.Generator) -> list[dict[str, Any]]:
    """Three runs of all queries, whose scores single precision adds without rounding."""
    return [
        {
            f"q{q}": in_run_order(
                {f"p{n}": float(random.integers(-999, 999)) for n in random.choice(40, 20, replace=False)}
            )
            for q in range(6)
        }
        for _ in range(3)
    ]


def test_a_constant_per_query_and_run_keeps_the_order_of_sums(fused) -> None:
    random = np.random.default_rng(5)
    runs = whole_numbers(random)
    moved, by = [], dict.fromkeys(runs[0], 0.0)
    for run in runs:
        constants = {query: float(random.integers(-9999, 9999)) for query in run}
        moved.append({query: [(p, score + constants[query]) for p, score in run[query]] for query in run})
        by = {query: by[query] + constants[query] for query in by}

    before, after = fused(runs, "sum", 12), fused(moved, "sum", 12)

    assert after == {query: [(p, score + by[query]) for p, score in before[query]] for query in before}


def test_the_sum_equals_its_incremental_form(fused) -> None:
    runs, depth = whole_numbers(np.random.default_rng(6)), 9
    expected = {}
    for query in runs[0]:
        beginnings = [run[query][:depth] for run in runs]
        floor = sum(beginning[-1][1] for beginning in beginnings)
        totals: dict[str, float] = {}
        for beginning in beginnings:
            for passage, score in beginning:
                totals[passage] = totals.get(passage, floor) + score - beginning[-1][1]
        expected[query] = in_run_order(totals)[:depth]

    assert fused(runs, "sum", depth) == expected


def test_missing_passages_get_the_runs_last_score(fused) -> None:
    runs, depth = whole_numbers(np.random.default_rng(7)), 9
    for number, run in enumerate(runs):
        # The others say 0 of everything, so a fused score is what this run is taken to say.
        silent = [{query: [(p, 0.0) for p, _ in run[query][:depth]] for query in run} for run in runs]
        silent[number] = {query: run[query][:depth] for query in run}
        for query, ranked in fused(silent, "sum", None).items():
            beginning = dict(run[query][:depth])
            missing = [score for p, score in ranked if p not in beginning]
            assert missing
            assert set(missing) == {min(beginning.values())}


def test_runs_without_rows(fused, written, run_stage) -> None:
    run = {"q": [("b", 2.0), ("a", 1.0)]}

    assert fused([{}, run], "sum", None) == run
    assert fused([{}, {}], "sum", 3) == {}
    assert fused([{"r": [("a", 5.0)]}, run], "norm_sum", None) == {"r": [("a", 1.0)], "q": [("b", 1.0), ("a", 0.0)]}


@pytest.mark.usefixtures("small_parts")
def test_fusion_resumes_from_finished_shards_with_equal_bytes(written, tmp_path: Path) -> None:
    random = np.random.default_rng(8)
    runs = [written(Run, run_rows(random_run(random))) for _ in range(2)]
    settings = Fusion(kind="sum", depth=5)
    fuse.body(tmp_path, runs, None, settings=settings)
    parts = sorted(tmp_path.glob("*.parquet"))
    assert len(parts) == 3
    before = {part: (part.read_bytes(), part.stat().st_mtime_ns) for part in parts}
    parts[1].unlink()

    fuse.body(tmp_path, runs, None, settings=settings)

    assert {part: part.read_bytes() for part in parts} == {part: content for part, (content, _) in before.items()}
    assert [part for part in parts if part.stat().st_mtime_ns != before[part][1]] == [parts[1]]


def test_wrong_weights_are_refused(fused) -> None:
    run = {"q": [("a", 1.0)]}

    with pytest.raises(UserError, match="linear"):
        fused([run], "linear", None)
    with pytest.raises(UserError, match="sum"):
        fused([run], "sum", None, [1.0])
    with pytest.raises(UserError, match="2 weights for 1 runs"):
        fused([run], "linear", None, [1.0, 2.0])
