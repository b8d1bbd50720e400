"""The retrieval systems that `pretrieve evaluate` compares, as the user names them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flows.chain.rankers import Bm25System, RetrieverSystem, System
from flows.recipe.suite_schema import Suite
from storage.artifact import Artifact
from storage.errors import UserError
from storage.store import sources
from storage.store.lookup import find, stored_vectors
from storage.store.store import Store
from storage.tables import Checkpoint
from tasks.retrieval.encode import Model, views_and_max_tokens
from tasks.runtime.device import Precision

BM25, PACKAGE = "bm25", "package:"
KEY = re.compile(r"[0-9a-f]{6,24}")
NO_RETRIEVERS = ("train_teacher", "train_generator", "finetune_generator")


@dataclass(frozen=True)
class NamedSystem:
    """A system, its name in the table, and what it is."""

    name: str
    description: str
    system: System


def named_systems(models: Sequence[str], suite: Suite, store: Store) -> list[NamedSystem]:
    """Return the systems in their order, each given as MODEL or NAME=MODEL. Raises UserError for two of one name."""
    systems = [named_system(model, suite, store) for model in models]
    names = [system.name for system in systems]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UserError(f"the models have the name {min(twice)} in common; give each its own: NAME=MODEL")
    return systems


def named_system(argument: str, suite: Suite, store: Store) -> NamedSystem:
    """Return `bm25`, a checkpoint given by key, or a model given by folder, package:NAME/FOLDER or hub name."""
    name, equals, model = argument.partition("=") if not Path(argument).exists() else (argument, "", "")
    if not equals:
        name, model = "", argument
    if model == BM25:
        settings = suite.bm25
        return NamedSystem(name or BM25, f"Lucene's BM25 (k1 {settings.k1}, b {settings.b})", Bm25System(settings))
    short, full, checkpoint = by_name(model, store)
    views, max_tokens = views_and_max_tokens(checkpoint.path)
    description = f"{full}: {' + '.join(views)}, reads {max_tokens:,} tokens at most"
    precision = recipe_precision(checkpoint, store) if isinstance(checkpoint, Artifact) else None
    system = RetrieverSystem(checkpoint, views, max_tokens=max_tokens, precision=precision)
    return NamedSystem(name or short, description, system)


def recipe_precision(checkpoint: Artifact[Checkpoint], store: Store) -> Precision | None:
    """Return the precision in which a checkpoint's recipe encodes; None where it states none or has not encoded yet.

    That is the precision of the oldest vectors: a recipe encodes its own collection before others are evaluated.
    """
    oldest = next(iter(stored_vectors(checkpoint, store)), None)
    precision: Precision | None = oldest.settings.get("precision") if oldest else None
    return precision


def by_name(model: str, store: Store) -> tuple[str, str, Model]:
    """Return a model's short name for tables, its full name, and the model."""
    if KEY.fullmatch(model) and not Path(model).is_dir():
        folder, manifest = find(model, store)
        if manifest.schema != "Checkpoint" or manifest.stage in NO_RETRIEVERS:
            raise UserError(f"{model}: {manifest.stage} builds {manifest.schema}; expected the key of a retriever")
        short = f"{manifest.stage}-{manifest.key[:8]}"
        return short, manifest.reference, Artifact(manifest.stage, manifest.key, folder)
    source, folder = sources.weights(model), Path(model)
    short = model
    if folder.is_dir():
        short = folder.resolve().name
    elif model.startswith(PACKAGE):
        short = model.removeprefix(PACKAGE).partition("/")[0]
    return short, f"{short} ({source.key[:12]})", source
