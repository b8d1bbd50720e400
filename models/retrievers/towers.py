"""Query and passage encoders that share everything, everything except their feed-forward layers, or nothing.

CoT-MoTE (Ma et al. 2023, section 3.1) routes queries and passages through their own feed-forward experts and one
shared self-attention. There is no gate: a text's role selects the expert. The mixture is therefore two BERTs, one for
each role, that share their other parameters.

A checkpoint's folder is the passage encoder. A separate query encoder is saved completely in `query/`, so that both
open in `transformers`; `towers.json` states what they share.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, cast, get_args

from models.layers import bert
from models.model_files import read_json
from models.retrievers.bi_encoder import DenseEncoder, load_pooling, save_pooling

Towers = Literal["siamese", "mixture", "mixture_shared_norm", "separate"]
"""One BERT; two with their own experts; the same with shared LayerNorms; two that share nothing."""
SHARING, QUERY = "towers.json", "query"


def build_encoders(encoder: DenseEncoder, towers: Towers) -> DenseEncoder:
    """Build query and passage encoders of a kind, both initialised from the given passage encoder."""
    passage = encoder.passage
    query = passage if towers == "siamese" else copy.deepcopy(passage)
    share(query, passage, towers)
    return DenseEncoder(passage, encoder.pooling, query)


def share(query: bert.BertForMaskedLM, passage: bert.BertForMaskedLM, towers: Towers) -> None:
    """Replace the query encoder's shared modules with those of the passage encoder."""
    if query is passage or towers == "separate":
        return
    query.bert.embeddings, query.cls = passage.bert.embeddings, passage.cls
    for own, other in _layers(query, passage):
        own.attention = other.attention
        if towers == "mixture_shared_norm":
            own.output.LayerNorm = other.output.LayerNorm


def sharing(encoder: DenseEncoder) -> Towers:
    """Return which kind of sharing an encoder has."""
    if encoder.query is encoder.passage:
        return "siamese"
    query, passage = encoder.query.bert, encoder.passage.bert
    if query.embeddings is not passage.embeddings:
        return "separate"
    layers = _layers(encoder.query, encoder.passage)
    return "mixture_shared_norm" if all(_same_norm(*pair) for pair in layers) else "mixture"


def save(encoder: DenseEncoder, folder: Path) -> None:
    """Write the encoder's weights, configuration and pooling as Hugging Face folders."""
    bert.save(encoder.passage, folder)
    save_pooling(folder, encoder.pooling, encoder.passage.config.hidden_size)
    if encoder.query is not encoder.passage:
        (folder / QUERY).mkdir(exist_ok=True)
        bert.save(encoder.query, folder / QUERY)
        save_pooling(folder / QUERY, encoder.pooling, encoder.query.config.hidden_size)
        (folder / SHARING).write_text(json.dumps({"towers": sharing(encoder)}) + "\n")


def load(folder: Path) -> DenseEncoder:
    """Load the encoder of a checkpoint's folder in evaluation mode."""
    passage, pooling = bert.load(folder), load_pooling(folder)
    if not (folder / SHARING).exists():
        return DenseEncoder(passage, pooling).eval()
    towers = read_json(folder / SHARING, "what the towers share").get("towers")
    if towers not in get_args(Towers) or not (folder / QUERY).is_dir():
        raise ValueError(f"{folder / SHARING}: expected towers of {', '.join(get_args(Towers))} and a folder {QUERY}")
    query = bert.load(folder / QUERY)
    share(query, passage, cast(Towers, towers))
    return DenseEncoder(passage, pooling, query).eval()


def _layers(query: bert.BertForMaskedLM, passage: bert.BertForMaskedLM) -> Iterator[tuple[bert.Layer, bert.Layer]]:
    """Yield the pairs of corresponding layers."""
    for own, other in zip(query.bert.encoder.layer, passage.bert.encoder.layer, strict=True):
        yield cast(bert.Layer, own), cast(bert.Layer, other)


def _same_norm(own: bert.Layer, other: bert.Layer) -> bool:
    return own.output.LayerNorm is other.output.LayerNorm
