"""Word pieces, padding, and where words begin."""

from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer as FastTokenizer

from models.tokens import Tokenizer, copy_tokenizer, pad
from tests.tiny import PIECES, save_tokenizer

TEXTS = ["River, mountains", "", "painting of kings and oceanland bridges.", "?"]


def test_ids_are_hugging_faces(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)

    assert tokenizer.encode(TEXTS, 60) == reference(TEXTS)["input_ids"]
    assert tokenizer.token_ids(TEXTS) == reference(TEXTS, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("max_tokens", [3, 4, 7])
def test_cut_at_the_end(tokenizer: Tokenizer, tmp_path: Path, max_tokens: int) -> None:
    save_tokenizer(tmp_path)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)

    assert tokenizer.encode(TEXTS, max_tokens) == reference(TEXTS, truncation=True, max_length=max_tokens)["input_ids"]


def test_pieces_that_continue_a_word(tokenizer: Tokenizer) -> None:
    pieces = [PIECES[number] for number in tokenizer.token_ids(["Mountains, kingish"])[0]]

    assert pieces == ["mountain", "##s", ",", "king", "##ish"]
    continues = tokenizer.continues[tokenizer.token_ids(["Mountains, kingish"])[0]]
    assert continues.tolist() == [False, True, False, False, True]
    assert tokenizer.vocab_size == len(PIECES)


def test_punctuation(tokenizer: Tokenizer, tmp_path: Path) -> None:
    assert [PIECES[number] for number in tokenizer.punctuation] == [".", ","]

    save_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(path.read_text().replace('"."', '"..."').replace('","', '"##,"'))
    none = Tokenizer.load(tmp_path).punctuation
    assert none.tolist() == []
    assert none.dtype == "int64"


def test_padding() -> None:
    tokens = pad([[1, 2], [3], [4, 5, 6], []], padding=9)

    assert tokens.ids.tolist() == [[1, 2, 9], [3, 9, 9], [4, 5, 6], [9, 9, 9]]
    assert tokens.mask.tolist() == [[True, True, False], [True, False, False], [True] * 3, [False] * 3]
    assert tokens.ids.dtype == torch.int64


def test_a_tokenizer_that_cuts_and_pads_by_itself_does_neither_here(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    fast = FastTokenizer.from_file(str(tmp_path / "tokenizer.json"))
    fast.enable_truncation(4)
    fast.enable_padding(length=30)
    fast.save(str(tmp_path / "tokenizer.json"))

    assert [len(ids) for ids in Tokenizer.load(tmp_path).token_ids(["river mountain castle music planet", "tree"])] == [
        5,
        1,
    ]


def test_copies_of_a_tokenizer_are_the_same(tmp_path: Path) -> None:
    (source := tmp_path / "source").mkdir()
    (target := tmp_path / "target").mkdir()
    save_tokenizer(source)

    copy_tokenizer(source, target)

    assert {file.name: file.read_bytes() for file in source.iterdir()} == {
        file.name: file.read_bytes() for file in target.iterdir()
    }


def test_what_is_no_tokenizer_of_a_bert(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected a tokenizer in tokenizer\.json, found no such file"):
        Tokenizer.load(tmp_path)

    save_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(path.read_text().replace("[MASK]", "[HIDDEN]"))
    with pytest.raises(ValueError, match=r"no mask token; expected \[MASK\] or <mask>"):
        Tokenizer.load(tmp_path)
