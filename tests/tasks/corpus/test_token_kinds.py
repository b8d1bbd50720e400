"""Splitting with byte-level BPE and SentencePiece, whose tokens may begin with a blank."""

from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from tasks.corpus import split_corpus as module
from tasks.corpus.sentence_packing import MIN_TOKENS, Blanks, beginning, count_tokens, spans
from tasks.corpus.split_corpus import Splitting, SplittingWithTitles, load_tokenizer, split_documents
from tests import tokenizers
from tests.tasks.corpus.test_sentence_packing import TEXTS

KINDS = ["byte_level", "with_blanks", "sentencepiece"]


def fast(kind: str) -> Tokenizer:
    """A tokenizer of a kind; `with_blanks` has tokens of several blanks, as ModernBERT has."""
    tokenizer = tokenizers.fast(kind.replace("with_blanks", "byte_level"))
    if kind == "with_blanks":
        tokenizer.add_tokens([AddedToken(" " * number, normalized=False) for number in range(5, 1, -1)])
    with TemporaryDirectory() as folder:
        tokenizer.save(f"{folder}/tokenizer.json")
        return load_tokenizer(f"{folder}/tokenizer.json")


TOKENIZERS = {kind: fast(kind) for kind in KINDS}
WORDS = [
    "the river",
    "  ",
    " painters",
    "mountains.",
    "\n",
    "Was it? ",
    "中文",
    "café",
    "😀",
    "'s ",
    "a" * 30,
    " \x00 ",
    "\u200b",
]
MIXED = TEXTS | st.lists(st.sampled_from(WORDS), max_size=40).map("".join)


def num_tokens(text: str, kind: str) -> int:
    return len(TOKENIZERS[kind].encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=80, deadline=None)
@given(text=MIXED, max_tokens=st.integers(MIN_TOKENS, 40))
@example(text="the river.  The  castle \n", max_tokens=MIN_TOKENS)
@example(text="the riverthe riverthe riverthe riverthe river中文the river", max_tokens=17)
def test_spans_cover_the_text_and_fit(kind: str, text: str, max_tokens: int) -> None:
    (results,) = spans([text], TOKENIZERS[kind], limits=[max_tokens], language="en")

    assert "".join(text[span.start : span.end] for span in results) == text
    assert [span.start for span in results] == [0, *(span.end for span in results[:-1])]
    for span in results:
        assert num_tokens(text[span.start : span.end], kind) == span.num_tokens
        assert span.num_tokens <= max_tokens or span.end - span.start == 1


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=80, deadline=None)
@given(texts=st.lists(MIXED, max_size=6))
@example(texts=["the \x00 river"])
def test_counts_by_words_are_the_tokenizers(kind: str, texts: list[str]) -> None:
    assert count_tokens(texts, TOKENIZERS[kind]) == [num_tokens(text, kind) for text in texts]


@pytest.mark.parametrize("kind", KINDS)
def test_most_words_are_counted_on_their_own(kind: str) -> None:
    blanks = Blanks.of(TOKENIZERS[kind])

    assert blanks.words("The river,  the castle") == ["The", " river,", "  the", " castle"]
    assert not blanks.dropped


@pytest.mark.parametrize("kind", KINDS)
def test_sentences_are_packed_until_a_passage_is_full(kind: str) -> None:
    text = "The river ran. The castle was old. The painter was in the garden. In winter the ocean was grey."
    lengths = [
        num_tokens(part, kind) for part in ("The river ran. The castle was old. ", "The painter was in the garden. ")
    ]

    (results,) = spans([text], TOKENIZERS[kind], limits=[max(lengths)], language="en")

    assert [text[span.start : span.end] for span in results][:2] == [
        "The river ran. The castle was old. ", "The painter was in the garden. "
    ]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_titles_and_blank_texts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "load_tokenizer", TOKENIZERS.__getitem__)
    documents: list[dict[str, Any]] = [
        {"doc_id": "a", "title": "The castle", "text": " \n"},
        {"doc_id": "b", "title": "The castle of the king", "text": "The river ran. The ocean was grey. " * 4},
    ]
    rows = split_documents(documents, tokenizer=kind, settings=Splitting(max_tokens=20, titles=False))
    assert (rows[0]["title"], rows[0]["text"]) == ("The castle", " \n")
    assert {row["title"] for row in rows[1:]} == {""}

    settings = SplittingWithTitles(max_tokens=20, titles="every", language="en")
    rows = split_documents(documents, tokenizer=kind, settings=settings)
    title = beginning("The castle of the king", TOKENIZERS[kind], 10)
    assert title.startswith("The castle")
    assert {row["title"] for row in rows[1:]} == {title}
    assert all(num_tokens(row["title"], kind) + row["num_tokens"] <= 20 for row in rows)
