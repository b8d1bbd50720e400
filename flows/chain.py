"""The chain of a recipe, from corpus to report: the figure of the papers, in code.

Called in a planning session it works out every key and builds nothing; in a building session it
makes what is missing. `flows.reproduce` runs it as a Prefect flow.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flows.recipe import STARTS, Recipe, as_yaml
from storage import sources
from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.store import Store
from storage.tables import Checkpoint, Index, Passages, Positives, PseudoQueries, Qrels, Queries, Report
from tasks.evaluate import Evaluation, evaluate
from tasks.generate_queries import generate_queries
from tasks.index import index
from tasks.ingest import Corpus, Topics, ingest_corpus, ingest_qrels, ingest_queries
from tasks.initialise import initialise
from tasks.label import adopt_positives, adopt_pseudo_queries, label_passages
from tasks.mine import mine
from tasks.pair_contexts import pair_contexts
from tasks.pretrain import pretrain
from tasks.query_quality import ROUND_TRIP_CUTOFF, pseudo_queries_as_queries, query_quality
from tasks.report import Reporting, report
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
    passages, spans = split(recipe, recipe.corpora.retrieve), split(recipe, recipe.corpora.pretrain)
    queries, qrels = topics(recipe, recipe.dataset.eval_split)  # early: bad qrels are told before hours of work
    bm25 = index(passages, None, None, settings=recipe.bm25)

    examples = judged_examples(recipe, passages, bm25) if recipe.dataset.train_split else None
    generator = query_generator(recipe, examples, passages)
    pseudo_queries = generate_queries(spans, generator, settings=recipe.queries.generate)
    pairs = pair_contexts(spans, pseudo_queries, settings=recipe.contexts)
    pretrained = pretrain(pairs, backbone, settings=recipe.pretrain)
    examples = examples or pseudo_examples(recipe, passages, generator)

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

    metrics = evaluate(qrels, passages, list(runs.values()), settings=evaluation(recipe, list(runs)))
    quality = round_trip(recipe, spans, pseudo_queries)
    trained = {"pre-training": pretrained} | {each.name: retrievers[each.name] for each in recipe.rounds}
    return report(metrics, quality, list(trained.values()), settings=reporting(recipe, name, list(runs), list(trained)))


def split(recipe: Recipe[Any], texts: Literal["corpus", "documents"]) -> Artifact[Passages]:
    """The passages of the collection's `corpus` or `documents`."""
    data = recipe.dataset
    source = sources.dataset(data.reader, data.path, texts)
    documents = ingest_corpus(source, settings=Corpus(reader=data.reader, name=texts, fraction=data.fraction))
    return split_corpus(documents, sources.tokenizer(recipe.backbone.weights), settings=recipe.split)


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


def pseudo_examples(recipe: Recipe[Any], passages: Artifact[Passages], generator: Start | Source) -> Examples:
    """What a collection without train queries trains on: its passages' pseudo-queries and the passages themselves."""
    pseudo_queries = generate_queries(passages, generator, settings=recipe.queries.generate)
    return Examples(adopt_pseudo_queries(passages, pseudo_queries), adopt_positives(passages, pseudo_queries))


def query_generator(recipe: Recipe[Any], examples: Examples | None, passages: Artifact[Passages]) -> Start | Source:
    """The model that writes pseudo-queries: a given one, or one made of the train pairs."""
    if recipe.queries.model is not None:
        return sources.weights(recipe.queries.model)
    if examples is None or recipe.queries.train is None:
        raise UserError(
            "queries.train: making a generator needs dataset.train_split; name a split, or give queries.model"
        )
    pieces = sources.weights(recipe.backbone.weights)
    return train_generator(examples.queries, examples.positives, passages, pieces, settings=recipe.queries.train)


def starting_point(name: str, recipe: Recipe[Any], known: dict[str, Start], store: Store) -> Start:
    """The checkpoint a round starts from: by word, by the name of an earlier round, by key or by folder."""
    if name in known:
        return known[name]
    if name == "random":
        return initialise(
            sources.weights(recipe.backbone.weights), settings=recipe.backbone.model_copy(update={"start": "random"})
        )
    if Path(name).is_dir():
        return initialise(sources.weights(name), settings=recipe.backbone)
    found = [
        folder
        for folder, whole in store.manifests()
        if whole and whole.schema == "Checkpoint" and folder.name.startswith(name)
    ]
    if len(found) != 1:
        words = ", ".join((*STARTS, *(each for each in known if each not in STARTS)))
        raise UserError(
            f"rounds: start {name!r} names {len(found)} checkpoints; expected {words}, a key of this store or a folder"
        )
    return Artifact(found[0].parent.name, found[0].name, found[0])


def evaluation(recipe: Recipe[Any], runs: list[str]) -> Evaluation:
    """How the runs are measured; comparisons with runs that this recipe has not are left out."""
    tested = [each for each in recipe.evaluate.comparisons if {each.run, each.baseline} <= set(runs)]
    values = recipe.evaluate.model_dump() | {"comparisons": tested}
    return Evaluation(split=recipe.dataset.eval_split, names=runs, **values)


def round_trip(
    recipe: Recipe[Any], spans: Artifact[Passages], pseudo_queries: Artifact[PseudoQueries]
) -> Artifact[Any]:
    """How good the pseudo-queries are: do they find the passage they were made of?"""
    sampled = pseudo_queries_as_queries(pseudo_queries, settings=recipe.queries.quality)
    bm25 = index(spans, None, None, settings=recipe.bm25)
    found = search(bm25, sampled, None, spans, settings=Search(documents=ROUND_TRIP_CUTOFF))
    return query_quality(spans, pseudo_queries, found, settings=recipe.queries.quality)


def reporting(recipe: Recipe[Any], name: str, runs: list[str], trained: list[str]) -> Reporting:
    """What the report says beside the numbers."""
    absent = {}
    if "bm25_doc2query" not in runs:
        absent["bm25_doc2query"] = "queries.for does not name `retrieve`, so no passage was expanded"
    return Reporting(
        recipe=name, title=recipe.title, paper=recipe.pretrain.paper, dataset=recipe.dataset.description,
        generator=recipe.queries.generator, text=as_yaml(recipe), runs={run: meaning(recipe, run) for run in runs},
        absent=absent, main=recipe.headline.run, baseline=recipe.headline.baseline, metric=recipe.headline.metric,
        reported=recipe.reported, trained=trained,
    )  # fmt: skip


def meaning(recipe: Recipe[Any], run: str) -> str:
    """What a run is, in a sentence."""
    if run == "bm25":
        return f"Lucene's BM25 (k1 {recipe.bm25.k1}, b {recipe.bm25.b}) over the passages"
    if run == "bm25_doc2query":
        return f"BM25 over the passages with their pseudo-queries appended, written by {recipe.queries.generator}"
    each = next(one for one in recipe.rounds if one.name == run)
    starts = {
        "pretrained": "the pre-trained checkpoint", "backbone": "the backbone's weights, without the pre-training",
        "random": "random weights, without the pre-training",
    }  # fmt: skip
    return f"bi-encoder, from {starts.get(each.start, each.start)}, with negatives mined by {each.mine_with}"
