"""What `pretrieve evaluate` compares: retrievers, found by what people call them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flows.chain.suites import ByRetriever, ByWords, Ranker, Suite
from flows.store_lookup import find
from storage.artifact import Artifact
from storage.errors import UserError
from storage.store import sources
from storage.store.store import Store
from tasks.retrieval.encode import Model, reads

BM25, PACKAGE = "bm25", "package:"
KEY = re.compile(r"[0-9a-f]{6,24}")
NO_RETRIEVERS = ("train_teacher", "train_generator", "finetune_generator")


@dataclass(frozen=True)
class Contender:
    """A row of the table."""

    name: str
    meaning: str
    ranker: Ranker


def contenders(models: Sequence[str], suite: Suite, store: Store) -> list[Contender]:
    """The models, each given as MODEL or NAME=MODEL, in their order."""
    found = [contender(each, suite, store) for each in models]
    names = [each.name for each in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UserError(f"the models have the name {min(twice)} in common; give each its own: NAME=MODEL")
    return found


def contender(given: str, suite: Suite, store: Store) -> Contender:
    """`bm25`, a checkpoint by key, or a model by folder, package:NAME/FOLDER or hub name."""
    name, equals, model = given.partition("=") if not Path(given).exists() else (given, "", "")
    if not equals:
        name, model = "", given
    if model == BM25:
        settings = suite.bm25
        return Contender(name or BM25, f"Lucene's BM25 (k1 {settings.k1}, b {settings.b})", ByWords(settings))
    short, long, made = by_name(model, store)
    views, most = reads(made.path)
    read = f"{' + '.join(views)}, reads {most:,} tokens at most"
    return Contender(name or short, f"{long}: {read}", ByRetriever(made, views, max_tokens=most))


def by_name(model: str, store: Store) -> tuple[str, str, Model]:
    """What a model is called in tables, what it is, and itself."""
    if KEY.fullmatch(model) and not Path(model).is_dir():
        folder, manifest = find(model, store)
        if manifest.schema != "Checkpoint" or manifest.stage in NO_RETRIEVERS:
            raise UserError(f"{model}: {manifest.stage} builds {manifest.schema}; expected the key of a retriever")
        short = f"{manifest.stage}-{manifest.key[:8]}"
        return short, f"{manifest.stage}/{manifest.key}", Artifact(manifest.stage, manifest.key, folder)
    source, folder = sources.weights(model), Path(model)
    short = model
    if folder.is_dir():
        short = folder.resolve().name
    elif model.startswith(PACKAGE):
        short = model.removeprefix(PACKAGE).partition("/")[0]
    return short, f"{short} ({source.key[:12]})", source
