"""A subset of a given vocabulary: the WordPiece tokens that a collection uses most, with their embeddings.

WordPiece takes the longest token that fits, so a subset with all single characters can still spell every word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from tokenizers import Tokenizer as FastTokenizer
from torch import Tensor
from transformers import AutoTokenizer, BertTokenizer

from models.tokens import SPECIALS
from storage.errors import UserError
from storage.files import writing_files
from tasks.corpus.select_vocabulary import check_kind

EMBEDDINGS = "embeddings.word_embeddings.weight"


@dataclass(frozen=True)
class Vocabulary:
    """WordPiece tokens, the special tokens first, and their ids in the original vocabulary."""

    pieces: list[str]
    numbers: list[int]


def frequent_pieces(checkpoint: Path, groups: Iterable[tuple[list[str], int]], size: int) -> Vocabulary:
    """Return at most `size` tokens of the checkpoint: special tokens, single ASCII characters, the most frequent ones.

    A group is a list of texts and the weight of each of them. Equal counts are ordered by token id.
    """
    check_kind("queries.train", checkpoint, "name a generator in queries.model")
    tokenizer = FastTokenizer.from_file(str(checkpoint / "tokenizer.json"))
    tokenizer.no_truncation()
    counts: Counter[int] = Counter()
    for texts, weight in groups:
        for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False):
            for number in encoding.ids:
                counts[number] += weight
    names = {number: piece for piece, number in tokenizer.get_vocab().items()}
    numbers = {piece: number for number, piece in names.items()}
    if missing := [token for token in SPECIALS if token not in numbers]:
        raise UserError(
            f"queries.train: {checkpoint}/tokenizer.json: expected BERT's special tokens, found no {missing[0]}; "
            "name a generator in queries.model"
        )
    characters = [
        number for number in sorted(names) if names[number].isascii() and len(names[number].removeprefix("##")) == 1
    ]
    always = [numbers[token] for token in SPECIALS] + characters
    frequent = sorted(counts.keys() - set(always), key=lambda number: (-counts[number], number))
    kept = (always + frequent)[: max(size, len(always))]
    return Vocabulary([names[number] for number in kept], kept)


def save_tokenizer(vocabulary: Vocabulary, like: Path, out: Path) -> None:
    """Write a tokenizer of these tokens; it treats case and accents like the tokenizer in folder `like`."""
    original = AutoTokenizer.from_pretrained(str(like))
    settings = {
        name: original.init_kwargs[name] for name in ("do_lower_case", "strip_accents") if name in original.init_kwargs
    }
    tokenizer = BertTokenizer(vocab={piece: number for number, piece in enumerate(vocabulary.pieces)}, **settings)
    with writing_files(out) as folder:
        tokenizer.save_pretrained(str(folder))


def embeddings_of(vocabulary: Vocabulary, checkpoint: Path) -> Tensor:
    """Return the tokens' word embeddings in a BERT checkpoint. [tokens, width]"""
    path = checkpoint / "model.safetensors"
    with safe_open(path, "pt") as weights:
        names = [name for name in weights.keys() if name.endswith(EMBEDDINGS)]  # noqa: SIM118, no mapping
        if not names:
            raise UserError(f"{path}: expected the weights of a BERT, found no tensor {EMBEDDINGS}")
        embeddings: Tensor = weights.get_tensor(names[0])
    return embeddings[torch.tensor(vocabulary.numbers)].float()
