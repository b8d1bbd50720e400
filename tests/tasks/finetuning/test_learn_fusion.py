"""Learned weights of a fusion: against SciPy's optimiser, after interruptions, and where there is nothing to learn."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from storage.errors import UserError
from storage.tables import Passages, Positives, Run
from tasks.finetuning.learn_fusion import LearnFusion, learn_fusion
from tests.tasks.ranked_lists import RankedLists, in_run_order, one_score, run_rows

pytestmark = pytest.mark.usefixtures("on_one_thread")


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards, blocks and row groups so small that lists and blocks span several."""
    monkeypatch.setattr("tasks.finetuning.learn_fusion.QUERIES_PER_SHARD", 4)
    monkeypatch.setattr("tasks.retrieval.run_lists.QUERIES_PER_BLOCK", 3)
    monkeypatch.setattr("storage.rows.ROWS_PER_GROUP", 7)


def passage_rows(documents: int) -> list[dict[str, Any]]:
    """Document d<n> has the passages d<n>#0 and d<n>#1."""
    return [
        {"passage_id": f"d{d}#{n}", "doc_id": f"d{d}", "title": "", "text": "x", "start": 0, "end": 1, "num_tokens": 1}
        for d in range(documents)
        for n in range(2)
    ]


def positive_rows(pairs: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    return [{"query_id": q, "passage_id": passage, "doc_id": passage.split("#")[0]} for q, passage in pairs]


def train_runs(random: np.random.Generator, scales: Sequence[float]) -> tuple[list[RankedLists], list[tuple[str, str]]]:
    """Runs with scores correlated with relevance, each at its own scale, and one or two positives per query."""
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
            kept = in_run_order(scores)[: random.integers(1, 16)]
            if random.random() < 0.9:
                run[f"q{q}"] = kept
    return runs, pairs


def slow_loss(
    weights: Sequence[float], runs: Sequence[RankedLists], pairs: Sequence[tuple[str, str]], depth: int | None
) -> tuple[float, int]:
    """Mean cross-entropy of the retrieved positives, in loops, and their number."""
    losses = []
    for query, positive in pairs:
        beginnings = [run.get(query, [])[:depth] for run in runs]
        union = {passage for beginning in beginnings for passage, _ in beginning}
        documents = {passage.split("#")[0] for q, passage in pairs if q == query}
        rivals = [passage for passage in union if passage.split("#")[0] not in documents]
        if positive not in union or not rivals:
            continue
        logits = [
            sum(w * one_score("linear", passage, start) for w, start in zip(weights, beginnings, strict=True))
            for passage in [positive, *rivals]
        ]
        highest = max(logits)
        losses.append(highest + math.log(sum(math.exp(logit - highest) for logit in logits)) - logits[0])
    return sum(losses) / len(losses), len(losses)


@pytest.fixture
def learn(written, run_stage):
    def learned(runs: Sequence[RankedLists], pairs: Sequence[tuple[str, str]], depth: int | None, steps: int = 100):
        tables = [written(Run, run_rows(run)) for run in runs]
        positives, passages = written(Positives, positive_rows(pairs)), written(Passages, passage_rows(12))
        settings = LearnFusion(depth=depth, steps=steps)
        return run_stage(learn_fusion, runs=tables, positives=positives, passages=passages, settings=settings)

    return learned


def weights_of(learned: Any) -> list[float]:
    return json.loads((learned.path / "weights.json").read_text())["weights"]


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("scales", [(1.0, 1.0, 1.0), (0.01, 1.0, 3000.0), (2.0,)])
@pytest.mark.parametrize("depth", [None, 6])
def test_weights_equal_scipys_optimum(scales: Sequence[float], depth: int | None, learn, printed) -> None:
    runs, pairs = train_runs(np.random.default_rng(9), scales)
    rescaled = [
        {query: [(p, float(np.float32(score)) / scale) for p, score in ranked] for query, ranked in run.items()}
        for run, scale in zip(runs, scales, strict=True)
    ]
    best = minimize(lambda w: slow_loss(w, rescaled, pairs, depth)[0], np.ones(len(scales)), method="BFGS", tol=1e-7)

    result = weights_of(learn(runs, pairs, depth))

    assert np.multiply(result, scales) == pytest.approx(best.x, abs=2e-5)
    used = slow_loss(np.ones(len(scales)), runs, pairs, depth)[1]
    assert 0 < used < len(pairs)
    assert any(line.startswith(f"{len(pairs) - used} of {len(pairs)} positives are in no list") for line in printed)


@pytest.mark.usefixtures("small_parts")
def test_learning_resumes_from_finished_shards_with_equal_bytes(written, tmp_path: Path) -> None:
    runs, pairs = train_runs(np.random.default_rng(10), (1.0, 5.0))
    inputs = ([written(Run, run_rows(run)) for run in runs], written(Positives, positive_rows(pairs)))
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


def test_other_passages_of_relevant_documents_are_no_negatives(learn) -> None:
    # The first run puts another passage of the relevant documents above the positive; that must not speak against it.
    run = {"q": [("d0#1", 9.0), ("d0#0", 3.0), ("d1#0", 2.0), ("d2#0", 1.0)], "r": [("d3#0", 2.0), ("d1#0", 1.5)]}
    without = {**run, "q": run["q"][1:]}
    pairs = [("q", "d0#0"), ("r", "d1#0")]

    assert weights_of(learn([run], pairs, None)) == weights_of(learn([without], pairs, None))


def test_runs_without_positives_are_refused(learn) -> None:
    run = {"q": [("d0#0", 1.0), ("d0#1", 0.5)], "r": [("d1#0", 1.0)]}

    with pytest.raises(UserError, match="no list has a positive"):
        learn([run], [("q", "d5#0"), ("s", "d1#0")], None)
    with pytest.raises(UserError, match="no list has a positive"):
        learn([run], [("q", "d0#0")], None)  # found, but there is nothing else to tell it from


def test_separable_scores_give_finite_weights(learn) -> None:
    run = {f"q{n}": [("d0#0", 2.0), ("d1#0", 1.0)] for n in range(5)}
    (weight,) = weights_of(learn([run], [(f"q{n}", "d0#0") for n in range(5)], None))

    assert weight > 1
    assert math.isfinite(weight)
