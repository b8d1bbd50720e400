"""Answers found as DPR finds them: against a slow tokenizer and matcher, written from the description alone."""

import random
import unicodedata

import pyarrow.parquet as pq
import pytest

from storage.tables import Answers, Passages, Qrels, Run
from tasks.evaluation.answer_match import has_answer, spaced
from tasks.evaluation.evaluate import Comparison, Evaluation, evaluate

LETTERS = ["a", "B", "é", "e\u0301", "Σ", "ς", "ß", "İ", "7", "²", "中", "\u0301", "ſ"]
OTHERS = [" ", "\u00a0", "\n", "-", ".", "'", "“", "$", "…", "\u200b", "\x07", "😀", "_"]


def tokens(text: str) -> list[str]:
    """Runs of letters, digits and marks, or one other symbol that is no blank and no control; lower case."""
    results, last = [], False
    for character in unicodedata.normalize("NFD", text):
        kind = unicodedata.category(character)[0]
        if kind in "LNM":
            if last:
                results[-1] += character
            else:
                results.append(character)
        elif kind not in "ZC":
            results.append(character)
        last = kind in "LNM"
    return [token.lower() for token in results]


def reference(text: str, answers: list[str]) -> bool:
    words = tokens(text)
    for answer in map(tokens, answers):
        if answer and any(words[i : i + len(answer)] == answer for i in range(len(words))):
            return True
    return False


@pytest.mark.parametrize(
    ("text", "answer", "matches"),
    [
        ("It rose on May 14 , 2004, in Paris.", "may 14, 2004", True),
        ("It rose on May 14 2004", "May 14, 2004", False),  # the comma is a token
        ("Parisian streets", "Paris", False),  # tokens are whole
        ("The café of Zoë", "CAFE\u0301", True),  # composed and decomposed are the same
        ("The cafe", "café", False),  # an accent is not dropped, as another normalisation would
        ("wi-fi", "wi - fi", True),
        ("snake_case", "snake", True),  # an underscore is a symbol
        ("a ≠ b", "=", True),  # decomposed, it is a symbol and a mark
        ("U.S. Navy", "us navy", False),
        ("anything", " \u200b", False),  # an answer without a token
    ],
)
def test_answers_match_by_tokens(text: str, answer: str, matches: bool) -> None:
    assert has_answer(text, [spaced(answer)] if spaced(answer).strip() else []) is matches
    assert reference(text, [answer]) is matches


def test_matching_equals_the_reference() -> None:
    draw, seen = random.Random(4), set()
    for _ in range(3000):
        text = "".join(draw.choice(LETTERS + OTHERS) for _ in range(draw.randint(0, 12)))
        start = draw.randint(0, len(text))
        cut = text[start : start + draw.randint(1, 5)].swapcase()
        other = "".join(draw.choice(LETTERS + OTHERS) for _ in range(draw.randint(0, 3)))
        answers = [value for value in (cut, other) if spaced(value).strip()]
        assert has_answer(text, [spaced(answer) for answer in answers]) is reference(text, answers), (text, answers)
        seen.add(reference(text, answers))
    assert seen == {True, False}


def test_answer_metrics_count_the_first_passage_with_an_answer(written, run_stage) -> None:
    """Random passages of one document or several, tied scores, queries that a run lacks, and titles that have the
    answer: against a loop over every list."""
    draw = random.Random(7)
    words = [f"w{n}" for n in range(30)]
    rows = [
        {
            "passage_id": f"p{n}", "doc_id": f"d{n // 2}", "title": draw.choice(words), "start": 0, "end": 1,
            "num_tokens": 1, "text": " ".join(draw.choices(words, k=6)),
        }
        for n in range(60)
    ]  # fmt: skip
    rows[7]["text"] = "\u200b"  # without a token, as q9's answer
    texts = {row["passage_id"]: row["text"] for row in rows}
    answers = {f"q{n}": draw.choices(words, k=draw.randint(1, 2)) for n in range(20)}
    answers["q9"] = ["\u200b"]
    lists = [
        {query: {p: draw.choice([1.0, 2.0, 3.0]) for p in draw.sample(sorted(texts), 12)} for query in queries}
        for queries in ([f"q{n}" for n in range(20)], [f"q{n}" for n in range(5, 25)])
    ]
    lists[0]["q9"]["p7"] = 4.0
    runs = [
        written(Run, [
            {"query_id": q, "passage_id": p, "view": "dense", "rank": 1, "score": s}
            for q, results in run.items() for p, s in results.items()
        ])
        for run in lists
    ]  # fmt: skip
    settings = Evaluation(
        dataset="toy", titles=True, relevant_from=1, ignore_identical_ids=False, split="test", seed=1,
        metrics=["answer@2", "MRR@10", "answer@5"], names=["a", "b"], resamples=10_000,
        comparisons=[Comparison(run="a", baseline="b")],
    )  # fmt: skip
    qrels = written(Qrels, [{"query_id": "q3", "doc_id": "d1", "grade": 1}])
    answers_table = written(Answers, [{"query_id": query, "answers": answer} for query, answer in answers.items()])
    out = run_stage(
        evaluate, qrels=qrels, answers=answers_table, passages=written(Passages, rows), runs=runs, settings=settings
    )

    values = pq.read_table(out.path / "queries.parquet").to_pylist()
    results = {(row["run"], row["metric"], row["query_id"]): row["value"] for row in values}
    for name, ranked_lists in zip("ab", lists, strict=True):
        for query, wanted in answers.items():
            ranked = sorted(ranked_lists.get(query, {}).items(), key=lambda pair: (pair[1], pair[0]), reverse=True)
            for cutoff in (2, 5):
                hit = any(reference(texts[passage], wanted) for passage, _ in ranked[:cutoff])
                assert results[name, f"answer@{cutoff}", query] == hit, (name, query, cutoff)
    rows = pq.read_table(out.path / "rows.parquet").to_pylist()
    assert [(row["run"], row["metric"], row["queries"]) for row in rows] == [
        (run, metric, queries)
        for run in "ab"
        for metric, queries in (("answer@2", 20), ("MRR@10", 1), ("answer@5", 20))
    ]
    assert 0 < rows[0]["value"] < rows[2]["value"] < 1
