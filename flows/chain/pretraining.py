"""The pre-training of a recipe: its spans, their contexts, and the checkpoint that the paper's objective trains."""

from __future__ import annotations

from typing import Any

from flows.chain import collection
from flows.chain.backbone import tokenizer
from flows.chain.training_examples import train_topics
from flows.recipe.schema import Recipe
from storage.artifact import Artifact
from storage.store import sources
from storage.tables import Checkpoint, Pairs, Passages, PseudoQueries
from tasks.pretraining.count_terms import count_terms
from tasks.pretraining.draw_probe import Drawing, draw_probe, draw_probe_of_pairs
from tasks.pretraining.pair_contexts import Contexts, Pairing, pair_contexts
from tasks.pretraining.pretrain import Pretraining, pretrain


def retrieved_passages(recipe: Recipe[Any]) -> Artifact[Passages]:
    """Return the passages that are retrieved."""
    return collection.split(
        recipe.dataset, recipe.corpora.retrieve, tokenizer(recipe), recipe.split.of_passages,
        without_titles=lambda: _changes_without_titles(recipe),
    )  # fmt: skip


def retrieved_passages_without_titles(recipe: Recipe[Any]) -> Artifact[Passages]:
    """Return the passages that are retrieved, with the same ids and without titles."""
    splitting = recipe.split.of_passages.model_copy(update={"titles": False})
    return collection.split(recipe.dataset, recipe.corpora.retrieve, tokenizer(recipe), splitting)


def pretraining_spans(recipe: Recipe[Any]) -> Artifact[Passages]:
    """Return the passages that are pre-trained on, of the same collection or of another."""
    return collection.split(
        recipe.corpora.pretrain_from or recipe.dataset, recipe.corpora.pretrain, tokenizer(recipe),
        recipe.split.of_spans, without_titles=lambda: _changes_without_titles(recipe),
    )  # fmt: skip


def _changes_without_titles(recipe: Recipe[Any]) -> list[str]:
    """Return all changes that a recipe needs where titles are missing: of passages, of spans, of BM25 without them."""
    split, corpora = recipe.split, recipe.corpora
    changes = []
    with sources.assuming_present():  # a missing collection is an error of its own
        if split.titles and collection.lacks_titles(recipe.dataset, corpora.retrieve):
            changes.append("split.titles=false")
        if split.of_spans.titles and collection.lacks_titles(corpora.pretrain_from or recipe.dataset, corpora.pretrain):
            changes.append("split.titles=false" if split.pretrain_titles is None else "split.pretrain_titles=never")
    if "split.titles=false" in changes and recipe.evaluate.bm25_without_titles:
        changes.append("evaluate.bm25_without_titles=false")
    return list(dict.fromkeys(changes))


def contexts(
    recipe: Recipe[Any], spans: Artifact[Passages], pseudo_queries: Artifact[PseudoQueries] | None
) -> Artifact[Pairs] | None:
    """Return every span with its contexts: pseudo-queries, other spans, or none; None where nothing is pre-trained."""
    if recipe.pretrain is None:
        return None
    kinds, split = recipe.contexts or Contexts(pseudo_queries=0, passages=[], alone=None), recipe.split
    settings = Pairing(**kinds.model_dump(), max_tokens=split.max_tokens, language=split.language, seed=recipe.seed)
    return pair_contexts(passages=spans, pseudo_queries=pseudo_queries, tokenizer=tokenizer(recipe), settings=settings)


def pretrained(
    recipe: Recipe[Any], backbone: Artifact[Checkpoint], passages: Artifact[Passages], pairs: Artifact[Pairs] | None
) -> Artifact[Checkpoint] | None:
    """Return the backbone after the paper's pre-training; None where nothing is pre-trained."""
    if (settings := recipe.pretrain) is None or pairs is None:
        return None
    terms = count_terms(pairs=pairs, tokenizer=tokenizer(recipe)) if settings.objective.counts_terms else None
    probe = probe_pairs(recipe, settings, passages, pairs)
    return pretrain(pairs=pairs, terms=terms, start=backbone, probe=probe, settings=settings)


def probe_pairs(
    recipe: Recipe[Any], pretraining: Pretraining[Any], passages: Artifact[Passages], pairs: Artifact[Pairs]
) -> Artifact[Pairs] | None:
    """Return the pairs of the retrieval probe: train queries, or pseudo-queries of a collection that has none."""
    if pretraining.probe is None:
        return None
    settings = Drawing(pairs=pretraining.probe.pairs, seed=pretraining.seed)
    if recipe.dataset.train_split is None:
        return draw_probe_of_pairs(pairs, settings=settings)
    queries, qrels = train_topics(recipe)
    return draw_probe(queries=queries, qrels=qrels, passages=passages, settings=settings)
