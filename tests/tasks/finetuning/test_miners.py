"""Each miner selects by its rule."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from storage.errors import UserError
from storage.rows import read_rows
from storage.tables import Negatives, Positives, Run, TeacherScores
from tasks.finetuning.mine import mine
from tasks.finetuning.miners import QueryCandidates
from tasks.finetuning.miners.cross_encoder import CrossEncoder, Selector
from tasks.finetuning.miners.margin import Margin
from tasks.finetuning.miners.union import Union
from tests.tasks.finetuning.mining_tables import RandomTables, passages_of, ranked

pytestmark = pytest.mark.usefixtures("on_one_thread")


def without_scores(results: list[tuple[str, int, float]]) -> list[tuple[str, int]]:
    return [(name, rank) for name, rank, _ in results]


@pytest.mark.parametrize("seed", range(3))
def test_the_union_of_several_lists(written: Any, run_stage: Any, seed: int) -> None:
    tables = RandomTables(written, run_stage, seed, 3)

    results = tables.mined(Union(miner="union", depth=7, negatives=None, seed=1))

    for query in tables.positives:
        best: dict[str, int] = {}
        for run in range(3):
            for name, rank, _ in tables.without_positives(query, run, 7):
                best[name] = min(rank, best.get(name, rank))
        assert {name: rank for name, rank, _ in results.get(query, [])} == best
        ranks = [rank for _, rank, _ in results.get(query, [])]
        assert ranks == sorted(ranks)
        for name, rank, score in results.get(query, []):
            assert any((name, rank) == (row[0], row[1]) and score == pytest.approx(row[2], rel=1e-6)
                       for run in range(3) for row in tables.without_positives(query, run, 7))  # fmt: skip


@pytest.mark.parametrize(("margin", "share"), [(0.5, None), (0.0, None), (None, 0.8)])
def test_a_margin_below_the_lowest_positive(
    written: Any, run_stage: Any, margin: float | None, share: float | None
) -> None:
    tables = RandomTables(written, run_stage, 5, 1)

    result = tables.mined(Margin(miner="margin", depth=60, negatives=None, seed=1, margin=margin, share=share))

    some = 0
    for query, wanted in tables.positives.items():
        lowest = min((score for name, score in tables.runs[0].get(query, []) if name in wanted), default=None)
        expected: list[tuple[str, int, float]] = []
        if lowest is not None:
            highest = lowest - margin if margin is not None else lowest * (share or 1) if lowest > 0 else lowest
            expected = [row for row in tables.without_positives(query, 0, 60) if row[2] <= highest]
            some += bool(expected)
        assert without_scores(result.get(query, [])) == without_scores(expected)
    assert some


def test_the_cross_encoder_miner_uses_a_margin_of_teacher_scores(written: Any, run_stage: Any) -> None:
    tables = RandomTables(written, run_stage, 6, 1)

    results = tables.mined(CrossEncoder(miner="cross_encoder", depth=9, negatives=None, seed=1, margin=0.4))

    for query, wanted in tables.positives.items():
        highest = np.float32(min(np.float32(tables.teacher[query, name]) for name in wanted)) - 0.4
        expected = [
            row for row in tables.without_positives(query, 0, 9) if np.float32(tables.teacher[query, row[0]]) <= highest
        ]
        assert without_scores(results.get(query, [])) == without_scores(expected)
    assert any(results.values())


def test_a_candidate_without_a_teacher_score_is_refused(written: Any, run_stage: Any) -> None:
    tables = RandomTables(written, run_stage, 2, 1)
    scores = written(TeacherScores, [
        {"query_id": query, "passage_id": name, "score": 0.0}
        for query, results in tables.positives.items() for name in results
    ])  # fmt: skip

    with pytest.raises(UserError, match=r"no score of query 'q.*' with passage 'd.*'"):
        run_stage(mine, runs=tables.run_tables, positives=tables.labels, passages=tables.passages, scores=scores,
             settings=CrossEncoder(miner="cross_encoder", depth=3, negatives=None, seed=1, margin=0.0))  # fmt: skip


def test_a_selector_holds_no_table_of_scores(written: Any) -> None:
    """A teacher scores some hundred candidates of every query: 100 million rows for MS MARCO."""
    queries, candidates = 200, 1000
    scores = written(TeacherScores, (
        {"query_id": f"q{query}", "passage_id": f"d{number}", "score": float(-number)}
        for query in range(queries) for number in range(candidates)
    ))  # fmt: skip
    settings = CrossEncoder(miner="cross_encoder", depth=9, negatives=None, seed=1, margin=500.0)
    candidate = [{"query_id": "q7", "passage_id": f"d{number}", "rank": number} for number in (499, 500)]
    before = pa.total_allocated_bytes()

    selector = Selector(settings, scores)

    assert pa.total_allocated_bytes() - before < queries * candidates  # a row has more than a byte
    assert selector(QueryCandidates("q7", ["d0"], [], [candidate])) == candidate[1:]


@pytest.mark.parametrize("given_both", [{}, {"margin": 0.1, "share": 0.5}])
def test_either_margin_or_share(given_both: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="either margin or share"):
        Margin(miner="margin", depth=3, negatives=None, seed=1, **given_both)


@pytest.mark.parametrize(
    ("scores", "share", "kept"),
    [
        ([4.0, 3.0, 2.0, 1.0], 0.5, ["d3#0"]),  # the positive d1#0 scores 3, so at most 1.5
        ([1.0, -2.0, -3.0, -4.0], 0.5, ["d2#0", "d3#0"]),  # half of -2 is more than -2
        ([1.0, 0.0, 0.0, -1.0], 0.5, ["d2#0", "d3#0"]),
        ([4.0, 3.0, 3.0, 1.0], 1.0, ["d2#0", "d3#0"]),
    ],
)
def test_a_share_of_the_positive(
    written: Any, run_stage: Any, scores: list[float], share: float, kept: list[str]
) -> None:  # fmt: skip
    rows = [
        {"query_id": "q", "passage_id": f"d{n}#0", "view": "late", "rank": n + 1, "score": score}
        for n, score in enumerate(scores)
    ]
    labels = written(Positives, [{"query_id": "q", "passage_id": "d1#0", "doc_id": "d1"}])
    settings = Margin(miner="margin", depth=9, negatives=None, seed=1, share=share)

    result = run_stage(
        mine, runs=[written(Run, rows)], positives=labels, passages=passages_of(written), settings=settings
    )

    assert [row["passage_id"] for row in read_rows(result, Negatives)] == kept


def test_a_run_that_found_no_positive_gives_no_margin(written: Any, run_stage: Any) -> None:
    """Another passage of the document was found, but it is not the positive."""
    rows = [{**row, "passage_id": name} for row, name in zip(ranked(["", ""]), ["d1#1", "d2#0"], strict=True)]
    labels = written(Positives, [{"query_id": "q", "passage_id": "d1#0", "doc_id": "d1"}])
    settings = Margin(miner="margin", depth=9, negatives=None, seed=1, margin=0.0)

    result = run_stage(
        mine, runs=[written(Run, rows)], positives=labels, passages=passages_of(written), settings=settings
    )

    assert not list(read_rows(result, Negatives))


def test_a_positive_without_a_teacher_score_is_refused(written: Any, run_stage: Any) -> None:
    rows = [{**row, "passage_id": name} for row, name in zip(ranked(["", ""]), ["d1#0", "d2#0"], strict=True)]
    labels = written(Positives, [{"query_id": "q", "passage_id": "d1#0", "doc_id": "d1"}])
    settings = CrossEncoder(miner="cross_encoder", depth=9, negatives=None, seed=1, margin=0.0)
    for seen in ([{"query_id": "q", "passage_id": "d2#0", "score": 1.0}], []):
        with pytest.raises(UserError, match="no score of query 'q' with passage 'd1#0'"):
            run_stage(
                mine,
                runs=[written(Run, rows)],
                positives=labels,
                passages=passages_of(written),
                scores=written(TeacherScores, seen),
                settings=settings,
            )


def test_the_margin_is_below_the_lowest_of_several_positives(written: Any, run_stage: Any) -> None:
    names = ["d1#0", "d3#0", "d2#0", "d4#0"]  # of scores 1, 1/2, 1/3, 1/4; d1 and d2 are relevant
    labels = written(Positives, [{"query_id": "q", "passage_id": f"d{n}#0", "doc_id": f"d{n}"} for n in (1, 2)])
    settings = Margin(miner="margin", depth=9, negatives=None, seed=1, margin=0.0)

    result = run_stage(
        mine, runs=[written(Run, ranked(names))], positives=labels, passages=passages_of(written), settings=settings
    )

    assert [row["passage_id"] for row in read_rows(result, Negatives)] == ["d4#0"]


def test_of_equal_ranks_the_union_takes_the_first_runs(written: Any, run_stage: Any) -> None:
    lists = [[("d1#0", 9.0), ("d2#0", 8.0)], [("d3#0", 7.0), ("d2#0", 6.0)], [("d2#0", 5.0), ("d1#0", 4.0)]]
    runs = [
        written(Run, [
            {"query_id": "q", "passage_id": name, "view": "late", "rank": rank, "score": score}
            for rank, (name, score) in enumerate(ranked, start=1)
        ])
        for ranked in lists
    ]  # fmt: skip
    labels = written(Positives, [{"query_id": "q", "passage_id": "d0#0", "doc_id": "d0"}])
    for count, expected in ((2, [("d1#0", 9.0), ("d3#0", 7.0), ("d2#0", 8.0)]),
                            (3, [("d1#0", 9.0), ("d3#0", 7.0), ("d2#0", 5.0)])):  # fmt: skip
        settings = Union(miner="union", depth=9, negatives=None, seed=1)
        result = run_stage(mine, runs=runs[:count], positives=labels, passages=passages_of(written), settings=settings)
        assert [(row["passage_id"], row["score"]) for row in read_rows(result, Negatives)] == expected


def test_the_cross_encoder_miner_uses_a_share_of_the_positives_probability(written: Any, run_stage: Any) -> None:
    tables = RandomTables(written, run_stage, 6, 1)

    results = tables.mined(CrossEncoder(miner="cross_encoder", depth=9, negatives=None, seed=1, share=0.6))

    def probability(query: str, name: str) -> float:
        return 1 / (1 + math.exp(-np.float32(tables.teacher[query, name])))

    for query, wanted in tables.positives.items():
        highest = 0.6 * min(probability(query, name) for name in wanted)
        expected = [row for row in tables.without_positives(query, 0, 9) if probability(query, row[0]) <= highest]
        assert without_scores(results.get(query, [])) == without_scores(expected)
    assert any(results.values())
    with pytest.raises(ValueError, match="give either margin or share"):
        CrossEncoder(miner="cross_encoder", depth=9, negatives=None, seed=1)
    with pytest.raises(ValueError, match="give either margin or share"):
        CrossEncoder(miner="cross_encoder", depth=9, negatives=None, seed=1, margin=0.1, share=0.5)


@pytest.mark.parametrize("positive", [-800.0, -40.0, -1.0, 0.0, 3.0, 60.0, 900.0])
@pytest.mark.parametrize("share", [0.05, 0.95, 1.0])
def test_a_share_of_any_probability_is_a_finite_score(positive: float, share: float) -> None:
    settings = CrossEncoder(miner="cross_encoder", depth=9, negatives=None, seed=1, share=share)

    highest = settings.highest(positive)

    assert math.isfinite(highest)
    assert highest <= positive
    if abs(positive) <= 40:
        assert 1 / (1 + math.exp(-highest)) == pytest.approx(share / (1 + math.exp(-positive)), rel=1e-9)
