"""Divergences, cosines, probe and MMD against their formulas in loops, and clouds whose answer is known."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from tasks.analyses.measures import embedding_space as space


@pytest.fixture
def draw() -> np.random.Generator:
    return np.random.default_rng(7)


def clouds(draw: np.random.Generator, number: int, apart: float, width: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of unit vectors, queries moved along the first axis."""
    base = draw.normal(size=(number, width))
    moved = base + draw.normal(size=(number, width)) * 0.5
    moved[:, 0] += apart
    return space.unit(moved), space.unit(base)


def slow_log_density(points: np.ndarray, point: np.ndarray) -> float:
    """Equation 16 with Scott's bandwidth, a point at a time."""
    number = len(points)
    covariance = np.cov(points.T) * number ** (-2 / 6)
    inverse, scale = np.linalg.inv(covariance), 2 * math.pi * math.sqrt(np.linalg.det(covariance))
    return math.log(sum(math.exp(-0.5 * (point - p) @ inverse @ (point - p)) / scale for p in points) / number)


def slow_kl(p: Sequence[float], q: Sequence[float]) -> float:
    p, q = [value / sum(p) for value in p], [value / sum(q) for value in q]
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def slow_js(p: Sequence[float], q: Sequence[float]) -> float:
    p, q = [value / sum(p) for value in p], [value / sum(q) for value in q]
    middle = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
    return slow_kl(p, middle) / 2 + slow_kl(q, middle) / 2


def test_distances_are_one_minus_the_cosine(draw: np.random.Generator) -> None:
    queries, passages = clouds(draw, 5, 1.0)
    results = space.cosine_distances(np.concatenate([queries, passages]))

    assert (results >= 0).all()
    assert (results.diagonal() == 0).all()
    assert results[1, 7] == pytest.approx(1 - sum(a * b for a, b in zip(queries[1], passages[2], strict=True)))
    assert (space.unit(np.zeros((1, 3))) == 0).all()


@pytest.mark.parametrize("apart", [0.0, 0.7, 4.0])
def test_both_readings_equal_their_formulas(apart: float, draw: np.random.Generator) -> None:
    queries, passages = draw.normal(size=(30, 2)) * 9 + apart, draw.normal(size=(30, 2)) * 7
    union = np.concatenate([queries, passages])
    of_queries, of_passages = (
        [math.exp(slow_log_density(side, point)) for point in union] for side in (queries, passages)
    )
    own_queries, own_passages = ([slow_log_density(side, point) for point in side] for side in (queries, passages))

    common, own = space.on_common_support(queries, passages), space.on_own_points(queries, passages)

    assert common == pytest.approx({"kl": slow_kl(of_queries, of_passages), "js": slow_js(of_queries, of_passages)})
    assert own == pytest.approx({"kl": slow_kl(own_queries, own_passages), "js": slow_js(own_queries, own_passages)})


def test_kl_of_similar_densities_is_four_times_js(draw: np.random.Generator) -> None:
    # As both values that the paper prints, 7.24e-5 beside 1.81e-5 and 1.42e-4 beside 3.54e-5.
    one = draw.random(500)
    results = space.divergences(one, one * (1 + draw.normal(size=500) * 0.01))

    assert results["kl"] / results["js"] == pytest.approx(4, rel=0.02)


def test_distant_clouds_have_maximal_js_and_finite_kl(draw: np.random.Generator) -> None:
    near, far = draw.normal(size=(30, 2)), draw.normal(size=(30, 2)) + 1000

    results = space.on_common_support(near, far)

    assert results["js"] == pytest.approx(math.log(2))
    assert 100 < results["kl"] < math.inf
    assert space.on_common_support(near, near) == pytest.approx({"kl": 0, "js": 0}, abs=1e-12)


def test_own_points_are_undefined_for_log_densities_of_both_signs(draw: np.random.Generator) -> None:
    dense, wide = draw.normal(size=(30, 2)) * 0.01, draw.normal(size=(30, 2)) * 50

    assert space.on_own_points(dense, wide) is None
    assert space.on_own_points(wide, wide) is not None


def test_mean_cosines_are_means_over_pairs(draw: np.random.Generator) -> None:
    queries, passages = clouds(draw, 7, 1.0)
    others = [(i, j) for i in range(7) for j in range(7) if i != j]

    result = space.mean_cosines(queries, passages)

    assert result == pytest.approx({
        "queries": np.mean([queries[i] @ queries[j] for i, j in others]),
        "passages": np.mean([passages[i] @ passages[j] for i, j in others]),
        "between": np.mean([queries[i] @ passages[j] for i, j in others]),
        "pairs": np.mean([queries[i] @ passages[i] for i in range(7)]),
    })  # fmt: skip


def test_mmd_is_the_unbiased_estimate(draw: np.random.Generator) -> None:
    queries, passages = clouds(draw, 9, 1.0)
    both = np.concatenate([queries, passages])
    scale = np.median([np.linalg.norm(both[i] - both[j]) for i in range(18) for j in range(i)])

    def kernel(x: np.ndarray, y: np.ndarray) -> float:
        return math.exp(-(np.linalg.norm(x - y) ** 2) / (2 * scale**2))

    others = [(i, j) for i in range(9) for j in range(9) if i != j]
    within = sum(kernel(side[i], side[j]) for side in (queries, passages) for i, j in others) / (9 * 8)
    between = sum(kernel(x, y) for x in queries for y in passages) / 81

    assert space.squared_mmd(queries, passages) == pytest.approx(within - 2 * between)


def test_controls_distinguish_two_clouds_from_one(draw: np.random.Generator) -> None:
    apart, alike = clouds(draw, 60, 6.0), clouds(draw, 60, 0.0)

    assert space.probe_accuracy(*apart) > 0.9
    assert 0.3 < space.probe_accuracy(*alike) < 0.7
    assert space.squared_mmd(*apart) > 0.3
    assert abs(space.squared_mmd(*alike)) < 0.05


def test_the_probe_is_evaluated_on_held_out_pairs(draw: np.random.Generator) -> None:
    # Noise of more dimensions than points: what has been seen is told apart without an error.
    queries, passages = (space.unit(draw.normal(size=(40, 300))) for _ in range(2))
    assert space.probe_accuracy(queries, passages) < 0.7

    # A query that is its pair's passage is only known where the pair is held out as a whole.
    assert space.probe_accuracy(passages, passages) <= 0.5


def test_a_plane_keeps_neighbours_and_is_reproducible(draw: np.random.Generator) -> None:
    queries, passages = clouds(draw, 20, 8.0)
    distances = space.cosine_distances(np.concatenate([queries, passages]))

    one, again, other = (space.plane(distances, perplexity=5.0, seed=seed) for seed in (1, 1, 2))

    assert one.shape == (40, 2)
    assert (one == again).all()
    assert not np.allclose(one, other)
    nearest = np.linalg.norm(one[:, None] - one[None], axis=2) + np.eye(40) * 1e9
    assert ((nearest.argmin(1) < 20) == (np.arange(40) < 20)).mean() > 0.9
