"""Tokenizers and models of a part of a vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import processors

from models.tokens import SPECIALS
from models.vocabulary_subset import characters_of, required_tokens, subset_model, subset_tokenizer
from tests.tiny import PIECES, WORDS, fast_tokenizer, tiny_bert

KEPT_WORDS, KEPT_ENDINGS = ("river", "king", "stone"), ("##s", "##ing")
CONTENT: dict[str, Any] = json.loads(fast_tokenizer().to_str())
KEPT = sorted(PIECES.index(token) for token in required_tokens(CONTENT) | {*KEPT_WORDS, *KEPT_ENDINGS})
SUBSET = FastTokenizer.from_str(json.dumps(subset_tokenizer(CONTENT, KEPT)))
COMPLETE = fast_tokenizer()

words = st.one_of(st.sampled_from(WORDS), st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=9))
endings = st.sampled_from(["", "s", "ing", "land", "ish"])
texts = st.lists(st.tuples(words, endings, st.sampled_from(["", ".", ","])).map("".join), max_size=8).map(" ".join)


@given(texts)
def test_a_text_has_kept_tokens_only_and_the_same_unknown_ones(text: str) -> None:
    before, after = COMPLETE.encode(text), SUBSET.encode(text)

    assert set(after.tokens) <= {PIECES[number] for number in KEPT}
    assert after.ids == [KEPT.index(PIECES.index(token)) for token in after.tokens]
    assert after.tokens.count("[UNK]") == before.tokens.count("[UNK]")
    assert (after.tokens[0], after.tokens[-1]) == ("[CLS]", "[SEP]")


@given(texts)
def test_a_word_whose_tokens_are_all_kept_is_tokenised_as_before(text: str) -> None:
    kept = {PIECES[number] for number in KEPT}
    for word in text.split():
        tokens = COMPLETE.encode(word, add_special_tokens=False).tokens
        if set(tokens) <= kept:
            assert SUBSET.encode(word, add_special_tokens=False).tokens == tokens


def test_a_text_of_kept_words_has_the_same_vectors_and_logits() -> None:
    complete = tiny_bert(spread=0.2).eval()
    subset = subset_model(complete, KEPT).eval()
    text = "Rivers, kings. stone kinging"
    before, after = (torch.tensor([tokenizer.encode(text).ids]) for tokenizer in (COMPLETE, SUBSET))
    assert before.tolist() != after.tolist()

    hidden, reduced = complete.bert(before, before > 0), subset.bert(after, after > 0)

    assert torch.equal(hidden, reduced)
    torch.testing.assert_close(subset.vocabulary(reduced[0]), complete.vocabulary(hidden[0])[:, KEPT])
    assert subset.config.vocab_size == len(KEPT)
    assert subset.bert.embeddings.word_embeddings.padding_idx == KEPT.index(PIECES.index("[PAD]"))


def test_characters_are_kept_at_the_beginning_and_within_words() -> None:
    tokens = [*SPECIALS, "a", "##a", "é", "##é", "[unused0]", "ab"]
    content = {"model": {"vocab": {token: number for number, token in enumerate(tokens)}}}

    assert required_tokens(content) == {*SPECIALS, "a", "##a", "[unused0]"}
    assert required_tokens(content, "é") == {*SPECIALS, "a", "##a", "é", "##é", "[unused0]"}
    assert characters_of(["##bé", "ab"]) == "abé"


def test_both_forms_of_post_processors_and_padding_get_the_new_ids(tmp_path: Path) -> None:
    fast = fast_tokenizer()
    template = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", PIECES.index("[CLS]")), ("[SEP]", PIECES.index("[SEP]"))]
    )
    fast.post_processor = processors.Sequence([template])
    fast.enable_padding(pad_id=0, pad_token="[PAD]", length=6)
    kept = [number for number in KEPT if PIECES[number] != "[PAD]"] + [PIECES.index("[PAD]")]

    subset = FastTokenizer.from_str(json.dumps(subset_tokenizer(json.loads(fast.to_str()), kept)))

    ids = [kept.index(PIECES.index(token)) for token in ("[CLS]", "king", "##s", "[SEP]", "[PAD]", "[PAD]")]
    assert subset.encode("kings").ids == ids
