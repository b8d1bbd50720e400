"""The special tokens of a tokenizer by role, whatever their names: `[CLS]` in BERT is `<s>` in RoBERTa.

What surrounds a text is read from the tokenizer's post-processor, which adds it. The other roles are read from the
tokenizer's configuration and, where this names none, from the usual names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Encoding
from tokenizers import Tokenizer as FastTokenizer

from models.model_files import UnusableModel, read_json

CONFIGURATIONS = ("special_tokens_map.json", "tokenizer_config.json")
USUAL = {
    "cls": ("[CLS]", "<s>"), "sep": ("[SEP]", "</s>"), "mask": ("[MASK]", "<mask>"), "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
}  # fmt: skip


@dataclass(frozen=True)
class SpecialTokens:
    """The ids of the special tokens."""

    cls: int
    """Before a text."""
    sep: int
    """After a text."""
    mask: int
    pad: int
    unk: int
    between: tuple[int, ...]
    """Between two texts that are encoded together: [SEP] in BERT, </s></s> in RoBERTa."""
    others: tuple[int, ...]
    """Special tokens without a role here."""

    @property
    def ids(self) -> list[int]:
        """Return all ids in ascending order."""
        return sorted({self.cls, self.sep, self.mask, self.pad, self.unk, *self.others})


def special_tokens(fast: FastTokenizer, names: Mapping[str, str] | None = None) -> SpecialTokens:
    """Return the special tokens of a tokenizer that neither truncates nor pads; `names` are those of `stated_names`.

    Raises UnusableModel if a role has no token, or if the tokenizer does not add one token before a text and one after.
    """
    roles = {role: _id_of(fast, role, (names or {}).get(role)) for role in USUAL}
    frame, pair = _special_ids(fast.encode("")), _special_ids(fast.encode("", ""))
    if frame:
        if len(frame) != 2:
            raise UnusableModel(
                "expected a tokenizer that adds one special token before a text and one after, as BERT's and "
                f"RoBERTa's do, found {len(frame)}; use another model"
            )
        roles["cls"], roles["sep"] = frame
    others = [number for number, token in fast.get_added_tokens_decoder().items() if token.special]
    return SpecialTokens(**roles, between=tuple(pair[1:-1]) or (roles["sep"],), others=tuple(others))


def stated_names(folder: Path) -> dict[str, str]:
    """Return the names of special tokens by role that the configuration in a tokenizer's folder states."""
    names: dict[str, str] = {}
    for file in CONFIGURATIONS:
        if (folder / file).is_file():
            stated = read_json(folder / file, "a tokenizer's configuration")
            names |= {role: _content(stated[key]) for role in USUAL if stated.get(key := f"{role}_token")}
    return names


def _special_ids(encoding: Encoding) -> list[int]:
    """Return what the tokenizer has added to empty texts; it may also have added a blank."""
    return [number for number, is_special in zip(encoding.ids, encoding.special_tokens_mask, strict=True) if is_special]


def _content(token: Any) -> str:
    """Return the text of a special token, which is stated with or without its properties."""
    return str(token.get("content") if isinstance(token, dict) else token)


def _id_of(fast: FastTokenizer, role: str, name: str | None) -> int:
    names = (name,) if name else USUAL[role]
    numbers = [number for candidate in names if (number := fast.token_to_id(candidate)) is not None]
    if not numbers:
        expected = f"{' or '.join(names)}, or {role}_token in tokenizer_config.json"
        raise UnusableModel(f"the tokenizer has no {role} token; expected {expected}")
    return int(numbers[0])
