"""The backbone of a recipe: its tokenizer and initial checkpoint, with a reduced vocabulary if the recipe has one."""

from __future__ import annotations

from typing import Any

from flows.chain import collection
from flows.chain.model_weights import model_weights
from flows.recipe.schema import Recipe
from storage.artifact import Artifact
from storage.store import sources
from storage.tables import Checkpoint, Documents, Vocabulary
from tasks.corpus.select_vocabulary import VocabularySize, select_vocabulary
from tasks.corpus.split_corpus import TokenizerFile
from tasks.pretraining.initialise import initialise
from tasks.pretraining.reduce_vocabulary import reduce_vocabulary


def tokenizer(recipe: Recipe[Any]) -> TokenizerFile:
    """Return the backbone's tokenizer."""
    return _vocabulary(recipe) or sources.tokenizer(recipe.backbone.weights)


def initial_checkpoint(recipe: Recipe[Any], *, random: bool = False) -> Artifact[Checkpoint]:
    """Return the backbone's checkpoint, or with `random` one of its shape with random weights."""
    changes = {"start": "random"} if random else {}
    complete = other_checkpoint(recipe, recipe.backbone.weights, **changes)
    vocabulary = _vocabulary(recipe)
    return complete if vocabulary is None else reduce_vocabulary(start=complete, vocabulary=vocabulary)


def other_checkpoint(recipe: Recipe[Any], name: str, **changes: str) -> Artifact[Checkpoint]:
    """Return the checkpoint of a model by folder or hub name, with the backbone's settings and its own vocabulary."""
    stated = sources.stated_name(recipe.backbone.weights)
    settings = recipe.backbone.model_copy(update={"weights": stated, "vocabulary": None, **changes})
    return initialise(model_weights(name), settings=settings)


def _vocabulary(recipe: Recipe[Any]) -> Artifact[Vocabulary] | None:
    """Return the tokens that the documents use most; None where the backbone keeps all tokens."""
    if recipe.backbone.vocabulary is None:
        return None
    retrieved = collection.documents(recipe.dataset, recipe.corpora.retrieve)
    pretraining = _pretraining_documents(recipe)
    return select_vocabulary(
        documents=retrieved, pretraining=None if pretraining == retrieved else pretraining,
        tokenizer=sources.tokenizer(recipe.backbone.weights),
        settings=VocabularySize(tokens=recipe.backbone.vocabulary),
    )  # fmt: skip


def _pretraining_documents(recipe: Recipe[Any]) -> Artifact[Documents] | None:
    if recipe.pretrain is None and not recipe.generates_for_pretraining:
        return None
    return collection.documents(recipe.corpora.pretrain_from or recipe.dataset, recipe.corpora.pretrain)
