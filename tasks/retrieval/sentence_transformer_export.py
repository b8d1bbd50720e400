"""Writes the files by which the package sentence-transformers opens a retriever and ranks as this project does.

A dense retriever opens as `SentenceTransformer`, a lexical one as `SparseEncoder`, a late-interaction one as
`MultiVectorEncoder`. Without these files the package pools and compares otherwise, and truncates texts at the encoder's
positions only. What the package cannot compute has no modules.json, so that it opens nowhere with other scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from models import backbones
from models.model_files import read_weights
from models.retrievers.bi_encoder import POOLING, load_pooling, save_pooling
from models.retrievers.retriever import RETRIEVER_SETTINGS, RETRIEVER_WEIGHTS, read_settings
from models.retrievers.retriever_settings import RetrieverSettings
from models.retrievers.sentence_transformer_files import CONFIG, MODULES, TRANSFORMER_CONFIGS
from models.retrievers.towers import QUERY, SHARING
from models.tokens import Tokenizer
from tasks.retrieval import pylate_layout
from tasks.retrieval.package_modules import (
    DENSE_MODULE,
    Lengths,
    Module,
    lexical_modules,
    mask_modules,
    normalisation,
    package_class,
    transformer_settings,
    write_json,
)

ROUTER = "router_config.json"
REQUIRES = {"sentence-transformers": ">=6"}  # earlier releases know one length for queries and documents
PACKAGE = "sentence_transformers.models"


@dataclass(frozen=True)
class Exported:
    """How an exported folder opens in sentence-transformers."""

    name: str | None
    """The package's class; None if it cannot compute the scores."""
    reason: str = ""
    """Why it cannot."""
    in_pylate: bool = False
    """Whether it opens in PyLate, too."""


def add_files(folder: Path, *, query_max_tokens: int | None, passage_max_tokens: int | None) -> Exported:
    """Write modules, similarity, prompts and maximum lengths of a retriever's folder, for sentence-transformers 6.

    Queries have a route of their own where they have an encoder of their own. Lengths of None are the tokenizer's.
    """
    settings, lengths = read_settings(folder), Lengths(query_max_tokens, passage_max_tokens)
    has_two_encoders = (folder / SHARING).exists()
    limit = backbones.family(folder).unattended_limit(folder)
    name, reason = package_class(settings, lengths, has_two_encoders=has_two_encoders, unattended_limit=limit)
    if name is None:
        for path in (folder / MODULES, folder / QUERY / MODULES):
            path.unlink(missing_ok=True)
        return Exported(None, reason)
    pooling, hidden_size = load_pooling(folder), backbones.sizes(folder).hidden_size
    in_pylate = pylate_layout.fits(settings, lengths)
    after = _after_encoder(folder, settings) if not in_pylate else [_projection(folder, "late", "PyLateDense")]
    modules = [Module("Transformer", ""), *after]
    if has_two_encoders:
        modules[0] = Module("Router", "")
        write_json(folder / ROUTER, _router())
    save_pooling(folder, pooling, hidden_size)
    write_json(folder / MODULES, [module.entry(number) for number, module in enumerate(modules)])
    for encoder in (folder, *([folder / QUERY] if has_two_encoders else [])):
        own = pylate_layout.transformer_settings(lengths) if in_pylate else transformer_settings(settings, lengths)
        write_json(encoder / TRANSFORMER_CONFIGS[0], own)
    of_pylate = pylate_layout.configuration(folder, settings, lengths) if in_pylate else None
    write_json(folder / CONFIG, of_pylate or _package_configuration(name, settings))
    if not (folder / RETRIEVER_SETTINGS).exists():  # by which this project recognises its own folders
        write_json(folder / RETRIEVER_SETTINGS, settings.as_json())
    return Exported(name, in_pylate=in_pylate)


def _after_encoder(folder: Path, settings: RetrieverSettings) -> list[Module]:
    """Write the files of the modules after the encoder, and return their entries."""
    if settings.lexical:
        return lexical_modules(folder)
    if settings.late:
        projection = _projection(folder, "late", "Dense", of_tokens=True)
        tokenizer = Tokenizer.load(folder)
        norms = [normalisation(folder, 2, of_tokens=True)] if settings.late.normalise else []
        return [projection, *norms, *mask_modules(folder, settings.late, tokenizer, first=2 + len(norms))]
    modules = [Module("Pooling", POOLING.parent.name)]
    if settings.dense is not None and settings.dense.dim is not None:
        modules.append(_projection(folder, "dense", "Dense"))
    return [*modules, normalisation(folder, 3, of_tokens=False)] if settings.normalises else modules


def _package_configuration(name: str, settings: RetrieverSettings) -> dict[str, Any]:
    similarity = "maxsim" if name == "MultiVectorEncoder" else "dot"
    if settings.normalises:
        similarity = "cosine"  # equal to the inner product, also after the package has truncated vectors
    query, passage = (settings.prompts.query, settings.prompts.passage) if settings.prompts else ("", "")
    value: dict[str, Any] = {
        "model_type": name, "requirements": REQUIRES, "prompts": {"query": query, "document": passage},
        "default_prompt_name": None, "similarity_fn_name": similarity,
    }  # fmt: skip
    top = settings.lexical.top_passages if settings.lexical else None
    return value if top is None else value | {"max_active_dims": top}


def _router() -> dict[str, Any]:
    """Return the routes: queries to the encoder in `query`, all other texts to that in the folder itself."""
    transformer = f"{PACKAGE}.Transformer"
    return {
        "types": {QUERY: transformer, ".": transformer},
        "structure": {"query": [QUERY], "document": ["."]},
        "parameters": {"default_route": "document", "allow_empty_key": True, "route_mappings": {}},
    }


def _projection(folder: Path, view: str, kind: str, *, of_tokens: bool = False) -> Module:
    """Write the projection of a view as a package's layer without activation."""
    module, head = Module(kind, DENSE_MODULE), f"heads.{view}.projection."
    (folder / module.path).mkdir()
    weights = read_weights(folder / RETRIEVER_WEIGHTS)
    names = [name for name in ("weight", "bias") if head + name in weights]
    projection = {f"linear.{name}": weights[head + name].contiguous() for name in names}
    out_features, in_features = projection["linear.weight"].shape
    feature = {name: "token_embeddings" for name in ("module_input_name", "module_output_name") if of_tokens}
    write_json(folder / module.path / POOLING.name, {
        "in_features": in_features, "out_features": out_features, "bias": "bias" in names,
        "activation_function": "torch.nn.modules.linear.Identity", **feature,
    })  # fmt: skip
    save_file(projection, folder / module.path / "model.safetensors")
    return module
