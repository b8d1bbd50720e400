"""Read what a model's folder states about its vectors, before it is opened."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from models.representation import Pooling
from models.retrievers.bi_encoder import load_pooling
from models.retrievers.stated_retriever import read_stated_retriever
from storage.errors import UserError


@dataclass(frozen=True)
class StatedModel:
    """The pooling of a model, and how it compares its vectors."""

    pooling: Pooling | None
    """The value of `backbone.pooling`: null where the files of sentence-transformers state all."""
    normalises: bool


def stated_model(folder: Path) -> StatedModel:
    """Return what a folder states; a plain encoder is pooled at [CLS]. Raises UserError for another kind of model."""
    try:
        stated = read_stated_retriever(folder)
        return StatedModel(load_pooling(folder), False) if stated is None else StatedModel(None, stated.normalise)
    except ValueError as error:
        raise UserError(f"not a model that can be adapted: {error}") from None
