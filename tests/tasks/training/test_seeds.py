"""Seeds of several numbers and texts."""

from __future__ import annotations

import numpy as np

from tasks.training.seeds import mix_seeds, random_generator


def test_generators_of_equal_parts_draw_the_same() -> None:
    assert random_generator(3, 5, "d1").random() == np.random.default_rng((3, 5, *b"d1")).random()
    assert random_generator(3, 5).random() == random_generator(3, 5, 0).random()


def test_generators_of_different_parts_draw_differently() -> None:
    draws = [random_generator(*parts).random() for parts in [(3,), (3, 5), (5, 3), (3, "d1"), (3, "d2")]]
    assert len(set(draws)) == len(draws)


def test_mixed_seeds_differ_by_number_and_order() -> None:
    assert mix_seeds(2, 7) == 3 * 1_000_003 + 8
    seeds = [mix_seeds(seed, step, chunk) for seed in range(5) for step in range(5) for chunk in range(5)]
    assert len(set(seeds)) == len(seeds)
    assert 0 <= mix_seeds(2**32 - 1, 10**9, 10**6) < 2**63
