"""Where views disagree: ranks, overlaps and texts, against a slow reading of the lists."""

import json
from typing import Any

import numpy as np
import pytest

from storage.artifact import Artifact
from storage.errors import UserError
from storage.tables import Passages, Qrels, Queries, Run
from tasks.analyses.expert_disagreement import Reading, expert_disagreement
from tests.tasks.analyses.drawing import section
from tests.tasks.corpora import passage
from tests.tasks.evaluation.test_overlap import reference_rbo

NAMES = ["dense", "late", "lexical"]
SETTINGS: dict[str, Any] = {
    "analysis": "expert_disagreement", "round": "came", "depth": 6, "p": 0.8, "examples": 30, "names": NAMES,
    "relevant_from": 1,
}  # fmt: skip
PASSAGES = [passage(f"d{n // 2}#{n % 2}", f"text {n}", title="king" if n == 3 else "") for n in range(40)]
IDS = [row["passage_id"] for row in PASSAGES]
Found = dict[str, list[str]]


def run(results: Found) -> list[dict[str, Any]]:
    return [
        {"query_id": query, "passage_id": name, "view": "dense", "rank": rank, "score": -rank}
        for query, ranked in results.items()
        for rank, name in enumerate(ranked, start=1)
    ]


def drawn(seed: int) -> Found:
    random = np.random.default_rng(seed)
    return {f"q{n}": random.choice(IDS, 9, replace=False).tolist() for n in range(12) if (seed, n) != (1, 4)}


RUNS = [drawn(seed) for seed in range(3)]
QRELS = {f"q{n}": {f"d{(3 * n + k) % 20}": grade for k, grade in enumerate((1, 2, 0))} for n in range(11)}


@pytest.fixture
def analysis_of(written: Any, run_stage: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("tasks.retrieval.run_lists.QUERIES_PER_BLOCK", 3)

    def tell(runs: list[Found] = RUNS, qrels: dict[str, dict[str, int]] = QRELS, **changes: Any) -> dict[str, Any]:
        judged = [{"query_id": query, "doc_id": document, "grade": grade}
                  for query, grades in qrels.items() for document, grade in grades.items()]  # fmt: skip
        inputs = (
            [written(Run, run(name)) for name in runs],
            written(Queries, [{"query_id": f"q{n}", "text": f"query {n}"} for n in range(12)]),
            written(Qrels, judged), written(Passages, PASSAGES),
        )  # fmt: skip
        results: Artifact[Any] = run_stage(expert_disagreement, *inputs, settings=Reading(**SETTINGS | changes))
        return json.loads((results.path / "analysis.json").read_text())  # type: ignore[no-any-return]

    return tell


def slow(query: str, least: int = 1, depth: int = 6) -> tuple[dict[str, int | None], float, float]:
    """Ranks, disagreement and mean overlap of a query, list by list."""
    lists = [results.get(query, [])[:depth] for results in RUNS]
    ranks: dict[str, int | None] = {}
    for name, ranked in zip(NAMES, lists, strict=True):
        relevant = [rank for rank, name in enumerate(ranked, 1) if QRELS[query].get(name.split("#")[0], 0) >= least]
        ranks[name] = min(relevant, default=None)
    reciprocal = [1 / rank if rank else 0.0 for rank in ranks.values()]
    pairs = [(lists[a], lists[b]) for a, b in ((0, 1), (0, 2), (1, 2))]
    overlap = np.mean([reference_rbo(one, other, 0.8) if one and other else 0.0 for one, other in pairs])
    return ranks, max(reciprocal) - min(reciprocal), float(overlap)


@pytest.mark.parametrize("least", [1, 2])
def test_cases_are_the_greatest_differences_of_reciprocal_ranks(analysis_of: Any, least: int) -> None:
    results = analysis_of(relevant_from=least)

    expected = {query: slow(query, least) for query in QRELS}
    apart = [query for query, (_, disagreement, _) in expected.items() if disagreement > 0]
    assert results["queries"] == 11  # the twelfth was not judged
    assert results["disagreeing"] == len(apart) > 3
    order = sorted(apart, key=lambda query: (-expected[query][1], expected[query][2], query))
    assert [case["query_id"] for case in results["cases"]] == order
    for case in results["cases"]:
        ranks, disagreement, overlap = expected[case["query_id"]]
        assert case["ranks"] == ranks
        assert case["disagreement"] == pytest.approx(disagreement)
        assert case["rbo"] == pytest.approx(overlap)
    assert sum(results["overlaps"]) == 11
    assert results["overlaps"][int(expected["q0"][2] * 20)] > 0


def test_cases_have_their_texts(analysis_of: Any) -> None:
    texts = {row["passage_id"]: f"{row['title']} {row['text']}".strip() for row in PASSAGES}

    for case in analysis_of()["cases"]:
        query, relevant = case["query_id"], case["relevant"]
        best = min(rank for rank in case["ranks"].values() if rank)
        assert case["query"] == query.replace("q", "query ")
        assert relevant["text"] == texts[relevant["passage_id"]]
        assert relevant["passage_id"] in [results.get(query, [""] * 9)[best - 1] for results in RUNS]
        for name, lists in zip(NAMES, RUNS, strict=True):
            if query not in lists:
                assert name not in case["first"]
                continue
            first = case["first"][name]
            assert first["passage_id"] == lists[query][0]
            assert first["text"] == texts[lists[query][0]]
            assert first["relevant"] == (case["ranks"][name] == 1)


def test_the_section_shows_the_cases(analysis_of: Any) -> None:
    results = analysis_of()
    results["cases"][0]["query"] = "<b>bold</b> & more"

    seen = section("expert_disagreement", results)

    assert "Where the views of came disagree" in seen.text
    assert seen.tags.count("article") == len(results["cases"])
    assert "<b>bold</b> & more" in seen.text  # as text
    assert "not found" in seen.text
    assert section("expert_disagreement", results | {"cases": []}).tags.count("article") == 0


def test_ties_are_ordered_by_lower_overlap(analysis_of: Any) -> None:
    one = {"q1": ["d1#0", "d5#0", "d6#0"], "q2": ["d2#0", "d5#0", "d6#0"]}
    other = {"q1": ["d5#0", "d1#0", "d6#0"], "q2": ["d7#0", "d2#0", "d8#0"]}
    same = {"q3": ["d3#0"]}

    results = analysis_of(
        [one | same, other | same], {"q1": {"d1": 1}, "q2": {"d2": 1}, "q3": {"d3": 1}}, names=["a", "b"]
    )

    assert [case["query_id"] for case in results["cases"]] == ["q2", "q1"]
    assert {case["disagreement"] for case in results["cases"]} == {0.5}
    assert results["overlaps"][-1] == 1  # q3's lists are equal
    assert len(analysis_of(examples=2)["cases"]) == 2


def test_qrels_without_relevant_passages_are_refused(analysis_of: Any) -> None:
    with pytest.raises(UserError, match="no query has a relevant document among the passages"):
        analysis_of(RUNS, {"q1": {"elsewhere": 1}, "q2": {"d1": 0}})
