"""Writes the files by which the package sentence-transformers opens a retriever and ranks as this project does.

Without them the package compares vectors by their cosine and truncates texts at the encoder's positions only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from models import backbones
from models.model_files import read_weights
from models.retrievers.bi_encoder import POOLING, load_pooling, save_pooling
from models.retrievers.retriever import SETTINGS, WEIGHTS, read_settings
from models.retrievers.sentence_transformer_files import CONFIG, MODULES, TRANSFORMER_CONFIGS
from models.retrievers.towers import QUERY, SHARING

ROUTER, DENSE = "router_config.json", "2_Dense"
PACKAGE = "sentence_transformers.models"
REQUIRES = {"sentence-transformers": ">=6"}  # earlier releases know one length for queries and documents
PROJECTION = "heads.dense.projection"


def is_one_dense_vector(folder: Path) -> bool:
    """Return whether the retriever of a folder has the dense representation only, read from the encoder itself."""
    settings = read_settings(folder)
    return settings.views == ("dense",) and settings.shared_layers is None


def add_files(folder: Path, *, query_max_tokens: int | None, passage_max_tokens: int | None) -> None:
    """Write modules, similarity, prompts and maximum lengths of a retriever's folder, for sentence-transformers 6.

    Queries have a route of their own where they have an encoder of their own. Lengths of None are the tokenizer's. The
    package cannot compute the scores of other than dense retrievers, so their folders lose `modules.json`.
    """
    if not is_one_dense_vector(folder):
        for modules in (folder / MODULES, folder / QUERY / MODULES):
            modules.unlink(missing_ok=True)
        return
    hidden_size = backbones.sizes(folder).hidden_size
    save_pooling(folder, load_pooling(folder), hidden_size)
    modules = json.loads((folder / MODULES).read_text())
    if (folder / SHARING).exists():
        modules[0]["type"] = f"{PACKAGE}.Router"
        _write(folder / ROUTER, _router())
    if (width := read_settings(folder).dense) is not None and width.dim is not None:
        _write_projection(folder, hidden_size, width.dim, bias=width.bias)
        modules.append({"idx": 2, "name": "2", "path": DENSE, "type": f"{PACKAGE}.Dense"})
    _write(folder / MODULES, modules)
    lengths = {"query_length": query_max_tokens, "document_length": passage_max_tokens}
    stated = {name: length for name, length in lengths.items() if length is not None}
    for encoder in (folder, *([folder / QUERY] if (folder / SHARING).exists() else [])):
        _write(encoder / TRANSFORMER_CONFIGS[0], stated)
    _write(folder / CONFIG, {
        "model_type": "SentenceTransformer", "requirements": REQUIRES, "prompts": {"query": "", "document": ""},
        "default_prompt_name": None, "similarity_fn_name": "dot",
    })  # fmt: skip
    if not (folder / SETTINGS).exists():  # by which this project recognises its own folders
        _write(folder / SETTINGS, read_settings(folder).as_json())


def _router() -> dict[str, Any]:
    """Return the routes: queries to the encoder in `query`, all other texts to that in the folder itself."""
    transformer = f"{PACKAGE}.Transformer"
    return {
        "types": {QUERY: transformer, ".": transformer},
        "structure": {"query": [QUERY], "document": ["."]},
        "parameters": {"default_route": "document", "allow_empty_key": True, "route_mappings": {}},
    }


def _write_projection(folder: Path, hidden_size: int, dim: int, *, bias: bool) -> None:
    """Write the projection of the pooled vector as a module without activation."""
    (folder / DENSE).mkdir()
    _write(folder / DENSE / POOLING.name, {
        "in_features": hidden_size, "out_features": dim, "bias": bias,
        "activation_function": "torch.nn.modules.linear.Identity",
    })  # fmt: skip
    names = ("weight", "bias") if bias else ("weight",)
    weights = read_weights(folder / WEIGHTS)
    projection = {f"linear.{name}": weights[f"{PROJECTION}.{name}"].contiguous() for name in names}
    save_file(projection, folder / DENSE / "model.safetensors")


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")
