"""The chain of a recipe, from corpus to report: the figure of the papers, in code.

Called in a planning session it works out every key and builds nothing; in a building session it
makes what is missing. `flows.plan` plans it, `flows.reproduce` runs it as a Prefect flow.
"""

from __future__ import annotations

from typing import Any, Literal

from flows.chain import collection
from flows.chain.analyses import Ran, analyse
from flows.chain.collection import Asked, Place
from flows.chain.evaluation import check_metrics, clearest, measure, overlapping, rows
from flows.chain.pseudo_queries import Writer
from flows.chain.report_settings import reporting
from flows.chain.retriever_rounds import Examples, Rounds
from flows.chain.transfer import read_elsewhere, transferred
from flows.recipe.round_schema import expanded
from flows.recipe.schema import Recipe
from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.store import sources
from storage.store.store import Store
from storage.tables import (
    Checkpoint,
    Index,
    Pairs,
    Passages,
    PseudoQueries,
    Qrels,
    Queries,
    Report,
)
from tasks.finetuning.label_positives import adopt_positives, adopt_pseudo_queries, label_passages
from tasks.finetuning.train import check as check_training
from tasks.pretraining.count_terms import count_terms
from tasks.pretraining.draw_probe import Drawing, draw_probe, draw_probe_of_pairs
from tasks.pretraining.initialise import initialise
from tasks.pretraining.pair_contexts import Contexts, Pairing, pair_contexts
from tasks.pretraining.pretrain import Pretraining, pretrain
from tasks.pretraining.pretrain import check as check_pretraining
from tasks.pseudo_queries.query_quality import ROUND_TRIP_CUTOFF, pseudo_queries_as_queries, query_quality
from tasks.report.report import report
from tasks.retrieval.index import index
from tasks.retrieval.search import Search, search

Start = Artifact[Checkpoint]
PERSISTENCE = 0.99  # of rank-biased overlap: 85 % of its weight lie on the first hundred ranks


def chain(recipe: Recipe[Any], name: str, store: Store) -> Artifact[Report]:
    """Every stage of the recipe called `name`, in order; the report is the last."""
    weights = sources.weights(recipe.backbone.weights)
    backbone = initialise(weights, settings=recipe.backbone)
    passages, spans = split(recipe, recipe.corpora.retrieve), pretraining_passages(recipe)
    # topics are read early: bad qrels are told before hours of work
    asked = [topics(recipe, each) for each in recipe.dataset.eval_splits]
    check_metrics(recipe, asked)
    read_elsewhere(recipe)
    bm25 = index(passages=passages, settings=recipe.bm25)

    examples = judged_examples(recipe, passages, bm25) if recipe.dataset.train_split else None
    writer = Writer.of(recipe, store, examples, passages)
    pseudo_queries = writer.write(spans) if writer.writes("pretrain") else None
    starts = {"backbone": backbone}
    pairs = None
    if recipe.pretrain is not None:
        pairs = pair_contexts(
            passages=spans, pseudo_queries=pseudo_queries, tokenizer=pieces(recipe), settings=pairing(recipe)
        )
        starts["pretrained"] = pretrained(recipe, recipe.pretrain, backbone, passages, pairs)
    examples = examples or pseudo_examples(passages, writer)

    rounds = Rounds(recipe, store, passages, bm25, examples, starts)
    for each in expanded(recipe.rounds):
        rounds.run(each)
    enlarged = None
    if writer.writes("retrieve"):
        enlarged = index(passages=passages, pseudo_queries=writer.write(passages), settings=recipe.bm25)
    measured = [measure(recipe, rounds, enlarged, each) for each in asked]
    figures = quality(recipe, spans, pseudo_queries) if pseudo_queries is not None else None
    first = measured[0]
    agreements = overlapping(recipe, first.runs)
    trained = {"pre-training": starts["pretrained"]} if "pretrained" in starts else {}
    trained |= {name: made.checkpoint for name, made in rounds.made.items()}
    stored = {"bm25": bm25} | {name: made.vectors for name, made in rounds.made.items()} | rounds.quick
    analyses = analyse(Ran(recipe, rounds, first, spans, pseudo_queries, pairs, pieces(recipe)))
    settings = reporting(recipe, name, rows(recipe, list(first.runs)), list(trained), list(stored))
    return report(
        metrics=[each.metrics for each in measured], queries=first.asked.queries, quality=figures,
        agreements=agreements, checkpoints=list(trained.values()), stored=list(stored.values()),
        wins=clearest(recipe, first, passages), analyses=analyses,
        transfer=transferred(recipe, rounds), settings=settings,
    )  # fmt: skip


def check(recipe: Recipe[Any]) -> None:
    """Refuse what some stage would refuse hours later: what only the backbone's shape can tell."""
    weights = sources.weights(recipe.backbone.weights)
    if recipe.pretrain is not None:
        check_pretraining(recipe.pretrain, recipe.backbone, weights.path)
    for each in recipe.rounds:
        if each.train is not None:
            check_training(each.name, each.train, recipe.encode, recipe.backbone, weights.path)


def split(recipe: Recipe[Any], texts: Literal["corpus", "documents"], place: Place | None = None) -> Artifact[Passages]:
    """The passages of the collection's `corpus` or `documents`, or of another collection's."""
    return collection.split(place or recipe.dataset, texts, pieces(recipe), recipe.split)


def pretraining_passages(recipe: Recipe[Any]) -> Artifact[Passages]:
    """The passages that are pre-trained on: of the same collection, or of another."""
    return split(recipe, recipe.corpora.pretrain, recipe.corpora.pretrain_from)


def pieces(recipe: Recipe[Any]) -> Source:
    """The backbone's tokenizer."""
    return sources.tokenizer(recipe.backbone.weights)


def pairing(recipe: Recipe[Any]) -> Pairing:
    """The contexts of the recipe, with what they need to know of how passages were split."""
    contexts, split = recipe.contexts or Contexts(pseudo_queries=0, passages=[], alone=None), recipe.split
    return Pairing(**contexts.model_dump(), max_tokens=split.max_tokens, language=split.language, seed=recipe.seed)


def pretrained(
    recipe: Recipe[Any], settings: Pretraining[Any], backbone: Start, passages: Artifact[Passages],
    pairs: Artifact[Pairs],
) -> Start:  # fmt: skip
    """What the recipe's paper makes of the backbone, on the spans and their contexts."""
    counts = count_terms(pairs=pairs, tokenizer=pieces(recipe)) if settings.objective.counts_terms else None
    return pretrain(
        pairs=pairs, terms=counts, start=backbone, probe=probing(recipe, settings, passages, pairs), settings=settings
    )


def probing(
    recipe: Recipe[Any], pretraining: Pretraining[Any], passages: Artifact[Passages], pairs: Artifact[Pairs]
) -> Artifact[Pairs] | None:
    """What the pre-training is probed with: questions of the train split, or pseudo-queries where there are none."""
    if pretraining.probe is None:
        return None
    settings = Drawing(pairs=pretraining.probe.pairs, seed=pretraining.seed)
    if recipe.dataset.train_split is None:
        return draw_probe_of_pairs(pairs, settings=settings)
    queries, qrels = train_topics(recipe)
    return draw_probe(queries=queries, qrels=qrels, passages=passages, settings=settings)


def topics(recipe: Recipe[Any], name: str) -> Asked:
    """What a split asks of the texts that are retrieved."""
    training = name == recipe.dataset.train_split
    answers = any(metric.startswith("answer@") for metric in recipe.evaluate.metrics)
    return collection.topics(recipe.dataset, recipe.corpora.retrieve, name, training=training, answers=answers)


def train_topics(recipe: Recipe[Any]) -> tuple[Artifact[Queries], Artifact[Qrels]]:
    """What is learned from."""
    asked = topics(recipe, recipe.dataset.train_split or "")
    if asked.qrels is None:
        raise UserError(f"dataset.train_split: {asked.split} of {recipe.dataset.reader} has no qrels to learn from")
    return asked.queries, asked.qrels


def judged_examples(recipe: Recipe[Any], passages: Artifact[Passages], bm25: Artifact[Index]) -> Examples:
    """The train split; where a document is relevant, its passage that BM25 ranks highest is the positive."""
    queries, qrels = train_topics(recipe)
    found = search(index=bm25, queries=queries, passages=passages,
                   settings=Search(documents=recipe.train_documents, view="bm25"))  # fmt: skip
    return Examples(queries, label_passages(qrels=qrels, passages=passages, bm25_run=found))


def pseudo_examples(passages: Artifact[Passages], writer: Writer) -> Examples:
    """What a collection without train queries trains on: its passages' pseudo-queries and the passages themselves."""
    pseudo_queries = writer.write(passages)
    return Examples(
        adopt_pseudo_queries(passages=passages, pseudo_queries=pseudo_queries),
        adopt_positives(passages=passages, pseudo_queries=pseudo_queries),
    )


def quality(recipe: Recipe[Any], spans: Artifact[Passages], pseudo_queries: Artifact[PseudoQueries]) -> Artifact[Any]:
    """How good the pseudo-queries are: do they find the passage they were made of?"""
    if (wanted := recipe.queries) is None:
        raise UserError("queries: this recipe writes none")
    if wanted.filter is not None and wanted.filter.round_trip is not None:
        return query_quality(passages=spans, pseudo_queries=pseudo_queries, settings=wanted.quality)
    sampled = pseudo_queries_as_queries(pseudo_queries, settings=wanted.quality)
    bm25 = index(passages=spans, settings=recipe.bm25)
    found = search(
        index=bm25, queries=sampled, passages=spans, settings=Search(documents=ROUND_TRIP_CUTOFF, view="bm25")
    )
    return query_quality(passages=spans, pseudo_queries=pseudo_queries, run=found, settings=wanted.quality)
