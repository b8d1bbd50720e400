"""Folding by hand, metrics against trec_eval itself (pytrec_eval), and what the stage writes."""

import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import pytrec_eval
from pydantic import ValidationError

from storage.errors import UserError
from storage.row_index import PassageIndex, RowIndex
from storage.tables import Answers, Passages, Qrels, Run
from tasks.evaluation.evaluate import Comparison, Evaluation, evaluate
from tasks.evaluation.max_passage import fold, without_identical_ids
from tasks.evaluation.metrics import measure_runs

METRICS = ["MRR@10", "MRR@100", "nDCG@10", "recall@50", "recall@1000", "success@50", "success@1000"]
ORACLE = {"nDCG@10": "ndcg_cut_10", "recall@50": "recall_50", "recall@1000": "recall_1000"} | {
    "success@50": "success_50",
    "success@1000": "success_1000",
}
JUDGED = {"dataset": "toy", "titles": False, "relevant_from": 1, "ignore_identical_ids": False}


def passages_of(documents: dict[str, list[str]]) -> pa.Table:
    pairs = [(passage, doc) for doc, passages in documents.items() for passage in passages]
    return pa.table({"passage_id": [p for p, _ in pairs], "doc_id": [d for _, d in pairs]})


def run_of(lists: dict[str, dict[str, float]]) -> pa.Table:
    rows = [(query, passage, score) for query, results in lists.items() for passage, score in results.items()]
    return pa.table(
        {
            "query_id": pa.array([row[0] for row in rows], pa.string()),
            "passage_id": pa.array([row[1] for row in rows], pa.string()),
            "score": pa.array([row[2] for row in rows], pa.float32()),
        }
    )


def qrels_of(grades: dict[str, dict[str, int]]) -> pa.Table:
    rows = [(query, doc, grade) for query, docs in grades.items() for doc, grade in docs.items()]
    names = ("query_id", "doc_id", "grade")
    return pa.table({name: [row[column] for row in rows] for column, name in enumerate(names)})


def test_documents_have_their_best_passages_score_and_ties_follow_ids() -> None:
    passages = passages_of({"a": ["a1", "a2"], "b": ["b1"], "c": ["c1", "c2"], "d": ["d1"]})
    queries, passages = RowIndex(pa.array(["q"])), PassageIndex.of(passages)
    run = run_of({"q": {"c1": 3.0, "a2": 2.0, "b1": 2.0, "c2": 1.5, "d1": 1.0, "a1": 9.0}, "unjudged": {"a1": 1.0}})
    # Scores a 9, c 3, b 2, d 1; of a's passages the better one counts, and c stands once.
    assert folded(fold(run, queries, passages, 3), passages) == [["a", "c", "b"]]
    tied = run_of({"q": {"a1": 2.0, "b1": 2.0, "c1": 2.0, "d1": 2.5}})
    assert folded(fold(tied, queries, passages, 10), passages) == [["d", "c", "b", "a"]]


def folded(matrix: np.ndarray, passages: PassageIndex) -> list[list[str]]:
    ids = passages.doc_ids.to_pylist()
    return [[ids[int(number)] for number in row[:, 0] if number >= 0] for row in matrix]


def test_a_missing_passage_is_named() -> None:
    passages = PassageIndex.of(passages_of({"a": ["a1"]}))
    with pytest.raises(ValueError, match="'b1'"):
        fold(run_of({"q": {"b1": 1.0}}), RowIndex(pa.array(["q"])), passages, 10)


@pytest.mark.parametrize("relevant_from", [1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_metrics_equal_trec_evals(seed: int, relevant_from: int) -> None:
    """Graded, tied, missing, of several passages a document: 60 judged queries, some without a relevant document, some
    not in the run, some judged documents without a passage."""
    draw = random.Random(seed)
    docs = [f"d{n}" for n in range(200)]
    grades = {f"q{n}": {doc: draw.choice([0, 0, 1, 2, 3]) for doc in draw.sample(docs, 8)} for n in range(60)}
    grades["q0"] = dict.fromkeys(grades["q0"], 0)
    grades["q5"] = dict.fromkeys(grades["q5"], 1)
    grades["q6"]["nowhere"] = 3
    passages = {doc: [f"{doc}-{n}" for n in range(draw.randint(1, 3))] for doc in docs}
    lists = {
        f"q{n}": {
            passage: draw.choice([0.5, 1.25, 1.25, float(np.float32(draw.random()))])
            for doc in draw.sample(docs, 120)
            for passage in passages[doc]
        }
        for n in range(3, 63)
    }
    qrels = qrels_of(grades)
    index = PassageIndex.of(passages_of(passages))
    query_ids, (ours,) = measure_runs(qrels, index, [[run_of(lists)]], METRICS, relevant_from)

    folded = {
        query: {doc: max(results[passage] for passage in passages[doc]) for doc in docs if passages[doc][0] in results}
        for query, results in lists.items()
    }
    wanted = {*ORACLE.values(), "recip_rank"}
    oracle = pytrec_eval.RelevanceEvaluator(grades, wanted, relevance_level=relevant_from).evaluate(folded)
    for row, query in enumerate(query_ids.to_pylist()):
        theirs = oracle.get(query, {})
        for metric, name in ORACLE.items():
            assert ours[metric][row] == pytest.approx(theirs.get(name, 0.0), abs=1e-6), (query, metric)
        whole = theirs.get("recip_rank", 0.0)
        for metric, cutoff in (("MRR@10", 10), ("MRR@100", 100)):
            assert ours[metric][row] == pytest.approx(whole if whole >= 1 / cutoff - 1e-9 else 0.0, abs=1e-6)


def test_negative_grades_have_no_gain() -> None:
    """As TREC-COVID has."""
    grades = {"q": {"a": -1, "b": 2, "c": 0, "d": 1}}
    scores = {"a": 3.0, "b": 2.0, "d": 1.0, "c": 0.5}
    qrels, passages = qrels_of(grades), passages_of({doc: [doc] for doc in scores})

    _, (ours,) = measure_runs(qrels, PassageIndex.of(passages), [[run_of({"q": scores})]], METRICS, 1)

    theirs = pytrec_eval.RelevanceEvaluator(grades, {*ORACLE.values(), "recip_rank"}).evaluate({"q": scores})["q"]
    assert {name: ours[metric][0] for metric, name in ORACLE.items()} == pytest.approx(
        {name: theirs[name] for name in ORACLE.values()}, abs=1e-6
    )
    assert ours["MRR@10"][0] == theirs["recip_rank"] == 0.5


def test_documents_with_the_querys_id_are_removed() -> None:
    passages = PassageIndex.of(passages_of({"a": ["a1", "a2"], "b": ["b1"], "c": ["c1"]}))
    run = run_of({"a": {"a1": 3.0, "c1": 2.0, "b1": 1.0, "a2": 0.5}, "b": {"a2": 1.0, "b1": 0.5}})
    queries = RowIndex(pa.array(["a", "b"]))
    assert folded(fold(run, queries, passages, 1), passages) == [["a"], ["a"]]
    others = without_identical_ids(run, passages)
    assert folded(fold(others, queries, passages, 1), passages) == [
        ["c"],
        ["a"],
    ]  # before the cut, and only where the ids are the same
    assert folded(fold(others, queries, passages, 9), passages) == [["c", "b"], ["a"]]


def test_the_stage_writes_values_means_and_comparisons(written, run_stage) -> None:
    draw = random.Random(3)
    docs = [f"d{n}" for n in range(40)]
    text = {"title": "", "text": "x", "start": 0, "end": 1, "num_tokens": 1}
    passages = written(Passages, [{"passage_id": doc, "doc_id": doc, **text} for doc in docs])
    qrels = written(Qrels, [{"query_id": f"q{n}", "doc_id": docs[n], "grade": 1} for n in range(30)])

    def run(noise: float, queries: range) -> object:
        results = {f"q{n}": {d: draw.random() * noise + (d == docs[n]) for d in docs} for n in queries}
        table = run_of(results).append_column("view", pa.array(["dense"] * 40 * len(queries)))
        return written(Run, table.append_column("rank", pa.array([1] * len(table), pa.int32())).to_pylist())

    settings = Evaluation(
        **JUDGED, split="dev", metrics=["MRR@10", "success@50"], names=["good", "bad", "half"], seed=1,
        resamples=10_000,
        comparisons=[Comparison(run="good", baseline="bad"), Comparison(run="half", baseline="bad")],
    )  # fmt: skip
    runs = [run(0.5, range(30)), run(4, range(30)), run(0.5, range(15, 30))]
    out = run_stage(evaluate, qrels=qrels, passages=passages, runs=runs, settings=settings)

    values = {(row["run"], row["metric"]): row for row in pq.read_table(out.path / "rows.parquet").to_pylist()}
    assert values["good", "MRR@10"] == {
        "dataset": "toy", "split": "dev", "titles": False, "run": "good", "metric": "MRR@10", "value": 1.0,
        "queries": 30, "spread": None,
    }  # fmt: skip
    assert (
        values["half", "MRR@10"]["value"] == 0.5
    )  # 15 queries are missing and count 0, q0 with the first document among them
    assert values["bad", "success@50"]["value"] == 1.0
    by_query = pq.read_table(out.path / "queries.parquet").to_pylist()
    assert len(by_query) == 3 * 2 * 30
    assert np.mean([row["value"] for row in by_query if (row["run"], row["metric"]) == ("bad", "MRR@10")]) == (
        pytest.approx(values["bad", "MRR@10"]["value"])
    )
    tests = {(row["run"], row["metric"]): row for row in pq.read_table(out.path / "comparisons.parquet").to_pylist()}
    best = tests["good", "MRR@10"]
    assert best["difference"] == pytest.approx(1.0 - values["bad", "MRR@10"]["value"])
    assert best["p"] < 0.001
    assert best["p_holm"] == pytest.approx(min(1, 2 * best["p"]))
    assert 1 / 10_001 <= best["p_randomisation"] < 0.001
    assert tests["good", "success@50"]["p_holm"] == 1.0


def test_invalid_settings_are_refused() -> None:
    whole = {**JUDGED, "split": "dev", "names": ["a"], "comparisons": [], "seed": 1, "resamples": 10_000}
    with pytest.raises(ValidationError, match="'mrr@10' is no metric"):
        Evaluation(metrics=["mrr@10"], **whole)
    with pytest.raises(ValidationError, match="comparison of b"):
        Evaluation(metrics=["MRR@10"], **{**whole, "comparisons": [Comparison(run="a", baseline="b")]})


@pytest.mark.parametrize("metric", ["MRR@10", "answer@20"])
@pytest.mark.parametrize("absent", [True, False])
def test_a_split_without_judgements_or_answers_is_refused(written, run_stage, metric: str, absent: bool) -> None:
    empty = [None, None] if absent else [written(Qrels, []), written(Answers, [])]
    settings = Evaluation(
        **JUDGED, split="test", metrics=[metric], names=["a"], comparisons=[], seed=1, resamples=10_000
    )
    with pytest.raises(UserError, match=f"{metric}: no .*'test' of toy"):
        run_stage(evaluate, *empty, written(Passages, []), [written(Run, [])], settings=settings)


def test_averaged_rows_are_means_of_runs(written, run_stage) -> None:
    docs = [f"d{n}" for n in range(6)]
    text = {"title": "", "text": "x", "start": 0, "end": 1, "num_tokens": 1}
    passages = written(Passages, [{"passage_id": doc, "doc_id": doc, **text} for doc in docs])
    qrels = written(Qrels, [{"query_id": f"q{n}", "doc_id": docs[n], "grade": 1} for n in range(6)])

    def run(results: set[int]) -> object:
        rows = [{"query_id": f"q{n}", "passage_id": docs[n], "view": "dense", "rank": 1, "score": 1.0} for n in results]
        return written(Run, rows)

    settings = Evaluation(
        **JUDGED, split="dev", metrics=["MRR@10"], names=["few_0", "few_1", "bm25"], seed=1, resamples=10_000,
        averaged={"few": ["few_0", "few_1"]}, comparisons=[Comparison(run="few", baseline="bm25")],
    )  # fmt: skip
    out = run_stage(
        evaluate, qrels=qrels, passages=passages, runs=[run({0, 1, 2}), run({0}), run({5})], settings=settings
    )

    rows = {row["run"]: row for row in pq.read_table(out.path / "rows.parquet").to_pylist()}
    by_query = {
        row["query_id"]: row["value"]
        for row in pq.read_table(out.path / "queries.parquet").to_pylist()
        if row["run"] == "few"
    }
    assert by_query == {"q0": 1.0, "q1": 0.5, "q2": 0.5, "q3": 0.0, "q4": 0.0, "q5": 0.0}
    assert rows["few"]["value"] == pytest.approx(2 / 6)
    assert rows["few"]["spread"] == pytest.approx(np.std([3 / 6, 1 / 6], ddof=1))
    assert rows["few_0"]["spread"] is None
    compared = pq.read_table(out.path / "comparisons.parquet").to_pylist()
    assert compared[0]["difference"] == pytest.approx(2 / 6 - 1 / 6)


@pytest.mark.parametrize("averaged", [{"few": ["b"]}, {"few": []}, {"few": ["a", "a"]}, {"a": ["a"]}])
def test_averaged_rows_name_known_runs(averaged: dict[str, list[str]]) -> None:
    with pytest.raises(ValueError, match=r"averaged: (few|a): expected some of the runs"):
        Evaluation(
            **JUDGED,
            split="dev",
            metrics=["MRR@10"],
            names=["a"],
            seed=1,
            resamples=10_000,
            comparisons=[],
            averaged=averaged,
        )


def test_the_mean_of_one_run_has_no_spread(written, run_stage) -> None:
    passages = written(Passages, [
        {"passage_id": "d", "doc_id": "d", "title": "", "text": "x", "start": 0, "end": 1, "num_tokens": 1}
    ])  # fmt: skip
    qrels = written(Qrels, [{"query_id": "q", "doc_id": "d", "grade": 1}])
    run = written(Run, [{"query_id": "q", "passage_id": "d", "view": "dense", "rank": 1, "score": 1.0}])
    settings = Evaluation(
        **JUDGED, split="dev", metrics=["MRR@10"], names=["few_0"], seed=1, resamples=10_000, comparisons=[],
        averaged={"few": ["few_0"]},
    )  # fmt: skip
    out = run_stage(evaluate, qrels=qrels, passages=passages, runs=[run], settings=settings)
    rows = {row["run"]: row for row in pq.read_table(out.path / "rows.parquet").to_pylist()}
    assert (rows["few"]["value"], rows["few"]["spread"]) == (1.0, None)
