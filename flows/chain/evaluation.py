"""What a recipe measures: every ranking of every split, and the metrics of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flows.chain.collection import Asked
from flows.chain.retriever_rounds import Rounds
from flows.recipe.round_schema import Member, exact_run, expanded, view_run
from flows.recipe.schema import Recipe
from storage import datasets
from storage.artifact import Artifact
from storage.errors import UserError
from storage.tables import Analysis, Index, Metrics, Overlap, Passages, Queries, Run
from tasks.evaluation.evaluate import Evaluation, evaluate
from tasks.evaluation.overlap import Overlapping, overlap
from tasks.evaluation.query_wins import Winning, wins
from tasks.retrieval.fuse import fuse
from tasks.retrieval.search import Search, search
from tasks.session import in_round

ANSWER = "answer@"
EXAMPLES = 6  # queries that a run is shown to win, and as many that it loses
PERSISTENCE = 0.99  # of rank-biased overlap: 85 % of its weight lie on the first hundred ranks


@dataclass(frozen=True)
class Measured:
    """A split, what ranked its queries, by name, and how well."""

    asked: Asked
    runs: dict[str, Artifact[Run]]
    metrics: Artifact[Metrics]


def measure(recipe: Recipe[Any], rounds: Rounds, enlarged: Artifact[Index] | None, asked: Asked) -> Measured:
    """Every ranking of a split, that of BM25 over expanded passages too where there are some, and their metrics."""
    runs = rankings(recipe, rounds, asked.queries)
    if enlarged is not None:
        deep = Search(documents=depth(recipe), view="bm25")
        runs["bm25_doc2query"] = search(index=enlarged, queries=asked.queries, passages=rounds.passages, settings=deep)
    settings = evaluation(recipe, asked, list(runs))
    metrics = evaluate(
        qrels=asked.qrels, answers=asked.answers, passages=rounds.passages, runs=list(runs.values()), settings=settings
    )
    return Measured(asked, runs, metrics)


def rankings(recipe: Recipe[Any], rounds: Rounds, queries: Artifact[Queries]) -> dict[str, Artifact[Run]]:
    """Every row of the report: BM25, each round and its views, then what is made of several, by name."""
    documents = depth(recipe)
    runs = {"bm25": rounds.found("bm25", queries, documents)}
    for each in expanded(recipe.rounds):
        with in_round(each.name):
            runs[each.name] = rounds.found(each.name, queries, documents)
            for view in each.rows:
                runs[view_run(each.name, view)] = rounds.found(each.name, queries, documents, view)
    for fusion in recipe.fusions:
        members = [Member.read(each) for each in fusion.members]
        with in_round(fusion.name):
            found = [rounds.found(each.round, queries, documents, each.view) for each in members]
            runs[fusion.name] = fuse(runs=found, weights=rounds.learned(fusion, members), settings=fusion.fuse)
    for quick in recipe.approximate:
        with in_round(quick.name):
            runs[quick.name] = rounds.approximately(quick, queries, documents)
    if recipe.teacher is not None:
        runs["teacher"] = rounds.reranked(runs[recipe.teacher.reranks], queries)
    return runs


def overlapping(recipe: Recipe[Any], runs: dict[str, Artifact[Run]]) -> list[Artifact[Overlap]]:
    """How much the views of each retriever agree, and each approximate index with exact search."""
    views = [[view_run(each.name, view) for view in each.rows] for each in expanded(recipe.rounds)]
    groups = [names for names in views if len(names) > 1]
    groups += [[exact_run(recipe.rounds, quick), quick.name] for quick in recipe.approximate]
    compared = recipe.search.documents
    return [
        overlap([runs[name] for name in names], settings=Overlapping(names=names, depth=compared, p=PERSISTENCE))
        for names in groups
    ]


def clearest(recipe: Recipe[Any], of: Measured, passages: Artifact[Passages]) -> Artifact[Analysis] | None:
    """The queries on which the headline's run and its baseline differ most; None where one is a mean of several."""
    head, asked = recipe.headline, of.asked
    if not {head.run, head.baseline} <= set(of.runs):
        return None
    settings = Winning(
        run=head.run, baseline=head.baseline, metric=head.metric,
        relevant_from=datasets.relevant_from(recipe.dataset.reader, asked.split),
        ignore_identical_ids=datasets.ignores_identical_ids(recipe.dataset.reader), examples=EXAMPLES,
    )  # fmt: skip
    return wins(
        queries=asked.queries,
        qrels=asked.qrels,
        passages=passages,
        metrics=of.metrics,
        run=of.runs[head.run],
        baseline=of.runs[head.baseline],
        settings=settings,
    )


def rows(recipe: Recipe[Any], runs: list[str]) -> list[str]:
    """The rows of the report: the runs, and the means of those that are samples."""
    return [*runs, *(each.name for each in recipe.rounds if each.is_few_shot)]


def depth(recipe: Recipe[Any]) -> int:
    """How many documents a list has: one more where one may be the query itself, which is then left out."""
    return recipe.search.documents + datasets.ignores_identical_ids(recipe.dataset.reader)


def evaluation(recipe: Recipe[Any], asked: Asked, runs: list[str]) -> Evaluation:
    """How the runs of a split are measured; comparisons with runs that this recipe has not are left out."""
    few = {each.name for each in recipe.rounds if each.is_few_shot}
    known = {*runs, *few}
    tested = [each for each in recipe.evaluate.comparisons if {each.run, each.baseline} <= known]
    values = recipe.evaluate.model_dump() | {
        "comparisons": tested, "metrics": measurable(recipe.evaluate.metrics, asked)
    }  # fmt: skip
    averaged = {each.name: [one.name for one in expanded([each])] for each in recipe.rounds if each.is_few_shot}
    return Evaluation(
        dataset=recipe.dataset.reader, split=asked.split, titles=recipe.split.titles,
        relevant_from=datasets.relevant_from(recipe.dataset.reader, asked.split),
        ignore_identical_ids=datasets.ignores_identical_ids(recipe.dataset.reader), names=runs, averaged=averaged,
        **values,
    )  # fmt: skip


def measurable(metrics: Sequence[str], asked: Asked) -> list[str]:
    """The metrics that a split can be measured by: answers need answers, all others judgements. UserError for none."""
    found = [each for each in metrics if (asked.answers if each.startswith(ANSWER) else asked.qrels) is not None]
    if not found:
        has, add = ("answers and no judgements", f"{ANSWER}20") if asked.qrels is None else ("no answers", "nDCG@10")
        raise UserError(
            f"evaluate.metrics: split {asked.split} has {has}, so {', '.join(metrics)} cannot be measured; add {add}, "
            "or leave the split out"
        )
    return found


def check_metrics(recipe: Recipe[Any], asked: Sequence[Asked]) -> None:
    """Refuse, before anything is trained, splits that nothing can be measured by, and such a headline."""
    first, *_ = [measurable(recipe.evaluate.metrics, each) for each in asked]
    if recipe.headline.metric not in first:
        raise UserError(
            f"headline.metric: {recipe.headline.metric} cannot be measured on {asked[0].split}, the first of "
            f"dataset.eval_splits; expected {' or '.join(first)}"
        )
