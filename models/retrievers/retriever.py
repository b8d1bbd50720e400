"""A retriever: query and passage encoders and up to three views (representations), each with its own similarity.

The retrievers of the papers differ only in their views: `dense` alone is DPR, `lexical` SPLADE, `late` ColBERT, `late`
with exact matches and `dense` COIL. Dense and lexical are CoT-MoTE's hybrid and, projected and reduced to the largest
weights, DupMAE's representation. In CAME's mixture each view has private layers above shared layers (`shared_layers`).
A pair's score is the weighted sum of its views' scores.

A checkpoint's folder contains the encoders in Hugging Face's layout, `retriever.json` with the settings of the views,
and `retriever.safetensors` with the views' parameters. A folder without these two files is a plain encoder: dense.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from models.layers.backbone import Backbone
from models.layers.bert_config import CONFIG
from models.model_files import UnusableModel, check_fit, read_json, read_weights, refuse_unusable
from models.representation import Representation, Role
from models.retrievers import towers
from models.retrievers.bi_encoder import DenseEncoder
from models.retrievers.came import Experts
from models.retrievers.retriever_settings import RetrieverSettings
from models.retrievers.views.dense import DenseSettings, DenseView
from models.retrievers.views.late import LateView
from models.retrievers.views.lexical import LexicalView
from models.tokens import Tokenizer, Tokens

RETRIEVER_SETTINGS, RETRIEVER_WEIGHTS = "retriever.json", "retriever.safetensors"
HEADS_FILE, PROJECTION = "heads.safetensors", "projection.weight"
"""The parameters of a pre-training's decoders and heads, by their names in the paper's module."""

SUM = "sum"
NEW, LOADED = "newly initialised", "loaded"


class Retriever(nn.Module):
    """Encoders and views. A view's head is shared by queries and passages; experts belong to one encoder."""

    def __init__(self, encoder: DenseEncoder, settings: RetrieverSettings, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.encoder, self.settings = encoder, settings
        config = encoder.passage.config
        heads: dict[str, nn.Module] = {}
        if settings.dense:
            heads["dense"] = DenseView(config, settings.dense, encoder.pooling)
        if settings.late:
            heads["late"] = LateView(config, settings.late, tokenizer)
        if settings.lexical:
            if settings.lexical.head == "embeddings":
                encoder.passage.check_width("lexical.head")
            heads["lexical"] = LexicalView(config, settings.lexical, tokenizer)
        self.heads = nn.ModuleDict(heads)
        self.experts = nn.ModuleDict()
        self.origin = NEW
        """Where the values of the views' own parameters are from."""
        if settings.shared_layers is not None:
            if (sharing := towers.sharing(encoder)) not in ("siamese", "separate"):
                raise ValueError(f"shared_layers: expected towers that are siamese or separate, found {sharing}")
            for role, tower in self._towers():
                self.experts[role] = Experts(tower, self.views, settings.shared_layers)

    @property
    def views(self) -> tuple[str, ...]:
        """Return the names of the views."""
        return self.settings.views

    @property
    def dense_size(self) -> int:
        """Return the dimension of dense vectors; 0 without a dense view."""
        if self.settings.dense is None:
            return 0
        return self.settings.dense.dim or self.encoder.passage.config.hidden_size

    @property
    def late(self) -> LateView | None:
        """Return the late-interaction view, which needs the tokens; None without it."""
        return cast(LateView, self.heads["late"]) if self.settings.late else None

    @property
    def lexical(self) -> LexicalView | None:
        """Return the lexical view; None without it."""
        return cast(LexicalView, self.heads["lexical"]) if self.settings.lexical else None

    def forward(self, tokens: Tokens, role: Role) -> Representation:
        """Return all views of a batch of texts."""
        inputs = self.late.augmented(tokens, role) if self.late else tokens
        tower = self.encoder.tower(role)
        parts: dict[str, Tensor] = {}
        for view, hidden_BLH in self._hidden(tower, inputs, role).items():
            representation: Representation = self.heads[view](hidden_BLH, inputs, role, tower)
            parts |= {name: part for name, part in vars(representation).items() if part is not None}
        return Representation(**parts)

    def scores(self, queries: Representation, passages: Representation) -> dict[str, Tensor]:
        """Return the scores [Q, P] by view, and last their weighted sum."""
        scores = {view: cast(Any, self.heads[view]).similarity(queries, passages) for view in self.views}
        weighted = [getattr(self.settings, view).weight * scores[view] for view in self.views]
        return {**scores, SUM: torch.stack(weighted).sum(0)}

    def own(self) -> dict[str, nn.Parameter]:
        """Return the parameters of views and experts, without those of the encoders, by name."""
        return {name: value for name, value in self.named_parameters() if not name.startswith("encoder.")}

    def _hidden(self, tower: Backbone, tokens: Tokens, role: Role) -> dict[str, Tensor]:
        """Return the last layer's states [B, L, H] for each view; [B, 1, H] if only [CLS] is used."""
        if self.settings.shared_layers is not None:
            experts = self.experts[role if role in self.experts else "passage"]
            hidden_by_view: dict[str, Tensor] = experts(tower, tokens)
            return hidden_by_view
        if self.views == ("dense",) and self.encoder.pooling == "cls":
            return {"dense": tower.first_states(tokens)[:, None]}
        return dict.fromkeys(self.views, tower(tokens))

    def _towers(self) -> Iterator[tuple[Role, Backbone]]:
        yield "passage", self.encoder.passage
        if self.encoder.query is not self.encoder.passage:
            yield "query", self.encoder.query


def save(retriever: Retriever, folder: Path) -> None:
    """Write a retriever to a checkpoint's folder; the tokenizer's files are not written."""
    towers.save(retriever.encoder, folder)
    save_settings(retriever.settings, folder)
    if own := retriever.own():
        save_file({name: value.detach().cpu().contiguous() for name, value in own.items()}, folder / RETRIEVER_WEIGHTS)


def save_settings(settings: RetrieverSettings, folder: Path) -> None:
    """Write the settings of the views, by which this project recognises its own folders."""
    (folder / RETRIEVER_SETTINGS).write_text(json.dumps(settings.as_json(), indent=1) + "\n", encoding="utf-8")


def load(folder: Path) -> Retriever:
    """Load the retriever of a checkpoint's folder in evaluation mode."""
    retriever = _opened(folder, read_settings(folder))
    _load_own_parameters(retriever, folder)
    return retriever.eval()


def load_for_training(folder: Path, settings: RetrieverSettings) -> Retriever:
    """Load a retriever for training, with the folder's view parameters if its views have the same parts.

    Otherwise experts are copies of the encoders' layers, a lexical view's own matrix is that of DupMAE's pre-training
    if there is one, and other parameters of views are initialised at random. Normalisation and prompts that the
    settings leave open are those of the folder. Raises UnusableModel where the folder's weights do not fit.
    """
    initial = read_settings(folder)
    retriever = _opened(folder, settings.with_defaults(initial))
    if (folder / RETRIEVER_SETTINGS).is_file() and initial.parts == settings.parts:
        _load_own_parameters(retriever, folder)
        retriever.origin = LOADED
    elif retriever.lexical and retriever.lexical.projection and (folder / HEADS_FILE).is_file():
        pretrained, own = read_weights(folder / HEADS_FILE), retriever.lexical.projection.weight
        of_sim_cse = (own.shape[1], own.shape[1])  # its projection between vectors has the same name
        if PROJECTION in pretrained and pretrained[PROJECTION].shape != of_sim_cse:
            check_fit({PROJECTION: pretrained[PROJECTION]}, {PROJECTION: own}, folder / HEADS_FILE, CONFIG)
            with torch.no_grad():
                own.copy_(pretrained[PROJECTION])
            retriever.origin = "loaded from the pre-training where it has them, else newly initialised"
    return retriever


def _opened(folder: Path, settings: RetrieverSettings) -> Retriever:
    """Return a retriever with the encoders of a folder and newly initialised views."""
    with refuse_unusable(folder):
        encoder, tokenizer = towers.load(folder), Tokenizer.load(folder)
        tokenizer.check_vocabulary_size(encoder.passage.config.vocab_size, folder)
        return Retriever(encoder, settings, tokenizer)


def read_settings(folder: Path) -> RetrieverSettings:
    """Return the settings of a checkpoint's views; those of a plain encoder are one dense view."""
    path = folder / RETRIEVER_SETTINGS
    if not path.is_file():
        return RetrieverSettings(dense=DenseSettings(dim=None))
    value = read_json(path, "the views of a retriever")
    try:
        return RetrieverSettings.read(value)
    except (TypeError, ValueError, AttributeError) as error:
        raise UnusableModel(f"{path}: expected the views of a retriever: {error}") from None


def _load_own_parameters(retriever: Retriever, folder: Path) -> None:
    own, path = retriever.own(), folder / RETRIEVER_WEIGHTS
    weights = read_weights(path) if own or path.is_file() else {}
    check_fit(weights, own, path, RETRIEVER_SETTINGS)
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(weights[name])
