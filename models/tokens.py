"""Texts to tokens: token ids, padding, special tokens, and where words begin."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from string import punctuation
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer as FastTokenizer
from torch import Tensor

from models.batch import HostProperty, Rows, flat_positions, known
from models.model_files import UnusableModel
from models.special_tokens import special_tokens, stated_names
from models.token_texts import BLANK, closes_word, continues_word, mark, token_texts

FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json")
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""The special tokens of BERT; `models.special_tokens` has those of any tokenizer."""


@dataclass(frozen=True)
class Tokens(Rows):
    """A padded batch: ids [B, L] and a mask [B, L] that is False at padding."""

    ids: Tensor
    mask: Tensor
    unattended: Tensor | None = None
    """[B, L], True at positions that attend to others but are attended to by none; None for no such position."""

    @property
    def computed(self) -> Tensor:
        """[B, L], True at all tokens but padding."""
        return self.mask if self.unattended is None else self.mask | self.unattended

    @HostProperty
    def positions(self) -> Tensor:
        """The flat positions [N] of all tokens but padding."""
        return flat_positions(self.computed)

    @HostProperty
    def lengths(self) -> tuple[int, ...]:
        """The number of tokens of each text."""
        return tuple(self.mask.sum(-1).tolist())

    @property
    def longest(self) -> int:
        """The number of tokens of the longest text."""
        return max(self.lengths, default=0)

    def flattened(self) -> Tokens:
        """Return texts in groups, ids [B, G, L], as a batch of single texts [B G, L]."""
        return known(Tokens(self.ids.flatten(0, 1), self.mask.flatten(0, 1)), positions=self.positions)

    def after_first(self) -> Tensor:
        """Return the flat positions [N] of all tokens but padding and each text's first."""
        return flat_positions(self.mask & (torch.arange(self.mask.shape[-1], device=self.mask.device) > 0))

    def with_ids(self, ids: Tensor) -> Tokens:
        """Return other ids at the same positions."""
        return known(replace(self, ids=ids), positions=self.positions)


def num_tokens(batch: Any) -> int:
    """Return the number of tokens without padding in a batch, summed over all `Tokens` that it contains."""
    if isinstance(batch, Tokens):
        return int(batch.mask.sum())
    if not dataclasses.is_dataclass(batch):
        return 0
    return sum(num_tokens(getattr(batch, field.name)) for field in dataclasses.fields(batch))


class Tokenizer:
    """A tokenizer of WordPiece, byte-level BPE or SentencePiece tokens, read from a Hugging Face folder."""

    def __init__(self, fast: FastTokenizer, names: Mapping[str, str] | None = None) -> None:
        """`names` are those of special tokens by role, where they are not the usual ones."""
        fast.no_padding()
        fast.no_truncation()
        self._fast, self.kind = fast, mark(fast)
        self.vocab_size = max(fast.get_vocab().values()) + 1
        """V, the largest token id plus 1."""
        special = special_tokens(fast, names)
        self.cls, self.sep, self.mask, self.pad = special.cls, special.sep, special.mask, special.pad
        self.between = special.between
        """The ids between two texts that are encoded together."""
        self.specials = np.array(special.ids)
        """The ids of the special tokens, which a masked language model never predicts."""
        self.is_special = np.isin(np.arange(self.vocab_size), self.specials)
        """[V], True at special tokens."""

    @cached_property
    def texts(self) -> dict[int, bytes]:
        """The text of each token in UTF-8, with a blank where the token follows one."""
        return token_texts(self._fast)

    @cached_property
    def continues(self) -> NDArray[np.bool_]:
        """[V], True at tokens that continue a word."""
        continues_V = np.zeros(self.vocab_size, dtype=bool)
        continues_V[[number for number, text in self.texts.items() if continues_word(text, self.kind)]] = True
        return continues_V

    @cached_property
    def closes(self) -> NDArray[np.bool_]:
        """[V], True at tokens after which a word begins, such as punctuation marks; False in WordPiece."""
        closes_V = np.zeros(self.vocab_size, dtype=bool)
        closes_V[[number for number, text in self.texts.items() if closes_word(text, self.kind)]] = True
        return closes_V

    @cached_property
    def punctuation(self) -> NDArray[np.int64]:
        """The ids of ASCII punctuation marks, which ColBERT skips in passages."""
        marks = {character.encode() for character in punctuation}
        numbers = [number for number, text in self.texts.items() if text.removeprefix(BLANK) in marks]
        return np.array(sorted(number for number in numbers if not self.continues[number]), dtype=np.int64)

    @staticmethod
    def load(folder: Path) -> Tokenizer:
        """Read the tokenizer of a checkpoint's folder; ValueError if there is none or it cannot be read."""
        path = folder / FILES[0]
        if not path.is_file():
            raise ValueError(
                f"{folder}: expected a tokenizer in {FILES[0]}, found no such file; save it as a fast tokenizer"
            )
        names = stated_names(folder)
        try:
            return Tokenizer(FastTokenizer.from_file(str(path)), names)
        except ValueError as error:
            raise UnusableModel(f"{path}: {error}") from None
        except Exception as error:  # the package raises plain Exception
            reason = " ".join(str(error).split())
            raise UnusableModel(f"{path}: expected a fast tokenizer, found none that can be read ({reason})") from error

    def check_vocabulary_size(self, num_embeddings: int, folder: Path) -> None:
        """Raise UnusableModel if the model in `folder` has fewer embeddings than there are tokens."""
        check_vocabulary_size(self.vocab_size, num_embeddings, folder)

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, without special tokens and not truncated."""
        return [encoding.ids for encoding in self._fast.encode_batch_fast(list(texts), add_special_tokens=False)]

    def encode(self, texts: Sequence[str], max_tokens: int, marker: int | None = None) -> list[list[int]]:
        """Return the ids of [CLS] text [SEP] for each text, truncated at the end to `max_tokens` in total.

        A `marker` is the id of a token that follows [CLS].
        """
        first = [self.cls] if marker is None else [self.cls, marker]
        return [[*first, *ids[: max_tokens - len(first) - 1], self.sep] for ids in self.token_ids(texts)]

    def pad_batch(self, rows: Sequence[Sequence[int]]) -> Tokens:
        """Pad rows of ids to the longest row."""
        return pad(rows, self.pad)

    def token_name(self, number: int) -> str:
        """Return the name of a token in the vocabulary."""
        return str(self._fast.id_to_token(number))

    def token_id(self, name: str) -> int:
        """Return the id of a token by its name; ValueError if the vocabulary lacks it."""
        number = self._fast.token_to_id(name)
        if number is None:
            raise ValueError(
                f"the tokenizer has no {name} token, which BERT's has; use a BERT, or leave the setting out"
            )
        return int(number)


def check_vocabulary_size(vocab_size: int, num_embeddings: int, folder: Path) -> None:
    """Raise UnusableModel if the tokenizer in `folder` has more tokens than the model has embeddings."""
    if vocab_size > num_embeddings:
        raise UnusableModel(
            f"{folder}: expected a tokenizer of at most {num_embeddings} tokens, as many as the model has "
            f"embeddings, found {vocab_size}; use the tokenizer that the model was trained with"
        )


def pad(rows: Sequence[Sequence[int] | NDArray[np.int64]], padding: int = 0) -> Tokens:
    """Pad rows of ids to the longest row."""
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
