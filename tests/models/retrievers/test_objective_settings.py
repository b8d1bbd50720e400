"""Flops, excluded passages and refused settings of a retriever's fine-tuning."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from models.retrievers.examples import known_positives
from models.retrievers.objective import Distillation, Finetuning, Flops
from tests.models.retrievers.test_objective import COMPETITION, PLAIN, PRICE
from tests.tiny import tiny_retriever


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("dpr", {"contrasts": []}, "expected some of sum and the views"),
        ("mixture", {"competition": COMPETITION}, "expected some of sum and the views"),
        ("dpr", {"contrasts": ["lexical"]}, "expected sum or views of dense, found lexical"),
        ("mixture", {"contrasts": [], "competition": COMPETITION, "contrast_loss": "pairwise"}, "expected softmax"),
        ("dpr", {"flops": PRICE}, "expected a retriever with a lexical view"),
    ],
)  # fmt: skip
def test_what_a_retriever_cannot_be_trained_with(kind: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Finetuning(tiny_retriever(kind), replace(PLAIN, **changes))


def test_settings_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="flops: expected"):
        Flops(queries=-1.0, passages=0.0, ramp=0.0)
    with pytest.raises(ValueError, match="distillation: expected"):
        Distillation(teacher_temperature=0.0, contrast_weight=0.0)


@pytest.mark.parametrize(("steps", "ramp"), [(10, 0.5), (7, 1.0), (3, 0.9)])
def test_the_ramp_is_that_of_splades_code(steps: int, ramp: float) -> None:
    """There a counter rises before it is used, up to T, and lambda is multiplied by (t / T)^2."""
    counted, late = (Flops(queries=1.0, passages=1.0, ramp=ramp, ramp_counts_step=counts) for counts in (True, False))
    length, expected = steps * ramp, []
    for counter in range(1, steps + 1):
        expected.append((min(counter, length) / length) ** 2)

    assert [counted.ramp_factor(step / steps, 1 / steps) for step in range(steps)] == pytest.approx(expected)
    assert [late.ramp_factor(step / steps, 1 / steps) for step in range(steps)] == pytest.approx([0, *expected[:-1]])


def slow_exclusions(relevant: list[set[str]], documents: list[str], group: int) -> Tensor:
    excluded = torch.zeros(len(relevant), len(documents), dtype=torch.bool)
    for query in range(len(relevant)):
        for column in range(len(documents)):
            if documents[column] in relevant[query] and column != query * group:
                excluded[query, column] = True
    return excluded


def test_known_positives_are_told_by_their_document() -> None:
    relevant = [{"a"}, {"b", "c"}, {"c"}]
    documents = ["a", "x", "b", "a", "c", "y"]  # two passages a query, the first its positive

    excluded = known_positives(relevant, documents, 2)

    assert excluded is not None
    assert excluded.tolist() == [
        [False, False, False, True, False, False],
        [False, False, False, False, True, False],
        [False] * 6,
    ]
    assert torch.equal(excluded, slow_exclusions(relevant, documents, 2))


def random_batches() -> Iterator[tuple[list[set[str]], list[str], int]]:
    random = np.random.default_rng(0)
    for _ in range(50):
        group = int(random.integers(1, 4))
        documents = [f"d{n}" for n in random.integers(9, size=5 * group)]
        yield [{documents[q * group], f"d{q}"} for q in range(5)], documents, group


def test_known_positives_of_random_batches() -> None:
    for relevant, documents, group in random_batches():
        excluded, expected = known_positives(relevant, documents, group), slow_exclusions(relevant, documents, group)

        assert (excluded is None) == (not expected.any())
        assert excluded is None or torch.equal(excluded, expected)
