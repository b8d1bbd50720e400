"""The evaluation of a recipe: the rankings of every split, their metrics, and how the rankings agree and differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flows.chain.collection import ANSWER, SplitTopics
from flows.chain.pretraining import retrieved_passages_without_titles
from flows.chain.rankers import Bm25System, IndexedBm25
from flows.chain.retriever_rounds import Rounds
from flows.recipe.round_schema import Member, exact_run, expanded, truncated_run, view_run
from flows.recipe.schema import Recipe
from storage import datasets
from storage.artifact import Artifact
from storage.errors import UserError
from storage.tables import Analysis, Metrics, Overlap, Passages, Queries, Run
from tasks.evaluation.evaluate import Evaluation, evaluate
from tasks.evaluation.overlap import PERSISTENCE, Overlapping, overlap
from tasks.evaluation.query_wins import Winning, wins
from tasks.retrieval.fuse import fuse
from tasks.session import in_round

EXAMPLES = 6  # queries that the headline's run wins, and as many that it loses


@dataclass(frozen=True)
class SplitResults:
    """The rankings of a split by name, and their metrics."""

    topics: SplitTopics
    runs: dict[str, Artifact[Run]]
    metrics: Artifact[Metrics]


def bm25_variants(recipe: Recipe[Any], expanded_bm25: IndexedBm25 | None) -> dict[str, IndexedBm25]:
    """Return BM25 over changed texts of the passages, by the name of its ranking.

    `expanded_bm25` is BM25 over passages that are expanded with pseudo-queries, where the recipe has it.
    """
    variants = {} if expanded_bm25 is None else {"bm25_doc2query": expanded_bm25}
    if recipe.evaluate.bm25_without_titles:
        passages = retrieved_passages_without_titles(recipe)
        variants["bm25_without_titles"] = Bm25System(recipe.bm25).on(passages, recipe.encode, recipe.index)
    return variants


def evaluate_split(
    recipe: Recipe[Any], rounds: Rounds, variants: Mapping[str, IndexedBm25], topics: SplitTopics
) -> SplitResults:
    """Rank the queries of a split in every way that the recipe names, and evaluate the rankings.

    `variants` are rankers by BM25 over changed texts of the passages, by the names of their rankings.
    """
    runs = rankings(recipe, rounds, topics.queries)
    runs |= {name: ranker.rank(topics.queries, depth(recipe)) for name, ranker in variants.items()}
    metrics = evaluate(
        qrels=topics.qrels, answers=topics.answers, passages=rounds.passages, runs=list(runs.values()),
        settings=evaluation_settings(recipe, topics, list(runs)),
    )  # fmt: skip
    return SplitResults(topics, runs, metrics)


def rankings(recipe: Recipe[Any], rounds: Rounds, queries: Artifact[Queries]) -> dict[str, Artifact[Run]]:
    """Return by name the rankings by BM25, each round and its views, fusions, approximate indexes and the teacher."""
    documents = depth(recipe)
    runs = {"bm25": rounds.retrieve("bm25", queries, documents)}
    for round_ in expanded(recipe.rounds):
        with in_round(round_.name):
            runs[round_.name] = rounds.retrieve(round_.name, queries, documents)
            for view in round_.rows:
                runs[view_run(round_.name, view)] = rounds.retrieve(round_.name, queries, documents, view)
            for name in (truncated_run(round_.name, dim) for dim in round_.truncate_dims):
                runs[name] = rounds.retrieve(name, queries, documents)
    for ensemble in recipe.fusions:
        members = [Member.read(member) for member in ensemble.members]
        with in_round(ensemble.name):
            fused = [rounds.retrieve(member.round, queries, documents, member.view) for member in members]
            weights = rounds.fusion_weights(ensemble, members)
            runs[ensemble.name] = fuse(runs=fused, weights=weights, settings=ensemble.fuse)
    for approximate in recipe.approximate:
        with in_round(approximate.name):
            runs[approximate.name] = rounds.search_approximate(approximate, queries, documents)
    if (reranked := rounds.teacher.rerank(runs, queries)) is not None:
        runs["teacher"] = reranked
    return runs


def overlaps(recipe: Recipe[Any], runs: dict[str, Artifact[Run]]) -> list[Artifact[Overlap]]:
    """Return how much the views of each retriever agree, and each approximate index with exact search."""
    views = [[view_run(round_.name, view) for view in round_.rows] for round_ in expanded(recipe.rounds)]
    groups = [names for names in views if len(names) > 1]
    groups += [[exact_run(recipe.rounds, approximate), approximate.name] for approximate in recipe.approximate]
    return [
        overlap(
            [runs[name] for name in names],
            settings=Overlapping(names=names, depth=recipe.search.documents, p=PERSISTENCE),
        )
        for names in groups
    ]


def headline_wins(
    recipe: Recipe[Any], results: SplitResults, passages: Artifact[Passages]
) -> Artifact[Analysis] | None:
    """Return the queries on which the headline's run and baseline differ most; None where one is a mean of runs."""
    headline, topics, runs = recipe.headline, results.topics, results.runs
    if not {headline.run, headline.baseline} <= set(runs):
        return None
    settings = Winning(
        run=headline.run, baseline=headline.baseline, metric=headline.metric,
        relevant_from=datasets.relevant_from(recipe.dataset.reader, topics.split),
        ignore_identical_ids=datasets.ignores_identical_ids(recipe.dataset.reader), examples=EXAMPLES,
    )  # fmt: skip
    return wins(
        queries=topics.queries, qrels=topics.qrels, passages=passages, metrics=results.metrics,
        run=runs[headline.run], baseline=runs[headline.baseline], settings=settings,
    )  # fmt: skip


def depth(recipe: Recipe[Any]) -> int:
    """Return the documents of a ranking: one more where one may be the query itself, which is then removed."""
    return recipe.search.documents + datasets.ignores_identical_ids(recipe.dataset.reader)


def evaluation_settings(recipe: Recipe[Any], topics: SplitTopics, runs: list[str]) -> Evaluation:
    """Return how the runs of a split are evaluated; comparisons with runs that are missing are left out."""
    averaged = {
        round_.name: [training.name for training in round_.trainings()]
        for round_ in recipe.rounds
        if round_.is_few_shot
    }
    known = {*runs, *averaged}
    comparisons = [pair for pair in recipe.evaluate.comparisons if {pair.run, pair.baseline} <= known]
    metrics = measurable(recipe.evaluate.metrics, topics)
    return Evaluation(
        dataset=recipe.dataset.reader, split=topics.split, titles=recipe.split.titles,
        relevant_from=datasets.relevant_from(recipe.dataset.reader, topics.split),
        ignore_identical_ids=datasets.ignores_identical_ids(recipe.dataset.reader), names=runs, averaged=averaged,
        seed=recipe.evaluate.seed, resamples=recipe.evaluate.resamples, comparisons=comparisons, metrics=metrics,
    )  # fmt: skip


def measurable(metrics: Sequence[str], topics: SplitTopics) -> list[str]:
    """Return the metrics that a split allows: some need answers, all others judgements. Raises UserError for none."""
    allowed = [
        metric for metric in metrics if (topics.answers if metric.startswith(ANSWER) else topics.qrels) is not None
    ]
    if not allowed:
        has, add = ("answers and no judgements", f"{ANSWER}20") if topics.qrels is None else ("no answers", "nDCG@10")
        raise UserError(
            f"evaluate.metrics: split {topics.split} has {has}, so {', '.join(metrics)} cannot be measured; add {add}, "
            "or leave the split out"
        )
    return allowed


def check_metrics(recipe: Recipe[Any], splits: Sequence[SplitTopics]) -> None:
    """Raise UserError, before anything is trained, where a split allows no metric or the first not the headline's."""
    first, *_ = [measurable(recipe.evaluate.metrics, topics) for topics in splits]
    if recipe.headline.metric not in first:
        raise UserError(
            f"headline.metric: {recipe.headline.metric} cannot be measured on {splits[0].split}, the first of "
            f"dataset.eval_splits; expected {' or '.join(first)}"
        )
