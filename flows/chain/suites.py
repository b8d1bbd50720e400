"""The evaluation of retrievers on the collections of a suite (`flows.recipe.suite_schema`)."""

from __future__ import annotations

from collections.abc import Mapping

from flows.chain import collection
from flows.chain.collection import ANSWER, SplitTopics
from flows.chain.evaluation import measurable
from flows.chain.rankers import System
from flows.recipe.suite_schema import Collection, Suite
from storage import datasets
from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import num_rows
from storage.store import sources
from storage.tables import Metrics, Passages
from tasks.evaluation.evaluate import Comparison, Evaluation, evaluate
from tasks.session import in_round


def evaluate_collection(suite: Suite, member: Collection, systems: Mapping[str, System]) -> Artifact[Metrics]:
    """Return the metrics of each system, by name, on a collection; the others are tested against the first."""
    with in_round(member.name):
        passages, topics = read(suite, member)
        ignores_same_ids = datasets.ignores_identical_ids(member.reader)
        depth, limits = suite.search.documents + ignores_same_ids, suite.encoding_of(member)
        runs = [system.on(passages, limits, suite.index).rank(topics.queries, depth) for system in systems.values()]
        first, *others = systems
        settings = Evaluation(
            dataset=member.name, split=member.eval_split, titles=suite.split.titles,
            relevant_from=datasets.relevant_from(member.reader, member.eval_split),
            ignore_identical_ids=ignores_same_ids,
            names=list(systems), comparisons=[Comparison(run=other, baseline=first) for other in others],
            **suite.evaluate.model_dump() | {"metrics": measurable(suite.evaluate.metrics, topics)},
        )  # fmt: skip
        return evaluate(qrels=topics.qrels, answers=topics.answers, passages=passages, runs=runs, settings=settings)


def read(suite: Suite, member: Collection) -> tuple[Artifact[Passages], SplitTopics]:
    """Return a collection's passages and the topics of its split."""
    _check_size(member)
    passages = collection.split(member, member.retrieve, sources.tokenizer(suite.tokenizer), suite.split)
    answers = any(metric.startswith(ANSWER) for metric in suite.evaluate.metrics)
    return passages, collection.topics(member, member.retrieve, member.eval_split, answers=answers)


def _check_size(member: Collection) -> None:
    """Raise UserError, before anything is encoded, for another number of documents than the official collection's."""
    documents = collection.documents(member, member.retrieve)
    if member.documents is None or not documents.path.is_dir():
        return
    if (number := num_rows(documents.path)) != member.documents:
        raise UserError(
            f"{member.name}: expected the {member.documents:,} documents of the official collection, found {number:,}; "
            "fetch it again, or measure it as it is with a suite that says documents: null"
        )
