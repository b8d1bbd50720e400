"""`--fast`: the changes of a recipe for a smoke test, which runs all of its stages on a slice of its collection."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from storage import datasets
from storage.errors import UserError
from storage.formats.ids import in_slice
from storage.store import sources

FAST = "fast=true"
FRACTIONS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
DOCUMENTS, QUERIES = 500, 8
"""The least numbers of documents in a slice, and of queries with a relevant document in each split."""


def fast_changes(name: str, changes: Sequence[str]) -> list[str]:
    """Return the user's changes of a recipe with those of a smoke test, which give way to the user's.

    The slice is the smallest of `FRACTIONS` that suffices. A collection that is not on this machine keeps the recipe's.
    """
    recipe, _ = load_recipe(name, [FAST, *changes])
    if any(change.partition("=")[0] in ("dataset", "dataset.fraction") for change in changes):
        return [FAST, *changes]
    fraction = smallest_slice(recipe)
    return [FAST, *([] if fraction is None else [f"dataset.fraction={fraction}"]), *changes]


def smallest_slice(recipe: Recipe[Any]) -> float | None:
    """Return the fraction of the documents that a smoke test reads; None for as many as the recipe does."""
    data, part = recipe.dataset, recipe.corpora.retrieve
    loader = datasets.dataset_loader(data.reader)
    try:
        path = sources.locate(data.path, data.reader)
        documents = datasets.num_rows(data.reader, part) or sum(1 for _ in loader.texts(path, part))
        splits = [split for split in (data.train_split, *data.eval_splits) if split]
        judged = [_relevant(data.reader, path, split) for split in splits if datasets.has_qrels(data.reader, split)]
    except (UserError, OSError):  # the run itself reports what is missing or malformed
        return None
    for fraction in FRACTIONS:
        enough = documents * fraction >= DOCUMENTS and all(
            len({query for query, document in pairs if in_slice(document, fraction)}) >= QUERIES for pairs in judged
        )
        if enough and fraction < (data.fraction or 1.0):
            return fraction
    return None


def _relevant(reader: str, path: Path, split: str) -> list[tuple[str, str]]:
    """Return the pairs of query and relevant document of a split."""
    rows = datasets.dataset_loader(reader).qrels(path, split)
    return [(row["query_id"], row["doc_id"]) for row in rows if row["grade"] > 0]
