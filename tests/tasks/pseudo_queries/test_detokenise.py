"""Detokenised queries: what a WordPiece decoder separates is joined, and ordinary text stays as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers.pre_tokenizers import BertPreTokenizer

from storage.artifact import Artifact
from storage.rows import read_rows
from storage.tables import PseudoQueries
from tasks.pseudo_queries.detokenise import detokenise_queries, detokenised
from tests.tasks.corpora import pseudo_query

pytestmark = pytest.mark.usefixtures("store")


@pytest.mark.parametrize(
    ("text", "joined"),
    [
        ("who is he ?", "who is he?"),
        ("what is the king ' s name ? !", "what is the king's name?!"),
        ("the city ’ s age", "the city’s age"),
        ("it is n ' t here , is it", "it is n't here, is it"),
        ("o ' neill ( born 1950 )", "o'neill (born 1950)"),
        ("1 , 234 , 567 people", "1,234,567 people"),
        ("in 1999 , 234 people", "in 1999, 234 people"),
        ("3 . 5 % of $ 20", "3.5% of $20"),
        ("what is .net", "what is .net"),
        ("who is gerard 't hooft", "who is gerard 't hooft"),
        ("the king' s name", "the king's name"),
        ("rock ' n ' roll - music", "rock ' n ' roll - music"),
        ("", ""),
    ],
)
def test_joined_texts(text: str, joined: str) -> None:
    assert detokenised(text) == joined
    assert detokenised(joined) == joined


@pytest.mark.parametrize(
    "text",
    ["What is the king's name?", "Who founded St. Louis, Missouri (USA)?", "How much is 1,234.5 in 2001?",
     "C++ or .NET: which is faster?", "Is it 50% of $3.5?"],
)  # fmt: skip
def test_a_text_that_wordpiece_has_split_is_restored(text: str) -> None:
    pieces = [piece for piece, _ in BertPreTokenizer().pre_tokenize_str(text)]

    assert detokenised(text) == text
    if "+" not in text:  # no rule knows which symbols belong together
        assert detokenised(" ".join(pieces)) == text


def test_the_stage_changes_the_texts_alone(written: Any, tmp_path: Path) -> None:
    rows = [pseudo_query("a#0", 0, "who is he ?"), pseudo_query("a#0", 1, ""), pseudo_query("b#0", 0, "as it was")]
    queries: Artifact[PseudoQueries] = written(PseudoQueries, rows)

    detokenise_queries.body(tmp_path, queries)

    results = list(read_rows(Artifact("detokenised", "here", tmp_path), PseudoQueries))

    assert results == [rows[0] | {"query": "who is he?"}, *rows[1:]]
