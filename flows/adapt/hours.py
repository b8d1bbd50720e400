"""The hours of an adaptation, estimated before it begins: all stages of training, decision and index.

Stages with an encoder take FLOPs at the rate of this machine, as in `pretrieve plan`, but of texts as long as those of
a sample. The seconds of other stages were measured on one core (docs/scale.md, docs/log.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.adapt.collections import HELDOUT, TRAIN
from flows.adapt.recipes import NEGATIVES, PASSAGE_TOKENS, RERANKED, START, Start
from flows.adapt.results import indexed, splitting
from flows.chain.rankers import Bm25System, RetrieverSystem, System
from flows.chain.suites import evaluate_collection
from flows.evaluate.systems import BM25
from flows.plan.costs import CostEstimate, passes_texts
from flows.plan.hours import MachineHours
from flows.plan.plan import planned
from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from flows.recipe.suite_schema import Collection, Suite
from storage.artifact import Artifact, Source
from storage.formats.records import TextRow
from storage.store import sources
from storage.store.store import Store
from tasks.corpus.sentence_packing import count_tokens
from tasks.corpus.split_corpus import TOKENIZER, load_tokenizer, split_documents
from tasks.estimates.flops import Cost
from tasks.job import Job
from tasks.retrieval.encode import Model
from tasks.session import Done, Session, session

SAMPLE, SAMPLED_CHARACTERS = 500, 2_000_000  # the most documents of a sample; none are added beyond the characters
SPECIAL_TOKENS = 3  # [CLS], and [SEP] after title and text
RUN_SECONDS = 60.0  # of two flows with Prefect's server, imports, the compilation of kernels and Lucene's Java
STAGE_SECONDS = 0.4  # of every stage, for its task, lock, hashes and manifest
START_SECONDS = {"index bm25": 0.5, "search bm25": 0.5, "evaluate": 0.5, "report": 0.5, "train": 1.0, "pretrain": 1.0}
"""Seconds of a stage on a collection of a few texts, in addition to `STAGE_SECONDS`."""
PASSAGE_SECONDS = {"ingest_corpus": 2e-5, "split_corpus": 3e-4, "index bm25": 1e-4, "pair_contexts": 4e-5}
QUERY_SECONDS, PAIR_SECONDS = 1e-3, 2e-8  # of a search for each query, and for each pair of a query and a passage


@dataclass(frozen=True)
class Amounts:
    """The numbers of texts that a plan needs before anything is read."""

    passages: int
    mean_tokens: float
    """Of a passage with its title and special tokens, as far as they are read."""
    queries: Mapping[str, int]
    """The queries of each split."""


def amounts(documents: Sequence[TextRow], queries: Mapping[str, int], start: Start, language: str) -> Amounts:
    """Return the amounts of a collection. Passages are split from a sample of the documents, evenly from all.

    Their number is extrapolated by characters, so that it rests little on how many of the sample are long.
    """
    sample = sampled(documents)
    tokenizer = str(sources.tokenizer(start.weights).path / TOKENIZER)
    passages = split_documents([dict(row) for row in sample], tokenizer=tokenizer, settings=splitting(start, language))
    titles = count_tokens([row["title"] for row in passages], load_tokenizer(tokenizer))
    most = start.limit(PASSAGE_TOKENS)
    lengths = [
        min(most, row["num_tokens"] + title + SPECIAL_TOKENS) for row, title in zip(passages, titles, strict=True)
    ]
    number = round(len(passages) * _characters(documents) / max(1, _characters(sample)))
    return Amounts(number, sum(lengths) / max(1, len(lengths)), dict(queries))


def sampled(documents: Sequence[TextRow]) -> list[TextRow]:
    """Return at most `SAMPLE` documents, evenly from all, and fewer where these are long."""
    sample: list[TextRow] = []
    characters = 0
    for row in documents[:: -(-len(documents) // SAMPLE)]:
        if characters > SAMPLED_CHARACTERS:
            break
        sample.append(row)
        characters += _characters([row])
    return sample


def _characters(documents: Sequence[TextRow]) -> int:
    return sum(len(row["title"]) + len(row["text"]) for row in documents)


def estimated_hours(
    file: Path, store: Store, known: Amounts, suite: Suite, original: Collection, start: Start
) -> tuple[float, str]:
    """Return the hours of an adaptation with this recipe and suite on this machine, and their origin."""
    plan = planned_adaptation(file, store, suite, original, start)
    estimate = StageSeconds(load_recipe(str(file))[0], plan, known)
    return estimate.all() / 3600, f"by the rate of encoders measured {estimate.machine.measured()}"


def planned_adaptation(file: Path, store: Store, suite: Suite, original: Collection, start: Start) -> Session:
    """Return a plan with the stages of the recipe, of the decision and, for a gain, of the index at the end."""
    plan = planned(load_recipe(str(file))[0], file.stem, store)
    weights = sources.weights(start.weights)
    models: dict[str, Model] = {START: weights}
    for job in plan.jobs.values():
        if job.stage.name == "train":
            models[job.round] = Artifact("train", job.key, store.folder("train", job.key))
    systems: dict[str, System] = {
        name: RetrieverSystem(model, ("dense",), max_tokens=start.max_tokens) for name, model in models.items()
    }
    systems[BM25] = Bm25System(suite.bm25)
    chosen = Source("chosen", weights.path)  # the exported folder has a key of its own, which is not known yet
    with session(plan):
        for member in suite.collections:
            evaluate_collection(suite, member, systems)
        indexed(original, chosen, start, suite.split.language)
    return plan


def seconds_of_stages(plan: Session, index: Mapping[str, Any], store: Store) -> float:
    """Return the seconds that the stages of an adaptation took, those of the index of the chosen model included.

    Stages that were interrupted count with all attempts, and those that were in the store before as they took then.
    """
    seconds = {step.reference: step.seconds for step in plan.done.values() if step.cached}
    for reference in (index["vectors"], index["index"]):
        stage, _, key = reference.partition("/")
        if (manifest := store.manifest(stage, key)) is not None:
            seconds[reference] = float(manifest.built["seconds"])
    return sum(seconds.values())


class StageSeconds:
    """Estimates the seconds of the stages of a plan."""

    def __init__(self, recipe: Recipe[Any], plan: Session, known: Amounts) -> None:
        self.plan, self.known = plan, known
        self.costs = CostEstimate(recipe, list(plan.done.values()))
        self.machine = MachineHours(plan.store, recipe.execution)
        self.fullness = known.mean_tokens / recipe.encode.passage_max_tokens  # of texts, taken as that of passages

    def all(self) -> float:
        """Return the seconds of all stages that are not cached, and of what is done once."""
        return RUN_SECONDS + sum(self.of(step) for step in self.plan.done.values() if not step.cached)

    def of(self, step: Done) -> float:
        """Return the seconds of building a stage."""
        job = self.plan.jobs[step.reference]
        kind = f"{step.stage} bm25" if BM25 in (job.values.get("engine"), job.values.get("view")) else step.stage
        seconds = STAGE_SECONDS + START_SECONDS.get(kind, 0.0) + PASSAGE_SECONDS.get(kind, 0.0) * self.known.passages
        if passes_texts(step):
            seconds += self._encoder(step, self.costs.of_one(step).times(self._number(step)))
        if step.stage == "search":
            seconds += self._search(job)
        return seconds

    def _search(self, job: Job) -> float:
        queries = self._queries(job)
        seconds = queries * (QUERY_SECONDS + self.known.passages * PAIR_SECONDS)
        if (vectors := job.references["vectors"]) is None:
            return seconds
        encode = self.plan.done[vectors]
        limits, passage = self.costs.limits(encode), self.costs.of_one(encode)
        return seconds + self._encoder(encode, passage.times(queries * limits.query_max_tokens / passage.tokens))

    def _encoder(self, step: Done, cost: Cost) -> float:
        return 3600 * self.machine.of(step, cost.times(self.fullness))

    def _queries(self, job: Job) -> int:
        """Return the queries of a search, whose split is in the settings of their ingestion."""
        topics = self.plan.jobs[job.references["queries"]]
        return self.known.queries[topics.values["split"]]

    def _number(self, step: Done) -> float:
        """Return the number of texts, queries or pairs of a stage with an encoder."""
        if step.stage == "train":
            training = self.costs.training(step)
            return training.num_steps(self.known.queries[TRAIN]) * training.batch_queries
        if step.stage == "pretrain":
            return self.costs.number(step) or 0
        if step.stage == "score":
            return self.known.queries[TRAIN] * (1 + NEGATIVES)
        if step.stage == "rerank":
            return self.known.queries[HELDOUT] * RERANKED
        return self.known.passages
