"""Fusion against slow references written from the formulas, and what must not change it."""

import json
import logging
import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from storage.errors import UserError
from storage.rows import read_rows
from storage.tables import Passages, Positives, Run
from tasks.finetuning.learn_fusion import LearnFusion, learn_fusion
from tasks.retrieval.fuse import Fusion, fuse

Found = Mapping[str, Sequence[tuple[str, float]]]
"""A run: each query's passages and scores, best first."""

KINDS = ("sum", "norm_sum", "norm_max", "sum_rr", "max_rr")


def in_order(scores: Mapping[str, float]) -> list[tuple[str, float]]:
    """trec_eval's order: float32 scores falling, equal ones by descending id."""
    found = [(passage, float(np.float32(score))) for passage, score in scores.items()]
    return sorted(found, key=lambda each: (each[1], each[0].encode()), reverse=True)


def drawn(random: np.random.Generator, *, queries: int = 9, passages: int = 25, longest: int = 18) -> dict[str, Any]:
    """A run of some of the queries in an order of its own, with short lists, equal scores and lists of one score."""
    found = {}
    for query in random.permutation(queries)[: queries - 2].tolist():
        chosen = random.choice(passages, random.integers(1, longest + 1), replace=False).tolist()
        scores = random.normal(size=len(chosen)) * 10.0 ** random.integers(-2, 3)
        if query % 3 == 0:
            scores = np.round(scores)
        if query % 4 == 0:
            scores[:] = scores[0]
        found[f"q{query}"] = in_order({f"p{n}é": score for n, score in zip(chosen, scores, strict=True)})
    return found


def rows(found: Found) -> list[dict[str, Any]]:
    return [
        {"query_id": query, "passage_id": passage, "view": "dense", "rank": rank, "score": score}
        for query, ranked in found.items()
        for rank, (passage, score) in enumerate(ranked, start=1)
    ]


def read(run: Any) -> dict[str, list[tuple[str, float]]]:
    """A fused run, whose views and ranks are as they should be."""
    found = {}
    for query, ranked in groupby(read_rows(run, Run), key=lambda row: row["query_id"]):
        ranked = list(ranked)
        assert query not in found
        assert [row["rank"] for row in ranked] == list(range(1, len(ranked) + 1))
        assert {row["view"] for row in ranked} == {"fused"}
        found[query] = [(row["passage_id"], row["score"]) for row in ranked]
    return found


def one_score(kind: str, passage: str, beginning: Sequence[tuple[str, float]]) -> float:
    """What one run says of a passage, from the beginning of its list."""
    scores, missing = dict(beginning), passage not in dict(beginning)
    if not beginning:
        return 0.0
    if kind in ("sum", "linear"):
        return beginning[-1][1] if missing else scores[passage]
    if missing:
        return 0.0
    if kind.endswith("rr"):
        return 1 / (1 + [name for name, _ in beginning].index(passage))
    low, high = min(scores.values()), max(scores.values())
    return 1.0 if low == high else (scores[passage] - low) / (high - low)


def slow(runs: Sequence[Found], kind: str, depth: int | None, weights: Sequence[float] | None = None) -> Found:
    """CAME, equation 12 and section 5.3, in Python's numbers."""
    fused = {}
    for query in dict.fromkeys(query for run in runs for query in run):
        beginnings = [run.get(query, [])[:depth] for run in runs]
        totals = {}
        for passage in {passage for beginning in beginnings for passage, _ in beginning}:
            said = [one_score(kind, passage, beginning) for beginning in beginnings]
            if weights:
                said = [weight * score for weight, score in zip(weights, said, strict=True)]
            totals[passage] = max(said) if "max" in kind else sum(said)
        fused[query] = in_order(totals)[:depth]
    return fused


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards, blocks and row groups so small that lists and blocks lie in several."""
    monkeypatch.setattr("tasks.retrieval.fuse.QUERIES_PER_SHARD", 4)
    monkeypatch.setattr("tasks.finetuning.learn_fusion.QUERIES_PER_SHARD", 4)
    monkeypatch.setattr("tasks.retrieval.run_lists.QUERIES_PER_BLOCK", 3)
    monkeypatch.setattr("storage.rows.ROWS_PER_GROUP", 7)


@pytest.fixture
def fused(written, made):
    def run(
        runs: Sequence[Found], kind: str, depth: int | None, weights: Sequence[float] | None = None
    ) -> dict[str, list[tuple[str, float]]]:
        tables = [written(Run, rows(each)) for each in runs]
        learned = None
        if weights is not None:
            learned = written(Run, [])
            (learned.path / "weights.json").write_text(json.dumps({"weights": weights}))
        return read(made(fuse, runs=tables, weights=learned, settings=Fusion(kind=kind, depth=depth)))

    return run


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("depth", [None, 1, 5, 40])
@pytest.mark.parametrize("kind", [*KINDS, "linear"])
def test_fusion_is_the_formula(kind: str, depth: int | None, fused) -> None:
    random = np.random.default_rng(1)
    runs = [drawn(random) for _ in range(3)]
    weights = [0.3, -1.7, 2.9] if kind == "linear" else None

    found, expected = fused(runs, kind, depth, weights), slow(runs, kind, depth, weights)

    assert list(found) == list(expected)  # in the order of the first run, then what only others have
    assert found == expected


def test_by_hand(fused) -> None:
    one = {"q": [("a", 9.0), ("b", 5.0), ("c", 1.0)]}
    other = {"q": [("d", 0.75), ("b", 0.5)]}

    assert fused([one, other], "sum", None) == {"q": [("a", 9.5), ("b", 5.5), ("d", 1.75), ("c", 1.5)]}
    # Cut to two, a run's last is its second: c is in no list, d gets 5 of the first run.
    assert fused([one, other], "sum", 2) == {"q": [("a", 9.5), ("d", 5.75)]}
    assert fused([one, other], "norm_sum", None) == {"q": [("d", 1.0), ("a", 1.0), ("b", 0.5), ("c", 0.0)]}
    assert fused([one, other], "max_rr", None)["q"][:3] == [("d", 1.0), ("a", 1.0), ("b", 0.5)]
    assert fused([one, other], "sum_rr", 2) == {"q": [("d", 1.0), ("b", 1.0)]}  # a has 1 too, and the least id


@pytest.mark.parametrize("kind", ["norm_sum", "norm_max"])
def test_a_list_of_one_passage_or_of_equal_scores_is_all_best(kind: str, fused) -> None:
    assert fused([{"q": [("a", -3.0)]}], kind, None) == {"q": [("a", 1.0)]}
    assert fused([{"q": [("b", 2.0), ("a", 2.0)]}], kind, None) == {"q": [("b", 1.0), ("a", 1.0)]}


def test_the_order_of_ties_is_that_of_the_scores_as_written(fused) -> None:
    # In double precision a has 1 + 2^-40 and b has 1; in single precision both have 1.
    runs = [{"q": [("a", 1.0), ("b", 0.0)]}, {"q": [("b", 1.0), ("a", 2.0**-40)]}]

    assert fused(runs, "sum", None) == {"q": [("b", 1.0), ("a", 1.0)]}


@pytest.mark.parametrize("kind", ["sum", "sum_rr", "max_rr"])
def test_one_run_keeps_its_order(kind: str, fused) -> None:
    run = drawn(np.random.default_rng(3))

    found = fused([run], kind, None)

    assert {q: [p for p, _ in each] for q, each in found.items()} == {q: [p for p, _ in run[q]] for q in run}
    assert (found == run) == (kind == "sum")


def test_a_linear_fusion_of_equal_weights_is_the_sum(fused) -> None:
    random = np.random.default_rng(4)
    runs = [drawn(random) for _ in range(3)]

    assert fused(runs, "linear", 8, [1, 1, 1]) == fused(runs, "sum", 8)


def whole_numbers(random: np.random.Generator) -> list[dict[str, Any]]:
    """Three runs of all queries, whose scores single precision adds without rounding."""
    return [
        {
            f"q{q}": in_order(
                {f"p{n}": float(random.integers(-999, 999)) for n in random.choice(40, 20, replace=False)}
            )
            for q in range(6)
        }
        for _ in range(3)
    ]


def test_a_constant_of_a_query_and_a_run_changes_no_order_of_sums(fused) -> None:
    random = np.random.default_rng(5)
    runs = whole_numbers(random)
    moved, by = [], dict.fromkeys(runs[0], 0.0)
    for run in runs:
        constants = {query: float(random.integers(-9999, 9999)) for query in run}
        moved.append({query: [(p, score + constants[query]) for p, score in run[query]] for query in run})
        by = {query: by[query] + constants[query] for query in by}

    before, after = fused(runs, "sum", 12), fused(moved, "sum", 12)

    assert after == {query: [(p, score + by[query]) for p, score in before[query]] for query in before}


def test_the_sum_is_the_cheap_form(fused) -> None:
    runs, depth = whole_numbers(np.random.default_rng(6)), 9
    expected = {}
    for query in runs[0]:
        beginnings = [run[query][:depth] for run in runs]
        floor = sum(beginning[-1][1] for beginning in beginnings)
        totals: dict[str, float] = {}
        for beginning in beginnings:
            for passage, score in beginning:
                totals[passage] = totals.get(passage, floor) + score - beginning[-1][1]
        expected[query] = in_order(totals)[:depth]

    assert fused(runs, "sum", depth) == expected


def test_what_a_run_lacks_has_the_score_of_its_last(fused) -> None:
    runs, depth = whole_numbers(np.random.default_rng(7)), 9
    for number, run in enumerate(runs):
        # The others say 0 of everything, so a fused score is what this run is taken to say.
        silent = [{query: [(p, 0.0) for p, _ in each[query][:depth]] for query in each} for each in runs]
        silent[number] = {query: run[query][:depth] for query in run}
        for query, ranked in fused(silent, "sum", None).items():
            beginning = dict(run[query][:depth])
            missing = [score for p, score in ranked if p not in beginning]
            assert missing
            assert set(missing) == {min(beginning.values())}


def test_runs_without_rows(fused, written, made) -> None:
    run = {"q": [("b", 2.0), ("a", 1.0)]}

    assert fused([{}, run], "sum", None) == run
    assert fused([{}, {}], "sum", 3) == {}
    assert fused([{"r": [("a", 5.0)]}, run], "norm_sum", None) == {"r": [("a", 1.0)], "q": [("b", 1.0), ("a", 0.0)]}


@pytest.mark.usefixtures("small_parts")
def test_finished_shards_are_kept_and_the_rest_is_made_the_same(written, tmp_path: Path) -> None:
    random = np.random.default_rng(8)
    runs = [written(Run, rows(drawn(random))) for _ in range(2)]
    settings = Fusion(kind="sum", depth=5)
    fuse.body(tmp_path, runs, None, settings=settings)
    parts = sorted(tmp_path.glob("*.parquet"))
    assert len(parts) == 3
    before = {part: (part.read_bytes(), part.stat().st_mtime_ns) for part in parts}
    parts[1].unlink()

    fuse.body(tmp_path, runs, None, settings=settings)

    assert {part: part.read_bytes() for part in parts} == {part: content for part, (content, _) in before.items()}
    assert [part for part in parts if part.stat().st_mtime_ns != before[part][1]] == [parts[1]]


def test_weights_that_do_not_fit_are_refused(fused) -> None:
    run = {"q": [("a", 1.0)]}

    with pytest.raises(UserError, match="linear"):
        fused([run], "linear", None)
    with pytest.raises(UserError, match="sum"):
        fused([run], "sum", None, [1.0])
    with pytest.raises(UserError, match="2 weights for 1 runs"):
        fused([run], "linear", None, [1.0, 2.0])


# Learning: documents d<n> have the passages d<n>#0 and d<n>#1.


def passage_rows(documents: int) -> list[dict[str, Any]]:
    return [
        {"passage_id": f"d{d}#{n}", "doc_id": f"d{d}", "title": "", "text": "x", "start": 0, "end": 1, "num_tokens": 1}
        for d in range(documents)
        for n in range(2)
    ]


def positive_rows(pairs: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    return [{"query_id": q, "passage_id": passage, "doc_id": passage.split("#")[0]} for q, passage in pairs]


def train_runs(random: np.random.Generator, scales: Sequence[float]) -> tuple[list[Found], list[tuple[str, str]]]:
    """Runs that know something of what is relevant, each to its own scale, and one or two positives a query."""
    runs: list[dict[str, Any]] = [{} for _ in scales]
    pairs: list[tuple[str, str]] = []
    for q in range(30):
        wanted = random.choice(12, 1 + q % 2, replace=False).tolist()
        pairs += [(f"q{q}", f"d{d}#{random.integers(2)}") for d in wanted]
        for run, scale in zip(runs, scales, strict=True):
            scores = {
                f"d{d}#{n}": scale * (random.normal() + (0.8 if d in wanted else 0))
                for d in range(12)
                for n in range(2)
            }
            kept = in_order(scores)[: random.integers(1, 16)]
            if random.random() < 0.9:
                run[f"q{q}"] = kept
    return runs, pairs


def slow_loss(
    weights: Sequence[float], runs: Sequence[Found], pairs: Sequence[tuple[str, str]], depth: int | None
) -> tuple[float, int]:
    """Mean cross-entropy of the positives that were found, in loops; and how many these are."""
    losses = []
    for query, positive in pairs:
        beginnings = [run.get(query, [])[:depth] for run in runs]
        union = {passage for beginning in beginnings for passage, _ in beginning}
        documents = {passage.split("#")[0] for q, passage in pairs if q == query}
        rivals = [passage for passage in union if passage.split("#")[0] not in documents]
        if positive not in union or not rivals:
            continue
        logits = [
            sum(w * one_score("linear", passage, each) for w, each in zip(weights, beginnings, strict=True))
            for passage in [positive, *rivals]
        ]
        highest = max(logits)
        losses.append(highest + math.log(sum(math.exp(logit - highest) for logit in logits)) - logits[0])
    return sum(losses) / len(losses), len(losses)


@pytest.fixture
def learn(written, made):
    def learned(runs: Sequence[Found], pairs: Sequence[tuple[str, str]], depth: int | None, steps: int = 100):
        tables = [written(Run, rows(run)) for run in runs]
        positives, passages = written(Positives, positive_rows(pairs)), written(Passages, passage_rows(12))
        settings = LearnFusion(depth=depth, steps=steps)
        return made(learn_fusion, runs=tables, positives=positives, passages=passages, settings=settings)

    return learned


def weights_of(learned: Any) -> list[float]:
    return json.loads((learned.path / "weights.json").read_text())["weights"]


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("scales", [(1.0, 1.0, 1.0), (0.01, 1.0, 3000.0), (2.0,)])
@pytest.mark.parametrize("depth", [None, 6])
def test_the_weights_are_those_that_scipy_finds(scales: Sequence[float], depth: int | None, learn, caplog) -> None:
    runs, pairs = train_runs(np.random.default_rng(9), scales)
    rescaled = [
        {query: [(p, float(np.float32(score)) / scale) for p, score in each] for query, each in run.items()}
        for run, scale in zip(runs, scales, strict=True)
    ]
    best = minimize(lambda w: slow_loss(w, rescaled, pairs, depth)[0], np.ones(len(scales)), method="BFGS", tol=1e-7)

    with caplog.at_level(logging.INFO, logger="tasks.finetuning.learn_fusion"):
        found = weights_of(learn(runs, pairs, depth))

    assert np.multiply(found, scales) == pytest.approx(best.x, abs=2e-5)
    used = slow_loss(np.ones(len(scales)), runs, pairs, depth)[1]
    assert 0 < used < len(pairs)
    assert f"{used} positives to learn from, {len(pairs) - used} left out" in caplog.text


@pytest.mark.usefixtures("small_parts")
def test_learning_goes_on_from_finished_shards_to_the_same_bytes(written, tmp_path: Path) -> None:
    runs, pairs = train_runs(np.random.default_rng(10), (1.0, 5.0))
    inputs = ([written(Run, rows(run)) for run in runs], written(Positives, positive_rows(pairs)))
    passages, settings = written(Passages, passage_rows(12)), LearnFusion(depth=None, steps=100)
    learn_fusion.body(tmp_path, *inputs, passages, settings=settings)
    before = (tmp_path / "weights.json").read_bytes()
    shards = sorted((tmp_path / "scratch").glob("*.npz"))
    written_at = [shard.stat().st_mtime_ns for shard in shards]
    shards[2].unlink()

    learn_fusion.body(tmp_path, *inputs, passages, settings=settings)

    assert (tmp_path / "weights.json").read_bytes() == before
    again = [shard.stat().st_mtime_ns for shard in shards]
    assert [n for n in range(len(shards)) if again[n] != written_at[n]] == [2]


def test_other_passages_of_relevant_documents_do_not_count(learn) -> None:
    # The first run puts another passage of the relevant documents above the positive; that must not speak against it.
    run = {"q": [("d0#1", 9.0), ("d0#0", 3.0), ("d1#0", 2.0), ("d2#0", 1.0)], "r": [("d3#0", 2.0), ("d1#0", 1.5)]}
    without = {**run, "q": run["q"][1:]}
    pairs = [("q", "d0#0"), ("r", "d1#0")]

    assert weights_of(learn([run], pairs, None)) == weights_of(learn([without], pairs, None))


def test_nothing_to_learn_from_is_said(learn) -> None:
    run = {"q": [("d0#0", 1.0), ("d0#1", 0.5)], "r": [("d1#0", 1.0)]}

    with pytest.raises(UserError, match="no run found any positive"):
        learn([run], [("q", "d5#0"), ("s", "d1#0")], None)
    with pytest.raises(UserError, match="no run found any positive"):
        learn([run], [("q", "d0#0")], None)  # found, but there is nothing else to tell it from


def test_separable_scores_give_finite_weights(learn) -> None:
    run = {f"q{n}": [("d0#0", 2.0), ("d1#0", 1.0)] for n in range(5)}
    (weight,) = weights_of(learn([run], [(f"q{n}", "d0#0") for n in range(5)], None))

    assert weight > 1
    assert math.isfinite(weight)
