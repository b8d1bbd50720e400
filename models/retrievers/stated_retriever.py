"""Read what a folder of sentence-transformers states of its bi-encoder: pooling, normalisation and prompts.

bge, e5, gte and their like are initial weights here, so they must be pooled, compared and prompted as they were
trained. A folder of this project states its pooling in the same files, and the rest in `retriever.json`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from models.model_files import UnusableModel
from models.representation import Pooling
from models.retrievers.bi_encoder import load_pooling
from models.retrievers.retriever import RETRIEVER_SETTINGS, read_settings
from models.retrievers.retriever_settings import Prompts, RetrieverSettings
from models.retrievers.sentence_transformer_files import (
    CONFIG,
    MODULES,
    TRANSFORMER_CONFIGS,
    compared_by_cosine,
    list_modules,
    prompts,
    read_optional_json,
)
from models.retrievers.views.dense import DenseSettings


@dataclass(frozen=True)
class StatedRetriever:
    """The bi-encoder of a folder, as its files describe it."""

    pooling: Pooling
    normalise: bool
    prompts: Prompts | None
    """None if no text has a prompt."""

    @property
    def settings(self) -> RetrieverSettings:
        """The settings of its one view."""
        return RetrieverSettings(dense=DenseSettings(dim=None, normalise=self.normalise or None), prompts=self.prompts)


def read_stated_retriever(folder: Path) -> StatedRetriever | None:
    """Return what a folder's modules.json and the files that it names state; None for a folder without modules.json.

    In a folder of this project `retriever.json` states it instead; without that file its vectors are compared by inner
    products. Raises ValueError for modules, poolings and similarities that a retriever of this project does not have.
    """
    if not (folder / MODULES).is_file():
        return None
    if (folder / RETRIEVER_SETTINGS).is_file():  # an export's modules, such as a projection, are views here
        own = read_settings(folder)
        return StatedRetriever(load_pooling(folder), own.normalises, own.prompts)
    kinds = [str(module["type"]).rpartition(".")[2] for module in list_modules(folder)]
    others = set(kinds[2:]) - {"Normalize", "Dropout"}
    if kinds[:2] != ["Transformer", "Pooling"] or others or list_modules(folder)[0]["path"]:
        raise UnusableModel(
            f"{folder / MODULES}: expected Transformer (in the folder itself), Pooling, and perhaps Normalize, found "
            f"{', '.join(kinds)}; name another model, or the encoder's own folder with a pooling of cls or mean"
        )
    if read_optional_json(folder / "1_Pooling" / "config.json").get("include_prompt") is False:
        raise UnusableModel(f"{folder}: its pooling leaves the prompt out, which is not supported; name another model")
    stated = prompts(folder)
    texts = Prompts(query=stated["query"], passage=stated["passage"])
    # Only the package's default is the cosine: this project writes modules.json without the file of the similarity.
    normalises = "Normalize" in kinds or (_is_from_sentence_transformers(folder) and compared_by_cosine(folder))
    return StatedRetriever(load_pooling(folder), normalises, texts if any(stated.values()) else None)


def pooling_of(folder: Path, requested: Pooling | None) -> Pooling:
    """Return the requested pooling, or for None the folder's; ValueError if they contradict, or if there is neither."""
    if requested is None:
        stated = read_stated_retriever(folder)
        if stated is None:
            raise ValueError(f"pooling: {folder} has no {MODULES} with a pooling; expected cls or mean, found null")
        return stated.pooling
    if _is_from_sentence_transformers(folder) and (own := load_pooling(folder)) != requested:
        raise ValueError(
            f"pooling: {folder} states the pooling {own} in 1_Pooling/config.json; expected {own}, or null for all "
            f"that its files state, found {requested}"
        )
    return requested


def _is_from_sentence_transformers(folder: Path) -> bool:
    """Return whether the package wrote a folder; those of this project may be pooled otherwise later."""
    return (folder / MODULES).is_file() and any((folder / name).is_file() for name in (CONFIG, *TRANSFORMER_CONFIGS))


def contradiction(requested: RetrieverSettings, stated: RetrieverSettings) -> str | None:
    """Return which setting of a retriever contradicts the model that it starts from; None if there is none."""
    if requested.dense and requested.dense.normalise not in (None, stated.normalises):
        kind = "compares vectors of length 1" if stated.normalises else "compares vectors of any length"
        return f"dense.normalise: the backbone {kind}; expected null or {str(stated.normalises).lower()}"
    if stated.prompts and requested.prompts not in (None, stated.prompts):
        own = stated.prompts
        return f"prompts: the backbone has {own.query!r} and {own.passage!r}; expected null, or these"
    return None
