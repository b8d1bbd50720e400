"""Rules for texts: each drops what it names, keeps the rest, and the first that fits is the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from storage.artifact import Artifact, source_of
from storage.errors import UserError
from storage.rows import read_rows
from storage.tables import Passages, PseudoQueries
from tasks.pseudo_queries.filter_texts import filter_texts
from tasks.pseudo_queries.number_readings import numbers_in
from tasks.pseudo_queries.text_rules import OwnPassage, TextRules, reason_to_drop, rules_of
from tests.tasks.corpora import passage, pseudo_query

pytestmark = pytest.mark.usefixtures("store")
PASSAGE = (
    "The bridge was opened in 1894 after eight years; it cost 1,184,000 pounds, is 240 m long and has two towers. "
    "It was designed by Horace Jones and is painted in red, white and blue."
)


@pytest.mark.parametrize(
    ("rules", "query", "reason"),
    [
        ({"min_words": 3}, "the bridge", "length"),
        ({"min_words": 3}, "the bridge opened", ""),
        ({"max_words": 3}, "when was it opened", "length"),
        ({"max_words": 4}, "when was it opened?", ""),
        ({"languages": "passage"}, "wann wurde die Brücke in London eröffnet", "language"),
        ({"languages": "passage"}, "when was the bridge in London opened", ""),
        ({"languages": ["de", "fr"]}, "when was the bridge in London opened", "language"),
        ({"languages": ["en"]}, "when was the bridge in London opened", ""),
        ({"languages": ["de"]}, "Horace Jones", ""),  # too short to say
        ({"max_copied_share": 0.75}, "designed by horace jones", "copied"),
        ({"max_copied_share": 0.75}, "designed by which jones", ""),
        ({"max_copied_share": 1.0}, "designed by horace jones", ""),
        ({"numbers": "in_passage"}, "was it opened in 1895", "number"),
        ({"numbers": "in_passage"}, "was it opened in 1894 ?", ""),
        ({"numbers": "in_passage"}, "did it take 8 years for its 2 towers", ""),
        ({"numbers": "in_passage"}, "did it take 9 years", "number"),
        ({"numbers": "in_passage"}, "did it cost 1184000 or 1 , 184 , 000 pounds", ""),
        ({"numbers": "in_passage"}, "did it cost 184 pounds", "number"),
        ({"numbers": "in_passage"}, "is it 240m long, the 1890s bridge", "number"),
        ({"forbidden": ["click here", "spam"]}, "Click here, please", "forbidden word"),
        ({"forbidden": ["click here", "spam"]}, "here I click on the spammer", ""),
        ({"min_words": 9, "numbers": "in_passage"}, "in 1895", "length"),
    ],
)
def test_rules(rules: dict[str, Any], query: str, reason: str) -> None:
    settings = TextRules.model_validate(rules)
    phrases = settings.forbidden if isinstance(settings.forbidden, list) else []

    assert reason_to_drop(rules_of(settings, phrases), query, OwnPassage(PASSAGE)) == reason


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({}, "expected some of min_words, max_words, languages"),
        ({"min_words": 5, "max_words": 4}, "max_words: expected at least min_words, 5, found 4"),
        ({"languages": ["English"]}, "languages: expected `passage`, or ISO 639 codes .*found 'English'"),
        ({"numbers": True}, "in_passage"),
    ],
)
def test_rules_that_cannot_be(rules: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        TextRules.model_validate(rules)


@pytest.mark.parametrize(
    ("rules", "reasons"),
    [
        ({"languages": ["de", "fr"]}, ["language", "language", ""]),
        ({"forbidden": ["was it"]}, ["", "forbidden word", ""]),
        ({"languages": "passage", "forbidden": ["advert"]}, ["", "", "forbidden word"]),
    ],
)
def test_the_stage_takes_rules_that_are_lists(
    rules: dict[str, Any], reasons: list[str], written: Any, tmp_path: Path
) -> None:
    passages = written(Passages, [passage("a#0", PASSAGE)])
    texts = ("when was the bridge in London opened", "was it opened by the Prince of Wales", "an advert")
    queries = written(PseudoQueries, [pseudo_query("a#0", rank, text) for rank, text in enumerate(texts)])

    filter_texts.body(tmp_path / "out", queries, passages, None, settings=TextRules.model_validate(rules))

    rows = read_rows(Artifact("filtered", "here", tmp_path / "out"), PseudoQueries)
    assert [row["reason"] for row in rows] == reasons


def test_the_stage_keeps_earlier_reasons_and_reads_a_word_list(written: Any, tmp_path: Path) -> None:
    passages = written(Passages, [passage("a#0", PASSAGE), passage("b#0", "Three men in a boat."), passage("c#0", "x")])
    rows = [
        pseudo_query("a#0", 0, "how long is the bridge"), pseudo_query("a#0", 1, "was it 1900"),
        pseudo_query("a#0", 2, "in 2000", kept=False, reason="round trip"), pseudo_query("a#0", 3, ""),
        pseudo_query("b#0", 0, "3 men"), pseudo_query("c#0", 0, "an advert"),
    ]  # fmt: skip
    queries = written(PseudoQueries, rows)
    (tmp_path / "words.txt").write_text("Advert\n\n")
    word_list = source_of(tmp_path / "words.txt", [tmp_path / "words.txt"])

    filter_texts.body(tmp_path / "out", queries, passages, word_list, settings=TextRules(numbers="in_passage"))
    results = list(read_rows(Artifact("filtered", "here", tmp_path / "out"), PseudoQueries))

    assert [row["reason"] for row in results] == ["", "number", "round trip", "empty", "", "forbidden word"]
    assert [row["kept"] for row in results] == [not row["reason"] for row in results]
    with pytest.raises(UserError, match=r"queries\.filter\.texts: it keeps no query .*4 dropped by length"):
        filter_texts.body(tmp_path / "none", queries, passages, None, settings=TextRules(min_words=30))
    (tmp_path / "words.txt").write_text(" ,\n")
    with pytest.raises(UserError, match=r"words\.txt: expected a word or phrase on each line"):
        filter_texts.body(tmp_path / "no words", queries, passages, word_list, settings=TextRules(max_words=9))


def test_number_words_are_found_in_any_case_and_a_dotless_i_is_another_letter() -> None:
    assert numbers_in("Five of TWENTY, f\u0131ve, S\u0130X") == {"5", "20"}
