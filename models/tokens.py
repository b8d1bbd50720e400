"""Texts to WordPiece tokens: token ids, padding, and where words begin."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import punctuation
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer as FastTokenizer
from torch import Tensor

from models.batch import Rows
from models.model_files import UnusableModel

FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json")


@dataclass(frozen=True)
class Tokens(Rows):
    """A padded batch: ids [B, L] and mask [B, L], True where there is a token."""

    ids: Tensor
    mask: Tensor
    unattended: Tensor | None = None
    """[B, L], True at what reads the tokens without being one that they read; nowhere, if None."""


def num_tokens(batch: Any) -> int:
    """Tokens in a batch, padding not counted: in all `Tokens` that it is made of."""
    if isinstance(batch, Tokens):
        return int(batch.mask.sum())
    if not dataclasses.is_dataclass(batch):
        return 0
    return sum(num_tokens(getattr(batch, each.name)) for each in dataclasses.fields(batch))


class Tokenizer:
    """A WordPiece tokenizer, read from a Hugging Face folder."""

    def __init__(self, fast: FastTokenizer) -> None:
        fast.no_padding()
        fast.no_truncation()
        self._fast = fast
        self.cls, self.sep, self.mask, self.pad = (self._id(name) for name in ("[CLS]", "[SEP]", "[MASK]", "[PAD]"))
        pieces = fast.get_vocab()
        self.vocab_size = max(pieces.values()) + 1
        """V"""
        self.specials = np.array(sorted({self.cls, self.sep, self.mask, self.pad, self._id("[UNK]")}))
        """Return the tokens that a masked language model never predicts."""
        self.is_special = np.isin(np.arange(self.vocab_size), self.specials)
        """[V]"""
        self.continues = np.zeros(self.vocab_size, dtype=bool)
        """[V], True for a piece that continues the word to its left (`##ing`)."""
        self.continues[[number for piece, number in pieces.items() if piece.startswith("##") and len(piece) > 2]] = True
        self.punctuation = np.array(sorted(pieces[each] for each in punctuation if each in pieces), dtype=np.int64)
        """[n], the pieces that are a punctuation character, of those on a keyboard: what ColBERT leaves out."""

    @staticmethod
    def load(folder: Path) -> Tokenizer:
        """The tokenizer of a checkpoint's folder."""
        path = folder / FILES[0]
        if not path.is_file():
            raise ValueError(
                f"{folder}: expected a tokenizer in {FILES[0]}, found no such file; save it as a fast tokenizer"
            )
        try:
            return Tokenizer(FastTokenizer.from_file(str(path)))
        except ValueError as error:
            raise UnusableModel(f"{path}: {error}") from None
        except Exception as error:  # what the package raises has no class of its own
            reason = " ".join(str(error).split())
            raise UnusableModel(f"{path}: expected a fast tokenizer, found none that can be read ({reason})") from error

    def check_vocabulary_size(self, num_embeddings: int, folder: Path) -> None:
        """Refuse a model in `folder` with fewer embeddings than there are WordPiece tokens."""
        check_vocabulary_size(self.vocab_size, num_embeddings, folder)

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of every text without special tokens, uncut."""
        return [each.ids for each in self._fast.encode_batch_fast(list(texts), add_special_tokens=False)]

    def encode(self, texts: Sequence[str], max_tokens: int) -> list[list[int]]:
        """[CLS] text [SEP] of every text, cut at the end to at most `max_tokens` with both."""
        return [[self.cls, *ids[: max_tokens - 2], self.sep] for ids in self.token_ids(texts)]

    def pad_batch(self, rows: Sequence[Sequence[int]]) -> Tokens:
        """The rows, padded to the longest of them."""
        return pad(rows, self.pad)

    def _id(self, name: str) -> int:
        number = self._fast.token_to_id(name)
        if number is None:
            raise ValueError(f"the tokenizer has no {name} token; expected BERT's special tokens")
        return int(number)


def check_vocabulary_size(vocab_size: int, num_embeddings: int, folder: Path) -> None:
    """Refuse a tokenizer in `folder` with more tokens than its model has embeddings."""
    if vocab_size > num_embeddings:
        raise UnusableModel(
            f"{folder}: expected a tokenizer of at most {num_embeddings} WordPiece tokens, as many as the model has "
            f"embeddings, found {vocab_size}; use the tokenizer that the model was trained with"
        )


def pad(rows: Sequence[Sequence[int] | NDArray[np.int64]], padding: int = 0) -> Tokens:
    """Rows of ids, padded to the longest of them."""
    lengths = np.array([len(row) for row in rows])
    ids = np.full((len(rows), lengths.max()), padding, dtype=np.int64)
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids[mask] = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
    return Tokens(torch.from_numpy(ids), torch.from_numpy(mask))


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy the tokenizer's files from one checkpoint's folder to another."""
    for name in FILES:
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)
