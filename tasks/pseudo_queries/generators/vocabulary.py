"""A small vocabulary cut out of a given one: the pieces that a collection uses most, with their embeddings.

WordPiece takes the longest piece that fits, so any subset that holds the single characters still spells every word.
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

from storage.errors import UserError
from storage.files import writing_files

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
EMBEDDINGS = "embeddings.word_embeddings.weight"


@dataclass(frozen=True)
class Vocabulary:
    """Word pieces, the special ones first, and their numbers in the vocabulary they were taken from."""

    pieces: list[str]
    numbers: list[int]


def frequent_pieces(checkpoint: Path, groups: Iterable[tuple[list[str], int]], size: int) -> Vocabulary:
    """At most `size` pieces of the checkpoint's: special tokens, single ASCII characters, the most frequent.

    A group is texts and how often each of them counts. Equal counts go by the piece's number.
    """
    tokenizer = FastTokenizer.from_file(str(checkpoint / "tokenizer.json"))
    tokenizer.no_truncation()
    counts: Counter[int] = Counter()
    for texts, weight in groups:
        for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False):
            for number in encoding.ids:
                counts[number] += weight
    names = {number: piece for piece, number in tokenizer.get_vocab().items()}
    numbers = {piece: number for number, piece in names.items()}
    if missing := [token for token in SPECIAL if token not in numbers]:
        raise UserError(f"{checkpoint}/tokenizer.json: expected BERT's special tokens, but there is no {missing[0]}")
    characters = [
        number for number in sorted(names) if names[number].isascii() and len(names[number].removeprefix("##")) == 1
    ]
    always = [numbers[token] for token in SPECIAL] + characters
    frequent = sorted(counts.keys() - set(always), key=lambda number: (-counts[number], number))
    kept = (always + frequent)[: max(size, len(always))]
    return Vocabulary([names[number] for number in kept], kept)


def save_tokenizer(vocabulary: Vocabulary, like: Path, out: Path) -> None:
    """Write the tokenizer of these pieces; case and accents are handled as the tokenizer in folder `like` does."""
    given = AutoTokenizer.from_pretrained(str(like))
    settings = {
        name: given.init_kwargs[name] for name in ("do_lower_case", "strip_accents") if name in given.init_kwargs
    }
    made = BertTokenizer(vocab={piece: number for number, piece in enumerate(vocabulary.pieces)}, **settings)
    with writing_files(out) as folder:
        made.save_pretrained(str(folder))


def embeddings_of(vocabulary: Vocabulary, checkpoint: Path) -> Tensor:
    """The pieces' word embeddings in a BERT's folder. [pieces, width]"""
    path = checkpoint / "model.safetensors"
    with safe_open(path, "pt") as weights:
        names = [name for name in weights.keys() if name.endswith(EMBEDDINGS)]  # noqa: SIM118, no mapping
        if not names:
            raise UserError(f"{path}: expected a BERT's weights, but no tensor is called {EMBEDDINGS}")
        embeddings: Tensor = weights.get_tensor(names[0])
    return embeddings[torch.tensor(vocabulary.numbers)].float()
