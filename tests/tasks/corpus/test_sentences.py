"""Sentences of texts of any length: none is lost, and the segmenter never sees more than a block."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.corpus import sentences as module
from tasks.corpus.sentences import sentences

PARAGRAPH = "The first one is here. Is the second one? Mr. Smith wrote a third.\n\n"
ODD = st.sampled_from([
    "One. ", "Two! ", "e.g. ", "\n\n", "\r\n\r\n", "漢字。", "\u2028", "\x00", "(a. b) ", "“ c. ", "word", "  ",
])  # fmt: skip


def test_a_long_text_has_the_sentences_of_its_paragraphs() -> None:
    results = sentences(PARAGRAPH * 500, "en")  # 34,000 characters

    assert "".join(results) == PARAGRAPH * 500
    assert [sentence.strip() for sentence in results if sentence.strip()] == [
        "The first one is here.", "Is the second one?", "Mr. Smith wrote a third.",
    ] * 500  # fmt: skip


def test_paragraphs_of_a_script_with_long_letters_keep_their_ends() -> None:
    text = "漢字。\n\n" * 2000  # 10,000 characters are 22,000 bytes

    results = sentences(text, "ja")

    assert "".join(results) == text
    assert len(results) >= 2000


@settings(max_examples=200, deadline=None)
@given(st.lists(ODD | st.text(max_size=3), max_size=60).map("".join), st.integers(1, 50))
def test_nothing_is_lost_whatever_the_blocks(text: str, block: int) -> None:
    with pytest.MonkeyPatch.context() as smaller:
        smaller.setattr(module, "BLOCK", block)

        assert "".join(sentences(text, "en")) == text


def test_the_segmenter_sees_a_block_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def watched(language: str, text: str) -> list[str]:
        seen.append(len(text))
        return segment(language, text)

    segment = module.sentencex.segment
    monkeypatch.setattr(module.sentencex, "segment", watched)
    text = "漢字。" * 20_000 + "no end " * 20_000  # in 200,000 characters at once, a quarter of a minute

    assert "".join(sentences(text, "ja")) == text
    assert max(seen) <= 10_000
    assert sum(seen) <= 1.5 * len(text)


def test_a_sentence_without_end_is_cut_at_blanks() -> None:
    results = sentences("word " * 5000, "en")

    assert len(results) == 3
    assert all(sentence.endswith("word ") for sentence in results)
