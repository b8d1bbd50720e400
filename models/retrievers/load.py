"""A checkpoint's folder opened as a retriever, whoever wrote it: this project, or sentence-transformers.

What texts become is for `models.retrievers.retriever` and `models.retrievers.sentence_transformer`; here both look the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from models.layers.bert_config import CONFIG, BertConfig
from models.model_files import Unusable, read_json, refusing
from models.representation import Role
from models.retrievers import retriever, sentence_transformer, towers
from models.retrievers.retriever import Retriever, Settings
from models.retrievers.sentence_transformer import SentenceTransformer
from models.tokens import Tokenizer, Tokens


@dataclass(frozen=True)
class Opened:
    """A retriever, and what makes batches of texts for it."""

    retriever: Retriever | SentenceTransformer
    encode: Callable[[Sequence[str], Role, int], list[list[int]]]
    """Texts of a role to ids, cut to so many tokens."""
    pad_batch: Callable[[Sequence[Sequence[int]]], Tokens]


def opened(folder: Path) -> Opened:
    """The retriever of a folder, in evaluation mode; a folder that holds none, or a broken one, is a ValueError."""
    with refusing(folder):
        return _opened(folder)


def _opened(folder: Path) -> Opened:
    if is_foreign(folder):
        found, reader = sentence_transformer.load(folder)
        return Opened(found, reader.encode, reader.pad_batch)
    must_be_no_cross_encoder(folder)
    tokenizer = Tokenizer.load(folder)

    def encode(texts: Sequence[str], role: Role, max_tokens: int) -> list[list[int]]:
        return tokenizer.encode(texts, max_tokens)

    return Opened(retriever.load(folder), encode, tokenizer.pad_batch)


def settings_of(folder: Path) -> Settings:
    """The views of a folder's retriever, without loading it; a ValueError where its configuration cannot be used."""
    with refusing(folder):
        return SentenceTransformer.settings if is_foreign(folder) else retriever.settings_of(folder)


def max_tokens(folder: Path) -> int:
    """How many tokens of a text a folder's retriever reads at most; a ValueError where it cannot be used."""
    with refusing(folder):
        if is_foreign(folder):
            return sentence_transformer.num_tokens(folder)
        return BertConfig.load(folder).max_position_embeddings


def must_be_no_cross_encoder(folder: Path) -> None:
    """Refuse a BERT that reads query and passage together: what it makes of a text alone was never trained."""
    architectures = read_json(folder / CONFIG, "the configuration of a BERT").get("architectures") or []
    if "BertForSequenceClassification" in architectures:
        raise Unusable(f"{folder}: expected a retriever, found a cross-encoder (BertForSequenceClassification)")


def is_foreign(folder: Path) -> bool:
    """Whether a folder is no checkpoint of this project and no plain BERT."""
    ours = (retriever.SETTINGS, towers.SHARING)
    return not any((folder / name).is_file() for name in ours) and sentence_transformer.is_one(folder)
