"""Open a checkpoint's folder as a retriever, whether this project or sentence-transformers wrote it.

`LoadedRetriever` is the common interface of `models.retrievers.retriever` and
`models.retrievers.sentence_transformer`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from models import backbones
from models.layers.bert_config import CONFIG
from models.model_files import UnusableModel, read_json, refuse_unusable
from models.representation import Role
from models.retrievers import retriever, sentence_transformer, towers
from models.retrievers.retriever import Retriever
from models.retrievers.retriever_settings import RetrieverSettings
from models.retrievers.sentence_transformer import SentenceTransformer
from models.retrievers.sentence_transformer_files import is_sentence_transformer
from models.retrievers.views.late import marker_ids
from models.tokens import Tokenizer, Tokens


@dataclass(frozen=True)
class LoadedRetriever:
    """A retriever with its tokenizer's functions."""

    retriever: Retriever | SentenceTransformer
    encode: Callable[[Sequence[str], Role, int], list[list[int]]]
    """Maps texts, their role and a maximum number of tokens to ids."""
    pad_batch: Callable[[Sequence[Sequence[int]]], Tokens]
    """Pads rows of ids to a batch."""


def load(folder: Path) -> LoadedRetriever:
    """Load the retriever of a folder in evaluation mode; ValueError if the folder has none or a damaged one."""
    with refuse_unusable(folder):
        return _load(folder)


def _load(folder: Path) -> LoadedRetriever:
    if is_foreign(folder):
        encoder, reader = sentence_transformer.load(folder)
        return LoadedRetriever(encoder, reader.encode, reader.pad_batch)
    refuse_cross_encoder(folder)
    tokenizer, loaded = Tokenizer.load(folder), retriever.load(folder)
    markers = marker_ids(loaded.settings.late, tokenizer)

    def encode(texts: Sequence[str], role: Role, max_tokens: int) -> list[list[int]]:
        return tokenizer.encode(loaded.settings.prompted(texts, role), max_tokens, markers.get(role))

    return LoadedRetriever(loaded, encode, tokenizer.pad_batch)


def read_settings(folder: Path) -> RetrieverSettings:
    """Return the settings of a folder's retriever without loading it; ValueError if they cannot be used."""
    with refuse_unusable(folder):
        return SentenceTransformer.settings if is_foreign(folder) else retriever.read_settings(folder)


def max_tokens(folder: Path) -> int:
    """Return the maximum number of tokens of a text for a folder's retriever; ValueError if it cannot be used."""
    with refuse_unusable(folder):
        if is_foreign(folder):
            return sentence_transformer.num_tokens(folder)
        return backbones.sizes(folder).max_position_embeddings


def refuse_cross_encoder(folder: Path) -> None:
    """Raise UnusableModel for a cross-encoder: it was never trained to encode a text on its own."""
    architectures = read_json(folder / CONFIG, "the configuration of an encoder").get("architectures") or []
    if "BertForSequenceClassification" in architectures:
        raise UnusableModel(f"{folder}: expected a retriever, found a cross-encoder (BertForSequenceClassification)")


def is_foreign(folder: Path) -> bool:
    """Return whether a folder is neither a checkpoint of this project nor a plain encoder."""
    ours = (retriever.RETRIEVER_SETTINGS, towers.SHARING)
    return not any((folder / name).is_file() for name in ours) and is_sentence_transformer(folder)
