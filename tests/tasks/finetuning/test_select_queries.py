"""Few queries and suited ones: drawn alike for every system, and chosen by reciprocal ranks."""

from typing import Any

import numpy as np
import pytest

from storage.errors import UserError
from storage.rows import read_rows
from storage.tables import Passages, Positives, Queries, Run
from tasks.finetuning.select_queries import ExpertSelection, FewShot, sample_queries, suited_queries


@pytest.fixture
def train_queries(written: Any) -> Any:
    return written(Queries, [{"query_id": f"q{n}", "text": f"text {n}"} for n in range(20)])


@pytest.fixture
def labels(written: Any) -> Any:
    """Every query but the first three has a positive; the last has two."""
    pairs = [(f"q{n}", f"d{n}") for n in range(3, 20)] + [("q19", "d0")]
    return written(Positives, [{"query_id": q, "passage_id": f"{d}#0", "doc_id": d} for q, d in pairs])


def chosen(table: Any) -> list[str]:
    return [row["query_id"] for row in read_rows(table, Queries)]


def test_a_sample_is_of_queries_with_a_positive_in_their_order(train_queries: Any, labels: Any, run_stage: Any) -> None:
    def sampled(size: int, sample: int) -> list[str]:
        return chosen(
            run_stage(
                sample_queries,
                queries=train_queries,
                positives=labels,
                settings=FewShot(queries=size, sample=sample, seed=4),
            )
        )

    results = {(size, sample): sampled(size, sample) for size in (5, 17) for sample in (0, 1)}

    possible = [f"q{n}" for n in range(3, 20)]
    for (size, _), names in results.items():
        assert len(names) == size
        assert names == [name for name in possible if name in names]
    assert results[5, 0] != results[5, 1]
    assert results[17, 0] == possible
    assert results[5, 0] == sampled(5, 0)


def test_more_than_there_are(train_queries: Any, labels: Any, run_stage: Any) -> None:
    with pytest.raises(UserError, match="expected at least 18 queries with a positive, found 17"):
        run_stage(
            sample_queries, queries=train_queries, positives=labels, settings=FewShot(queries=18, sample=0, seed=4)
        )


def test_queries_suit_the_expert_that_ranks_their_positive_best(
    train_queries: Any, labels: Any, written: Any, run_stage: Any
) -> None:
    random = np.random.default_rng(3)
    ids = written(Passages, [
        {"passage_id": f"d{d}#{n}", "doc_id": f"d{d}", "title": "", "text": "x", "start": 0, "end": 1, "num_tokens": 1}
        for d in range(20) for n in range(2)
    ])  # fmt: skip
    orders = [{f"q{n}": random.permutation(20)[: random.integers(1, 20)].tolist() for n in range(20)} for _ in range(3)]
    runs = [
        written(Run, [
            {"query_id": q, "passage_id": f"d{d}#{random.integers(2)}", "view": "dense", "rank": rank, "score": -rank}
            for q, result in order.items() for rank, d in enumerate(result, start=1)
        ])
        for order in orders
    ]  # fmt: skip

    def reciprocal(order: dict[str, list[int]], query: str) -> float:
        relevant = {int(query[1:])} | ({0} if query == "q19" else set())
        ranks = [rank for rank, document in enumerate(order[query][:10], start=1) if document in relevant]
        return 1 / min(ranks) if ranks else 0.0

    for number, expert in enumerate(("late", "dense", "lexical")):
        settings = ExpertSelection(names=["late", "dense", "lexical"], expert=expert, cutoff=10)
        result = chosen(
            run_stage(
                suited_queries, queries=train_queries, runs=runs, positives=labels, passages=ids, settings=settings
            )
        )
        expected = [
            f"q{n}" for n in range(3, 20)
            if reciprocal(orders[number], f"q{n}") == max(reciprocal(order, f"q{n}") for order in orders)
        ]  # fmt: skip
        assert result == expected
        assert 0 < len(expected) < 17


def suiting(
    written: Any, run_stage: Any, train_queries: Any, labels: Any, lists: list[dict[str, list[str]]], expert: str
) -> Any:
    """What suits an expert, late or dense, where each ranks whole documents as said."""
    ids = written(Passages, [
        {"passage_id": f"d{d}#0", "doc_id": f"d{d}", "title": "", "text": "x", "start": 0, "end": 1, "num_tokens": 1}
        for d in range(20)
    ])  # fmt: skip
    runs = [
        written(Run, [
            {"query_id": q, "passage_id": f"{d}#0", "view": "late", "rank": rank, "score": -rank}
            for q, results in run.items() for rank, d in enumerate(results, start=1)
        ])
        for run in lists
    ]  # fmt: skip
    settings = ExpertSelection(names=["late", "dense"], expert=expert, cutoff=2)
    return run_stage(
        suited_queries, queries=train_queries, runs=runs, positives=labels, passages=ids, settings=settings
    )


def test_a_query_that_no_run_answers_is_every_experts(
    train_queries: Any, labels: Any, written: Any, run_stage: Any
) -> None:
    late = {"q3": ["d3"], "q4": ["d1", "d4"], "q5": ["d5"], "q6": ["d1", "d2", "d6"], "q19": ["d1", "d0"]}
    dense = {"q3": ["d1", "d3"], "q4": ["d4"], "q5": ["d5"], "q19": ["d2", "d19"]}

    by_late, by_dense = (
        chosen(suiting(written, run_stage, train_queries, labels, [late, dense], expert))
        for expert in ("late", "dense")
    )

    # Late wins q3, dense q4; q5 and q19 are ties, and of all others no run finds a positive among the first two.
    assert by_late == [f"q{n}" for n in range(3, 20) if n != 4]
    assert by_dense == [f"q{n}" for n in range(4, 20)]


def test_an_expert_that_is_best_on_no_query_is_refused(train_queries: Any, written: Any, run_stage: Any) -> None:
    labels = written(Positives, [{"query_id": "q3", "passage_id": "d3#0", "doc_id": "d3"}])
    with pytest.raises(UserError, match="dense is best on none of its queries"):
        suiting(written, run_stage, train_queries, labels, [{"q3": ["d3"]}, {"q3": ["d1"]}], "dense")


def test_an_expert_that_is_not_there(train_queries: Any, labels: Any, written: Any, run_stage: Any) -> None:
    with pytest.raises(UserError, match="expected one of late, dense for 2 runs"):
        suiting(written, run_stage, train_queries, labels, [{}, {}], "lexical")
    with pytest.raises(UserError, match="expected one of late, dense for 1 runs"):
        suiting(written, run_stage, train_queries, labels, [{}], "dense")
