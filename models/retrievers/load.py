"""A checkpoint's folder opened as a retriever, whether this project or sentence-transformers wrote it.

What texts become is for `models.retrievers.retriever` and `models.retrievers.sentence_transformer`; here both look the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from models.layers.bert_config import CONFIG, BertConfig
from models.model_files import UnusableModel, read_json, refuse_unusable
from models.representation import Role
from models.retrievers import retriever, sentence_transformer, towers
from models.retrievers.retriever import Retriever, RetrieverSettings
from models.retrievers.sentence_transformer import SentenceTransformer
from models.retrievers.sentence_transformer_files import is_sentence_transformer
from models.tokens import Tokenizer, Tokens


@dataclass(frozen=True)
class LoadedRetriever:
    """A retriever, and what makes batches of texts for it."""

    retriever: Retriever | SentenceTransformer
    encode: Callable[[Sequence[str], Role, int], list[list[int]]]
    """Texts of a role to ids, cut to so many tokens."""
    pad_batch: Callable[[Sequence[Sequence[int]]], Tokens]


def load(folder: Path) -> LoadedRetriever:
    """The retriever of a folder, in evaluation mode; a folder that holds none, or a broken one, is a ValueError."""
    with refuse_unusable(folder):
        return _load(folder)


def _load(folder: Path) -> LoadedRetriever:
    if is_foreign(folder):
        found, reader = sentence_transformer.load(folder)
        return LoadedRetriever(found, reader.encode, reader.pad_batch)
    refuse_cross_encoder(folder)
    tokenizer = Tokenizer.load(folder)

    def encode(texts: Sequence[str], role: Role, max_tokens: int) -> list[list[int]]:
        return tokenizer.encode(texts, max_tokens)

    return LoadedRetriever(retriever.load(folder), encode, tokenizer.pad_batch)


def read_settings(folder: Path) -> RetrieverSettings:
    """The views of a folder's retriever, without loading it; a ValueError where its configuration cannot be used."""
    with refuse_unusable(folder):
        return SentenceTransformer.settings if is_foreign(folder) else retriever.read_settings(folder)


def max_tokens(folder: Path) -> int:
    """How many tokens of a text a folder's retriever reads at most; a ValueError where it cannot be used."""
    with refuse_unusable(folder):
        if is_foreign(folder):
            return sentence_transformer.num_tokens(folder)
        return BertConfig.load(folder).max_position_embeddings


def refuse_cross_encoder(folder: Path) -> None:
    """Refuse a BERT that reads query and passage together: what it makes of a text alone was never trained."""
    architectures = read_json(folder / CONFIG, "the configuration of a BERT").get("architectures") or []
    if "BertForSequenceClassification" in architectures:
        raise UnusableModel(f"{folder}: expected a retriever, found a cross-encoder (BertForSequenceClassification)")


def is_foreign(folder: Path) -> bool:
    """Whether a folder is no checkpoint of this project and no plain BERT."""
    ours = (retriever.SETTINGS, towers.SHARING)
    return not any((folder / name).is_file() for name in ours) and is_sentence_transformer(folder)
