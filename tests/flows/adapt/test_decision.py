"""The model that an adaptation returns: never one that was measured to be worse than the start."""

from __future__ import annotations

import random
from typing import Any

from flows.adapt.decision import decide

SETS = ("heldout", "judged")


def compared(run: str, dataset: str, difference: float, p_holm: float) -> dict[str, Any]:
    return {"run": run, "dataset": dataset, "metric": "nDCG@10", "difference": difference, "p_holm": p_holm}


def values_of(tests: list[dict[str, Any]]) -> dict[tuple[str, str], float]:
    both = {(row["dataset"], name): value for row in tests for name, value in (("bm25", 0.4), ("start", 0.5))}
    return both | {(row["dataset"], row["run"]): 0.5 + row["difference"] for row in tests}


def test_a_better_candidate_is_returned_and_the_verdict_says_by_how_much() -> None:
    tests = [compared("a", "heldout", 0.02, 0.001), compared("b", "heldout", 0.05, 0.001)]

    decision = decide(tests, values_of(tests), ["a", "b"])

    assert decision.gained
    assert decision.winner == "b"
    assert "+0.050 nDCG@10 on held-out pseudo-queries (p_holm = 0.001)" in decision.verdict
    assert decision.means == "nDCG@10 on held-out pseudo-queries: BM25 0.400, start 0.500, returned 0.550"
    assert decision.rejected == {"a": "b has a higher mean"}


def test_without_a_significant_gain_the_start_is_returned_and_said_so() -> None:
    tests = [compared("a", "heldout", 0.05, 0.06), compared("b", "heldout", -0.01, 0.001)]

    decision = decide(tests, values_of(tests), ["a", "b"])

    assert not decision.gained
    assert decision.winner == "start"
    assert decision.verdict.startswith("Nothing was gained")
    assert decision.means == "nDCG@10 on held-out pseudo-queries: BM25 0.400, start (returned) 0.500"
    assert "+0.050 nDCG@10" in decision.verdict
    assert "not significantly better" in decision.rejected["a"]
    assert "worse than the start" in decision.rejected["b"]


def test_pseudo_queries_that_are_too_easy_are_named() -> None:
    tests = [compared("a", "heldout", 0.01, 0.3)]
    judged = [*tests, compared("a", "judged", 0.01, 0.3)]
    easy = {(name, "start"): 0.96 for name in SETS}

    advice = decide(tests, values_of(tests) | easy, ["a"]).advice
    assert advice.startswith("The start has 0.960 of 1 on held-out pseudo-queries")
    assert "--judgements" in advice
    assert not decide(tests, values_of(tests), ["a"]).advice
    assert not decide(judged, values_of(judged) | easy, ["a"]).advice


def test_a_gain_on_pseudo_queries_alone_is_said_to_be_no_proof_of_one_on_real_queries() -> None:
    tests = [compared("a", "heldout", 0.05, 0.001)]
    judged = [*tests, compared("a", "judged", 0.01, 0.001)]

    assert "On real queries the gain may be smaller" in decide(tests, values_of(tests), ["a"]).advice
    assert not decide(judged, values_of(judged), ["a"]).advice


def test_where_bm25_is_better_than_the_returned_model_it_is_named() -> None:
    tests = [compared("a", "heldout", 0.05, 0.001)]

    advice = decide(tests, values_of(tests) | {("heldout", "bm25"): 0.56}, ["a"]).advice
    assert "BM25 has a higher mean than the returned model on held-out pseudo-queries (0.560)" in advice
    assert "BM25" not in decide(tests, values_of(tests) | {("heldout", "bm25"): 0.54}, ["a"]).advice
    unchanged = [compared("a", "heldout", -0.05, 0.001)]
    assert "BM25" in decide(unchanged, values_of(unchanged) | {("heldout", "bm25"): 0.51}, ["a"]).advice


def test_a_candidate_that_is_worse_on_real_queries_is_not_returned_whatever_it_gains_on_pseudo_queries() -> None:
    tests = [compared("a", "heldout", 0.2, 1e-9), compared("a", "judged", -0.001, 0.9)]

    assert not decide(tests, values_of(tests), ["a"]).gained


def test_one_of_two_sets_has_to_pass_a_test_of_half_the_level() -> None:
    tests = [compared("a", "heldout", 0.2, 0.03), compared("a", "judged", 0.1, 0.03)]

    assert not decide(tests, values_of(tests), ["a"]).gained
    assert decide(tests[:1], values_of(tests), ["a"]).gained


def test_judged_queries_choose_among_those_that_are_accepted() -> None:
    tests = [compared("a", "heldout", 0.2, 1e-9), compared("b", "heldout", 0.1, 1e-9)]
    tests += [compared("a", "judged", 0.0, 1.0), compared("b", "judged", 0.01, 0.3)]

    assert decide(tests, values_of(tests), ["a", "b"]).winner == "b"


def test_what_is_returned_is_never_below_the_start_on_any_set() -> None:
    draw = random.Random(1)
    gains = 0
    for _ in range(500):
        names = ["a", "b", "c"]
        tests = [
            compared(name, of, draw.uniform(-0.1, 0.2), draw.choice([0.001, 0.2])) for of in SETS for name in names
        ]
        decision = decide(tests, values_of(tests), names)
        chosen = [row for row in tests if row["run"] == decision.winner]
        assert all(row["difference"] >= 0 for row in chosen)
        assert not decision.gained or any(row["p_holm"] < 0.05 for row in chosen)
        assert set(decision.rejected) == set(names) - {decision.winner}
        gains += decision.gained
    assert 0 < gains < 500
