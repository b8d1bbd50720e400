"""Overlap of runs against the papers' definitions in loops, and known values."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from storage.rows import read_rows
from storage.tables import Overlap, Run
from tasks.evaluation.overlap import Overlapping, overlap

Found = Mapping[str, Sequence[str]]
"""A run: each query's passages, best first."""


@pytest.fixture
def compared(written, run_stage):
    def rows(results: Found) -> list[dict[str, Any]]:
        return [
            {"query_id": query, "passage_id": passage, "view": "dense", "rank": rank, "score": -rank}
            for query, ranked in results.items()
            for rank, passage in enumerate(ranked, start=1)
        ]

    def compare(*runs: Found, depth: int = 1000, p: float = 0.9) -> list[dict[str, Any]]:
        settings = Overlapping(names=[f"run {n}" for n in range(len(runs))], depth=depth, p=p)
        return list(
            read_rows(run_stage(overlap, [written(Run, rows(run)) for run in runs], settings=settings), Overlap)
        )

    return compare


def reference_rbo(one: Sequence[str], other: Sequence[str], p: float) -> float:
    """Webber et al. 2010, equation 32, term by term."""
    short, long = sorted((one, other), key=len)
    s, l = len(short), len(long)  # noqa: E741
    x = [len(set(short[:d]) & set(long[:d])) for d in range(l + 1)]
    first = sum(x[d] / d * p**d for d in range(1, l + 1))
    second = sum(x[s] * (d - s) / (s * d) * p**d for d in range(s + 1, l + 1))
    return (1 - p) / p * (first + second) + ((x[l] - x[s]) / l + x[s] / s) * p**l


def reference_extrapolation(one: Sequence[str], other: Sequence[str], p: float) -> float:
    """The sum behind equation 32: (1 - p) * sum of p^(d-1) * agreement at d, without end.

    Below the short list's end its agreement is held (Webber et al., section 4.4); below the long one's, the last is.
    """
    short, long = sorted((one, other), key=len)
    s, l = len(short), len(long)  # noqa: E741
    total, agreed = 0.0, 0.0
    for d in range(1, 3000):
        common = len(set(short) & set(long[:d])) if d > s else len(set(short[:d]) & set(long[:d]))
        if d <= s:
            agreed = common / d
        elif d <= l:
            held = len(set(short) & set(long[:s])) / s
            agreed = (common + held * (d - s)) / d
        total += (1 - p) * p ** (d - 1) * agreed
    return total


def slow(one: Found, other: Found, depth: int, p: float) -> dict[str, float]:
    both = [(one[query][:depth], other[query][:depth]) for query in one if query in other]
    values: dict[str, list[float]] = {"rbo": [reference_rbo(a, b, p) for a, b in both]}
    for k in (10, 100, 1000):
        values[f"overlap_{k}"] = [len(set(a[:k]) & set(b[:k])) / min(k, max(len(a), len(b))) for a, b in both]
    return {"queries": len(both)} | {name: math.fsum(value) / len(value) for name, value in values.items()}


def drawn(random: np.random.Generator, longest: int, passages: int) -> dict[str, list[str]]:
    return {
        f"q{q}": [f"p{n}" for n in random.choice(passages, random.integers(1, longest + 1), replace=False).tolist()]
        for q in random.permutation(9)[:7].tolist()
    }


@pytest.mark.parametrize("p", [0.5, 0.9, 0.99])
@pytest.mark.parametrize(
    ("longest", "passages", "depth"), [(8, 12, 1000), (30, 60, 20), (300, 400, 1000), (1500, 1600, 1200)]
)
def test_overlaps_equal_the_definition(
    longest: int, passages: int, depth: int, p: float, compared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.retrieval.run_lists.QUERIES_PER_BLOCK", 2)
    random = np.random.default_rng(longest)
    runs = [drawn(random, longest, passages) for _ in range(3)]

    results = compared(*runs, depth=depth, p=p)

    assert [(row.pop("run_a"), row.pop("run_b")) for row in results] == [
        ("run 0", "run 1"), ("run 0", "run 2"), ("run 1", "run 2"),
    ]  # fmt: skip
    for row, (a, b) in zip(results, [(0, 1), (0, 2), (1, 2)], strict=True):
        assert row == pytest.approx(slow(runs[a], runs[b], depth, p), rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("p", [0.5, 0.9, 0.98])
def test_rbo_equals_its_infinite_extrapolation(p: float, compared) -> None:
    random = np.random.default_rng(1)
    for _ in range(20):
        one, other = (next(iter(drawn(random, 15, 20).values())) for _ in range(2))
        (row,) = compared({"q": one}, {"q": other}, p=p)
        assert row["rbo"] == pytest.approx(reference_extrapolation(one, other, p), abs=1e-12)


@pytest.mark.parametrize("length", [1, 3, 10, 1000])
def test_equal_lists_have_overlap_one_and_disjoint_ones_zero(length: int, compared) -> None:
    one, other = ([f"{name}{n}" for n in range(length)] for name in "ab")
    names = ("overlap_10", "overlap_100", "overlap_1000", "rbo")

    (same,) = compared({"q": one}, {"q": one}, p=0.99)
    (apart,) = compared({"q": one}, {"q": other}, p=0.99)

    assert [same[name] for name in names] == pytest.approx([1.0] * 4, abs=1e-12)
    assert [apart[name] for name in names] == [0.0] * 4


def test_by_hand(compared) -> None:
    # Agreements of 1/1, 1/2, 2/3: with p = 1/2, (1/2 + 1/8 + 2/24) and the last 2/3 for the remaining 1/8.
    (row,) = compared({"q": ["a", "b", "c"]}, {"q": ["a", "c", "d"]}, p=0.5)
    assert row["rbo"] == pytest.approx(1 / 2 + 1 / 8 + 2 / 24 + 2 / 24)
    assert row["overlap_10"] == pytest.approx(2 / 3)

    # A list that stops where it agrees wholly with the longer one is taken to go on so.
    (row,) = compared({"q": ["a", "b"]}, {"q": ["a", "b", "c", "d"]}, p=0.5)
    assert row["rbo"] == pytest.approx(1.0)
    assert row["overlap_10"] == 0.5  # of the longer list's length


def test_only_the_first_depth_passages_are_compared(compared) -> None:
    one, other = {"q": ["a", "b", "c"]}, {"q": ["a", "b", "d"]}

    (row,) = compared(one, other, depth=2)

    assert row["rbo"] == pytest.approx(1.0)
    assert row["overlap_1000"] == 1.0


def test_only_queries_of_both_runs_count(compared) -> None:
    one, other = {"q": ["a"], "r": ["a"], "s": ["x"]}, {"s": ["y"], "t": ["a"], "q": ["a"]}

    (row,) = compared(one, other)
    (none,) = compared({"q": ["a"]}, {"r": ["a"]})

    assert (row["queries"], row["overlap_10"]) == (2, 0.5)
    assert none == {"run_a": "run 0", "run_b": "run 1", "queries": 0} | dict.fromkeys(
        ("overlap_10", "overlap_100", "overlap_1000", "rbo"), 0.0
    )
