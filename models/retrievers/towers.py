"""Query and passage encoders that share everything, everything except their feed-forward layers, or nothing.

CoT-MoTE (Ma et al. 2023, section 3.1) routes queries and passages through their own feed-forward experts and one
shared self-attention. There is no gate: a text's role selects the expert. The mixture is therefore two encoders, one
for each role, that share their other parameters.

A checkpoint's folder is the passage encoder. A separate query encoder is saved completely in `query/`, so that both
open in `transformers`; `towers.json` states what they share.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, cast, get_args

from torch import nn

from models import backbones
from models.layers.backbone import Backbone
from models.model_files import read_json
from models.retrievers.bi_encoder import DenseEncoder, load_pooling, save_pooling

Towers = Literal["siamese", "mixture", "mixture_shared_norm", "separate"]
"""One encoder; two with their own experts; the same with shared LayerNorms; two that share nothing."""
SHARING, QUERY = "towers.json", "query"


def build_encoders(encoder: DenseEncoder, towers: Towers) -> DenseEncoder:
    """Build query and passage encoders of a kind, both initialised from the given passage encoder."""
    passage = encoder.passage
    query = passage if towers == "siamese" else copy.deepcopy(passage)
    share(query, passage, towers)
    return DenseEncoder(passage, encoder.pooling, query)


def share(query: Backbone, passage: Backbone, towers: Towers) -> None:
    """Replace the query encoder's shared modules with those of the passage encoder."""
    if query is passage or towers == "separate":
        return
    own = {module for layer in query.layers for path in query.feed_forward for module in _modules(layer, path)}
    if towers == "mixture":
        own |= {module for layer in query.layers for module in _modules(layer, query.feed_forward_norm)}
    _replace_others(query, passage, own)


def sharing(encoder: DenseEncoder) -> Towers:
    """Return which kind of sharing an encoder has."""
    query, passage = encoder.query, encoder.passage
    if query is passage:
        return "siamese"
    if {*query.parameters()}.isdisjoint(passage.parameters()):
        return "separate"
    norms = zip(_norms(query), _norms(passage), strict=True)
    return "mixture_shared_norm" if all(own is other for own, other in norms) else "mixture"


def save(encoder: DenseEncoder, folder: Path) -> None:
    """Write the encoder's weights, configuration and pooling as Hugging Face folders."""
    encoder.passage.save(folder)
    save_pooling(folder, encoder.pooling, encoder.passage.config.hidden_size)
    if encoder.query is not encoder.passage:
        (folder / QUERY).mkdir(exist_ok=True)
        encoder.query.save(folder / QUERY)
        save_pooling(folder / QUERY, encoder.pooling, encoder.query.config.hidden_size)
        (folder / SHARING).write_text(json.dumps({"towers": sharing(encoder)}) + "\n", encoding="utf-8")


def load(folder: Path) -> DenseEncoder:
    """Load the encoder of a checkpoint's folder in evaluation mode."""
    passage, pooling = backbones.load(folder), load_pooling(folder)
    if not (folder / SHARING).exists():
        return DenseEncoder(passage, pooling).eval()
    towers = read_json(folder / SHARING, "what the towers share").get("towers")
    if towers not in get_args(Towers) or not (folder / QUERY).is_dir():
        raise ValueError(f"{folder / SHARING}: expected towers of {', '.join(get_args(Towers))} and a folder {QUERY}")
    query = backbones.load(folder / QUERY)
    share(query, passage, cast(Towers, towers))
    return DenseEncoder(passage, pooling, query).eval()


def _modules(layer: nn.Module, path: str) -> Iterator[nn.Module]:
    """Yield the module at a path within a layer, and all modules that it contains."""
    yield from layer.get_submodule(path).modules()


def _norms(model: Backbone) -> Iterator[nn.Module]:
    """Yield the LayerNorm after each feed-forward layer."""
    for layer in model.layers:
        yield layer.get_submodule(model.feed_forward_norm)


def _replace_others(query: nn.Module, passage: nn.Module, own: set[nn.Module]) -> None:
    """Replace the modules of a query encoder, except `own` modules and those that contain one."""
    for name, module in query.named_children():
        other = passage.get_submodule(name)
        if module not in own and own.isdisjoint(module.modules()):
            setattr(query, name, other)
        elif module not in own:
            _replace_others(module, other, own)
