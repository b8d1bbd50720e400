"""The chain of a recipe, from corpus to report: the figure of the papers, in code.

Called in a planning session it works out every key and builds nothing; in a building session it
makes what is missing. `flows.reproduce` runs it as a Prefect flow.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.recipe import STARTS, Recipe
from storage import sources
from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.store import Store
from storage.tables import Checkpoint, Index, Passages, Positives, PseudoQueries, Qrels, Queries, Report, Run
from tasks.evaluate import evaluate
from tasks.generate_queries import generate_queries
from tasks.index import index
from tasks.ingest import Corpus, Topics, ingest_corpus, ingest_qrels, ingest_queries
from tasks.initialise import initialise
from tasks.label import adopt_positives, adopt_pseudo_queries, label_passages
from tasks.mine import mine
from tasks.pair_contexts import pair_contexts
from tasks.pretrain import pretrain
from tasks.query_quality import pseudo_queries_as_queries, query_quality
from tasks.report import report
from tasks.search import Search, search
from tasks.split_corpus import split_corpus
from tasks.stage import in_round
from tasks.train import train
from tasks.train_generator import train_generator

Start = Artifact[Checkpoint]


@dataclass(frozen=True)
class Examples:
    """What retrievers learn from: queries, and for each its relevant documents and a passage of each."""

    queries: Artifact[Queries]
    positives: Artifact[Positives]


def chain(recipe: Recipe[Any], name: str, store: Store) -> Artifact[Report]:
    """Every stage of the recipe called `name`, in order; the report is the last."""
    backbone = initialise(sources.weights(recipe.backbone.weights), settings=recipe.backbone)
    passages = split(recipe, recipe.corpora.retrieve, backbone)
    spans = split(recipe, recipe.corpora.pretrain, backbone)
    bm25 = index(passages, None, None, settings=recipe.bm25)

    examples = judged_examples(recipe, passages, bm25) if recipe.dataset.train_split else None
    generator = query_generator(recipe, examples, passages, backbone)
    pseudo_queries = generate_queries(spans, generator, settings=recipe.queries.generate)
    pairs = pair_contexts(spans, pseudo_queries, settings=recipe.contexts)
    pretrained = pretrain(pairs, backbone, settings=recipe.pretrain)
    examples = examples or pseudo_examples(spans, pseudo_queries, passages)

    queries, qrels = topics(recipe, recipe.dataset.eval_split)
    runs = {"bm25": search(bm25, queries, None, passages, settings=recipe.search)}
    if "retrieve" in recipe.queries.for_:
        expanding = generate_queries(passages, generator, settings=recipe.queries.generate)
        expanded = index(passages, None, expanding, settings=recipe.bm25)
        runs["bm25_doc2query"] = search(expanded, queries, None, passages, settings=recipe.search)

    indexes = {"bm25": bm25}
    retrievers: dict[str, Start] = {"pretrained": pretrained, "backbone": backbone}
    for each in recipe.rounds:
        with in_round(each.name):
            start = starting_point(each.start, recipe, retrievers, store)
            mined = search(indexes[each.mine_with], examples.queries, retrievers.get(each.mine_with), passages,
                           settings=Search(documents=recipe.train_documents))  # fmt: skip
            negatives = mine(mined, examples.positives, passages, settings=each.mine)
            retriever = train(start, examples.queries, passages, examples.positives, negatives, settings=each.train)
            dense = index(passages, retriever, None, settings=recipe.index)
            runs[each.name] = search(dense, queries, retriever, passages, settings=recipe.search)
        retrievers[each.name], indexes[each.name] = retriever, dense

    metrics = evaluate(qrels, passages, list(runs.values()), settings=recipe.evaluate)
    quality = quality_of(recipe, spans, pseudo_queries)
    return report(metrics, quality, settings=reporting(recipe, name))


def split(recipe: Recipe[Any], texts: str, backbone: Start) -> Artifact[Passages]:
    """The passages of the collection's `corpus` or `documents`."""
    data = recipe.dataset
    source = sources.dataset(data.reader, data.path, texts)
    documents = ingest_corpus(source, settings=Corpus(reader=data.reader, name=texts, fraction=data.fraction))
    return split_corpus(documents, backbone, settings=recipe.split)


def topics(recipe: Recipe[Any], name: str) -> tuple[Artifact[Queries], Artifact[Qrels]]:
    """The queries and qrels of a split; qrels name documents of the texts that are retrieved."""
    data, texts = recipe.dataset, recipe.corpora.retrieve
    corpus = ingest_corpus(
        sources.dataset(data.reader, data.path, texts),
        settings=Corpus(reader=data.reader, name=texts, fraction=data.fraction),
    )
    settings = Topics(reader=data.reader, split=name, fraction=data.fraction)
    queries = ingest_queries(sources.dataset(data.reader, data.path, "queries", name), settings=settings)
    judgements = sources.dataset(data.reader, data.path, "qrels", name)
    return queries, ingest_qrels(judgements, corpus, queries, settings=settings)


def judged_examples(recipe: Recipe[Any], passages: Artifact[Passages], bm25: Artifact[Index]) -> Examples:
    """The train split; where a document is relevant, its passage that BM25 ranks highest is the positive."""
    queries, qrels = topics(recipe, recipe.dataset.train_split or "")
    found = search(bm25, queries, None, passages, settings=Search(documents=recipe.train_documents))
    return Examples(queries, label_passages(qrels, passages, found))


def pseudo_examples(spans: Artifact[Passages], pseudo_queries: Artifact[PseudoQueries]) -> Examples:
    """What a collection without train queries trains on: each pseudo-query and the passage it was made of."""
    return Examples(adopt_pseudo_queries(spans, pseudo_queries), adopt_positives(spans, pseudo_queries))


def query_generator(recipe: Recipe[Any], examples: Examples | None, passages: Artifact[Passages], backbone: Start) -> Start | Source:
    """The model that writes pseudo-queries: a given one, or one made of the train pairs."""
    if recipe.queries.model is not None:
        return sources.weights(recipe.queries.model)
    if examples is None or recipe.queries.train is None:
        raise UserError("queries.train: making a generator needs dataset.train_split; name a split, or give queries.model")
    return train_generator(examples.queries, examples.positives, passages, backbone, settings=recipe.queries.train)


def starting_point(name: str, recipe: Recipe[Any], known: dict[str, Start], store: Store) -> Start:
    """The checkpoint a round starts from: by word, by the name of an earlier round, by key or by folder."""
    if name in known:
        return known[name]
    if name == "random":
        return initialise(sources.weights(recipe.backbone.weights), settings=recipe.backbone.model_copy(update={"start": "random"}))
    if Path(name).is_dir():
        return initialise(sources.weights(name), settings=recipe.backbone)
    found = [folder for folder, whole in store.manifests() if whole and whole.schema == "Checkpoint" and folder.name.startswith(name)]
    if len(found) != 1:
        words = ", ".join((*STARTS, *(each for each in known if each not in STARTS)))
        raise UserError(f"rounds: start {name!r} names {len(found)} checkpoints; expected {words}, a key of this store or a folder")
    return Artifact(found[0].parent.name, found[0].name, found[0])
