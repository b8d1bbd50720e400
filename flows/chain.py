"""The chain of a recipe, from corpus to report: the figure of the papers, in code.

Called in a planning session it works out every key and builds nothing; in a building session it
makes what is missing. `flows.reproduce` runs it as a Prefect flow.
"""

from __future__ import annotations

from typing import Any, Literal

from flows.describe import reporting
from flows.pseudo_queries import Writer
from flows.recipe import Recipe
from flows.round import Few, Member, exact, row
from flows.rounds import Examples, Rounds, expanded
from storage import sources
from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.store import Store
from storage.tables import (
    Checkpoint,
    Index,
    Overlap,
    Pairs,
    Passages,
    PseudoQueries,
    Qrels,
    Queries,
    Report,
    Run,
)
from tasks.count_terms import count_terms
from tasks.evaluate import Evaluation, evaluate
from tasks.fuse import fuse
from tasks.index import index
from tasks.ingest import Corpus, Topics, ingest_corpus, ingest_qrels, ingest_queries
from tasks.initialise import initialise
from tasks.label import adopt_positives, adopt_pseudo_queries, label_passages
from tasks.overlap import Overlapping, overlap
from tasks.pair_contexts import Contexts, Pairing, pair_contexts
from tasks.pretrain import Pretraining, pretrain
from tasks.pretrain import check as check_pretraining
from tasks.probe import Drawing, draw_probe, draw_probe_of_pairs
from tasks.query_quality import ROUND_TRIP_CUTOFF, pseudo_queries_as_queries, query_quality
from tasks.report import report
from tasks.search import Search, search
from tasks.split_corpus import split_corpus
from tasks.stage import in_round
from tasks.train import check as check_training

Start = Artifact[Checkpoint]
PERSISTENCE = 0.99  # of rank-biased overlap: 85 % of its weight lie on the first hundred ranks


def chain(recipe: Recipe[Any], name: str, store: Store) -> Artifact[Report]:
    """Every stage of the recipe called `name`, in order; the report is the last."""
    weights = sources.weights(recipe.backbone.weights)
    if recipe.pretrain is not None:
        check_pretraining(recipe.pretrain, recipe.backbone, weights.path)
    for each in recipe.rounds:
        if each.train is not None:
            check_training(each.name, each.train, recipe.encode, recipe.backbone, weights.path)
    backbone = initialise(weights, settings=recipe.backbone)
    passages, spans = split(recipe, recipe.corpora.retrieve), pretraining_passages(recipe)
    queries, qrels = topics(recipe, recipe.dataset.eval_split)  # early: bad qrels are told before hours of work
    bm25 = index(passages, None, None, settings=recipe.bm25)

    examples = judged_examples(recipe, passages, bm25) if recipe.dataset.train_split else None
    writer = Writer.of(recipe, store, examples, passages)
    pseudo_queries = writer.write(spans) if writer.writes("pretrain") else None
    starts = {"backbone": backbone}
    if recipe.pretrain is not None:
        starts["pretrained"] = pretrained(recipe, recipe.pretrain, backbone, passages, spans, pseudo_queries)
    examples = examples or pseudo_examples(passages, writer)

    rounds = Rounds(recipe, store, passages, bm25, examples, starts)
    for each in expanded(recipe.rounds):
        rounds.run(each)
    runs = rankings(recipe, rounds, queries)
    if writer.writes("retrieve"):
        enlarged = index(passages, None, writer.write(passages), settings=recipe.bm25)
        runs["bm25_doc2query"] = search(enlarged, None, queries, None, passages, settings=deep(recipe, "bm25"))

    metrics = evaluate(qrels, passages, list(runs.values()), settings=evaluation(recipe, list(runs)))
    figures = quality(recipe, spans, pseudo_queries) if pseudo_queries is not None else None
    agreements = overlapping(recipe, runs)
    trained = {"pre-training": starts["pretrained"]} if "pretrained" in starts else {}
    trained |= {name: made.checkpoint for name, made in rounds.made.items()}
    stored = {"bm25": bm25} | {name: made.vectors for name, made in rounds.made.items()} | rounds.quick
    settings = reporting(recipe, name, rows(recipe, list(runs)), list(trained), list(stored))
    return report(metrics, queries, figures, agreements, list(trained.values()), list(stored.values()),
                  settings=settings)  # fmt: skip


def rankings(recipe: Recipe[Any], rounds: Rounds, queries: Artifact[Queries]) -> dict[str, Artifact[Run]]:
    """Every row of the report: BM25, each round and its views, then what is made of several, by name."""
    documents = recipe.search.documents
    runs = {"bm25": rounds.found("bm25", queries, documents)}
    for each in expanded(recipe.rounds):
        with in_round(each.name):
            runs[each.name] = rounds.found(each.name, queries, documents)
            for view in each.rows:
                runs[row(each.name, view)] = rounds.found(each.name, queries, documents, view)
    for fusion in recipe.fusions:
        members = [Member.read(each) for each in fusion.members]
        with in_round(fusion.name):
            found = [rounds.found(each.round, queries, documents, each.view) for each in members]
            runs[fusion.name] = fuse(found, rounds.learned(fusion, members), settings=fusion.fuse)
    for quick in recipe.approximate:
        with in_round(quick.name):
            runs[quick.name] = rounds.approximately(quick, queries, documents)
    if recipe.teacher is not None:
        runs["teacher"] = rounds.reranked(runs[recipe.teacher.reranks], queries)
    return runs


def overlapping(recipe: Recipe[Any], runs: dict[str, Artifact[Run]]) -> list[Artifact[Overlap]]:
    """How much the views of each retriever agree, and each approximate index with exact search."""
    views = [[row(each.name, view) for view in each.rows] for each in expanded(recipe.rounds)]
    groups = [names for names in views if len(names) > 1]
    groups += [[exact(recipe.rounds, quick), quick.name] for quick in recipe.approximate]
    depth = recipe.search.documents
    return [
        overlap([runs[name] for name in names], settings=Overlapping(names=names, depth=depth, p=PERSISTENCE))
        for names in groups
    ]


def rows(recipe: Recipe[Any], runs: list[str]) -> list[str]:
    """The rows of the report: the runs, and the means of those that are samples."""
    return [*runs, *(each.name for each in recipe.rounds if isinstance(each.queries, Few))]


def deep(recipe: Recipe[Any], view: str) -> Search:
    """As deep as the evaluation searches."""
    return Search(documents=recipe.search.documents, view=view)


def split(recipe: Recipe[Any], texts: Literal["corpus", "documents"]) -> Artifact[Passages]:
    """The passages of the collection's `corpus` or `documents`."""
    data = recipe.dataset
    source = sources.dataset(data.reader, data.path, texts)
    documents = ingest_corpus(source, settings=Corpus(reader=data.reader, name=texts, fraction=data.fraction))
    return split_corpus(documents, pieces(recipe), settings=recipe.split)


def pretraining_passages(recipe: Recipe[Any]) -> Artifact[Passages]:
    """The passages that are pre-trained on: of the same collection, or of another."""
    other, texts = recipe.corpora.pretrain_from, recipe.corpora.pretrain
    if other is None:
        return split(recipe, texts)
    source = sources.dataset(other.reader, other.path, texts)
    documents = ingest_corpus(source, settings=Corpus(reader=other.reader, name=texts, fraction=None))
    return split_corpus(documents, pieces(recipe), settings=recipe.split)


def pieces(recipe: Recipe[Any]) -> Source:
    """The backbone's tokenizer."""
    return sources.tokenizer(recipe.backbone.weights)


def pairing(recipe: Recipe[Any]) -> Pairing:
    """The contexts of the recipe, with what they need to know of how passages were split."""
    contexts, split = recipe.contexts or Contexts(pseudo_queries=0, passages=[], alone=None), recipe.split
    return Pairing(**contexts.model_dump(), max_tokens=split.max_tokens, language=split.language, seed=recipe.seed)


def pretrained(
    recipe: Recipe[Any], settings: Pretraining[Any], backbone: Start, passages: Artifact[Passages],
    spans: Artifact[Passages], pseudo_queries: Artifact[PseudoQueries] | None,
) -> Start:  # fmt: skip
    """What the recipe's paper makes of the backbone, on the spans and their contexts."""
    pairs = pair_contexts(spans, pseudo_queries, pieces(recipe), settings=pairing(recipe))
    counts = count_terms(pairs, pieces(recipe)) if settings.objective.counts_terms else None
    return pretrain(pairs, counts, backbone, probing(recipe, settings, passages, pairs), settings=settings)


def probing(
    recipe: Recipe[Any], pretraining: Pretraining[Any], passages: Artifact[Passages], pairs: Artifact[Pairs]
) -> Artifact[Pairs] | None:
    """What the pre-training is probed with: questions of the train split, or pseudo-queries where there are none."""
    if pretraining.probe is None:
        return None
    settings = Drawing(pairs=pretraining.probe.pairs, seed=pretraining.seed)
    if recipe.dataset.train_split is None:
        return draw_probe_of_pairs(pairs, settings=settings)
    return draw_probe(*topics(recipe, recipe.dataset.train_split), passages, settings=settings)


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
    found = search(bm25, None, queries, None, passages,
                   settings=Search(documents=recipe.train_documents, view="bm25"))  # fmt: skip
    return Examples(queries, label_passages(qrels, passages, found))


def pseudo_examples(passages: Artifact[Passages], writer: Writer) -> Examples:
    """What a collection without train queries trains on: its passages' pseudo-queries and the passages themselves."""
    pseudo_queries = writer.write(passages)
    return Examples(adopt_pseudo_queries(passages, pseudo_queries), adopt_positives(passages, pseudo_queries))


def evaluation(recipe: Recipe[Any], runs: list[str]) -> Evaluation:
    """How the runs are measured; comparisons with runs that this recipe has not are left out."""
    few = {each.name for each in recipe.rounds if isinstance(each.queries, Few)}
    known = {*runs, *few}
    tested = [each for each in recipe.evaluate.comparisons if {each.run, each.baseline} <= known]
    values = recipe.evaluate.model_dump() | {"comparisons": tested}
    averaged = {
        each.name: [one.name for one in expanded([each])] for each in recipe.rounds if isinstance(each.queries, Few)
    }
    return Evaluation(split=recipe.dataset.eval_split, names=runs, averaged=averaged, **values)


def quality(recipe: Recipe[Any], spans: Artifact[Passages], pseudo_queries: Artifact[PseudoQueries]) -> Artifact[Any]:
    """How good the pseudo-queries are: do they find the passage they were made of?"""
    if (wanted := recipe.queries) is None:
        raise UserError("queries: this recipe writes none")
    if wanted.filter is not None and wanted.filter.round_trip is not None:
        return query_quality(spans, pseudo_queries, None, settings=wanted.quality)
    sampled = pseudo_queries_as_queries(pseudo_queries, settings=wanted.quality)
    bm25 = index(spans, None, None, settings=recipe.bm25)
    found = search(bm25, None, sampled, None, spans, settings=Search(documents=ROUND_TRIP_CUTOFF, view="bm25"))
    return query_quality(spans, pseudo_queries, found, settings=wanted.quality)
