"""The tokens and FLOPs of a plan's stages, counted before anything runs; both are upper bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flows.chain.collection import Part
from flows.chain.transfer import suite_of
from flows.plan.counts import CollectionCounts
from flows.recipe.round_schema import FewShotQueries, expanded
from flows.recipe.schema import Recipe
from flows.recipe.sections import Dataset, OtherCollection
from storage import datasets
from storage.settings import Settings
from storage.store import sources
from tasks.estimates.flops import Cost, Costs
from tasks.finetuning.train import PLAIN, Training
from tasks.retrieval.encode import Encoding
from tasks.runtime.formatting import duration
from tasks.session import Done

CHECKPOINT = {"pretrain": 2, "train": 0, "encode": 1, "train_teacher": 0, "score": 0, "rerank": 0}
"""For each stage that passes texts through an encoder, the position of the encoder's checkpoint among its inputs."""
COUNTED = {
    "pretrain": "texts", "train": "queries", "encode": "passages", "train_teacher": "queries", "score": "pairs",
    "rerank": "pairs",
}  # fmt: skip


class CostEstimate:
    """Tokens and FLOPs of the stages of a plan that pass texts through an encoder."""

    def __init__(self, recipe: Recipe[Any], steps: Sequence[Done]) -> None:
        self.recipe, self.steps = recipe, {step.reference: step for step in steps}
        self.costs, self.teacher_costs = costs_of_models(recipe, with_dropout=False)
        self.suite = suite_of(recipe)
        self.collections = {collection.name: collection for collection in self.suite.collections} if self.suite else {}
        self.counts = CollectionCounts(recipe)
        self.notes: dict[str, None] = {}
        """Lines that explain the numbers, in order; a dict, so that each is there once."""
        self._cache: dict[str, Cost] = {}
        teacher = recipe.teacher.weights if recipe.teacher else None
        for name, costs in ((recipe.backbone.weights, self.costs), (teacher, self.teacher_costs)):
            if name and costs.assumed:
                self.note(f"FLOPs: {name} is not here; it is taken to have the shape of BERT-base")

    def of(self, step: Done) -> Cost | None:
        """Return the most that a stage can cost; None where the number of texts is not known yet."""
        number, one = self.number(step), self.of_one(step)
        if number is not None:
            return one.times(number)
        cost = f"{one.tokens:,.0f} tokens and {in_powers(one.flops)} FLOPs at most"
        self.note(f"{step.stage}: the number of {COUNTED[step.stage]} is not known yet; each has {cost}")
        return None

    def of_one(self, step: Done) -> Cost:
        """Return the most that one text, pair or query can cost."""
        teacher = self.recipe.teacher
        if step.stage == "pretrain" and self.recipe.pretrain:
            return self.costs.pretraining(self.recipe.pretrain)
        if teacher and step.stage in ("score", "rerank"):
            scoring = teacher.score if step.stage == "score" else teacher.rerank
            return self._cached(f"{scoring}", lambda: self.teacher_costs.scoring(scoring))
        if teacher and teacher.train and step.stage == "train_teacher":
            teacher_training = teacher.train
            return self._cached(f"{teacher_training}", lambda: self.teacher_costs.teaching(teacher_training))
        if step.stage == "encode":
            trained, length = self.training_of_encoder(step), self.limits(step).passage_max_tokens
            views = trained.retriever if trained else PLAIN
            return self._cached(f"{views} {length}", lambda: self.costs.encoding(views, length))
        training = self.training(step)
        return self._cached(cost_key(training), lambda: self.costs.training(training))

    def training_of_encoder(self, step: Done) -> Training | None:
        """Return how the retriever that encodes was trained; None for one that is used as it is."""
        encoder = self.steps.get(step.inputs[CHECKPOINT["encode"]])
        return self.training(encoder) if encoder is not None and encoder.stage == "train" else None

    def limits(self, step: Done) -> Encoding:
        """Return how many tokens of a text are read."""
        if self.suite and step.round in self.collections:
            return self.suite.encoding_of(self.collections[step.round])
        return self.recipe.encode

    def _cached(self, key: str, count: Callable[[], Cost]) -> Cost:
        """Return a cost that takes a second to count, counted once for each key."""
        if key not in self._cache:
            self._cache[key] = count()
        return self._cache[key]

    def number(self, step: Done) -> int | None:
        """Return how many texts, pairs or queries pass through the encoder, over all epochs."""
        if step.stage == "encode":
            return self._number_encoded(step)
        if step.stage == "pretrain":
            return self._number_pretrained(step)
        if step.stage in ("score", "rerank"):
            return self._number_scored(step)
        round_ = next((one for one in expanded(self.recipe.rounds) if one.name == step.round), None)
        queries = self.steps[step.inputs[1]].rows
        if queries is None and round_ and isinstance(round_.queries, FewShotQueries):
            queries = round_.queries.queries
        if queries is None and self.recipe.dataset.train_split:
            queries = self.counts.queries(self.recipe.dataset.train_split) or self._published(
                self.recipe.dataset, "queries", self.recipe.dataset.train_split
            )
        teacher = self.recipe.teacher
        if teacher and teacher.train and step.stage == "train_teacher":
            size = teacher.train.batch_queries
            return queries and -(-queries * teacher.train.epochs // size) * size
        training = self.training(step)
        if training.steps:
            return training.steps * training.batch_queries
        return queries and training.num_steps(queries) * training.batch_queries

    def _number_encoded(self, step: Done) -> int | None:
        passages = step.inputs[0]
        if step.round in self.collections:
            return self.steps[passages].rows or self.collections[step.round].documents
        return self._num_passages(passages, self.recipe.dataset, self.recipe.corpora.retrieve)

    def _number_pretrained(self, step: Done) -> int | None:
        if (pretraining := self.recipe.pretrain) is None:
            return None
        if pretraining.steps:
            return pretraining.steps * pretraining.batch
        pairs, corpora = self.steps[step.inputs[0]], self.recipe.corpora
        spans = (pairs.inputs[0], corpora.pretrain_from or self.recipe.dataset, corpora.pretrain)
        texts = pairs.rows or self._num_passages(*spans)
        return None if texts is None else pretraining.num_steps(texts) * pretraining.batch

    def number_of_passages(self, name: str) -> int | None:
        """Return how many passages a reference has: those that are retrieved, or those of pre-training."""
        encodings = [step for step in self.steps.values() if step.stage == "encode"]
        dataset, corpora = self.recipe.dataset, self.recipe.corpora
        if any(step.inputs[0] == name for step in encodings if step.round not in self.collections):
            return self._num_passages(name, dataset, corpora.retrieve)
        return self._num_passages(name, corpora.pretrain_from or dataset, corpora.pretrain)

    def _number_scored(self, step: Done) -> int | None:
        """Return how many pairs a cross-encoder scores: positives and negatives, or the lists that it re-ranks."""
        scored = step.inputs[4:6] if step.stage == "score" else step.inputs[1:2]
        rows = [self.steps[name].rows for name in scored]
        return None if None in rows else sum(number or 0 for number in rows)

    def _num_passages(self, name: str, data: Dataset | OtherCollection, part: Part) -> int | None:
        passages = self.steps[name]
        if passages.rows is not None:
            return passages.rows
        counted = self.counts.documents(data, part)
        published = counted or self._published(data, part)
        if self.recipe.split.max_tokens is None:
            return self.steps[passages.inputs[0]].rows or published
        if (part != "corpus" and counted is None) or published is None:
            return None
        has = "are in its files" if counted else f"the complete {data.reader} has"
        self.note(f"passages are estimated by the {published:,} documents that {has}, before long ones are split")
        return published

    def _published(self, data: Dataset | OtherCollection, part: str, split: str | None = None) -> int | None:
        """Return how many rows the complete collection has; None for a fraction of it, and where it is not known."""
        return None if data.fraction is not None else datasets.num_rows(data.reader, part, split)

    def training(self, step: Done) -> Training:
        """Return how the retriever of a step's round is trained."""
        trainings = (round_.train for round_ in expanded(self.recipe.rounds) if round_.name == step.round)
        return next(training for training in trainings if training is not None)

    def note(self, line: str) -> None:
        """Add a line that explains the numbers."""
        self.notes.setdefault(line)


def costs_of_models(recipe: Recipe[Any], *, with_dropout: bool) -> tuple[Costs, Costs]:
    """Return the costs of the backbone, and those of the teacher, which may have weights of its own.

    Dropout is that of the trainings; it changes only memory.
    """
    backbone = recipe.backbone
    path = sources.weights(backbone.weights).path
    costs = Costs(path, backbone, dropout=backbone.dropout if with_dropout else 0.0)
    weights = recipe.teacher.weights if recipe.teacher else None
    if weights is None:
        return costs, costs
    complete = backbone.model_copy(update={"layers": None, "vocabulary": None, "towers": "siamese"})
    return costs, Costs(sources.weights(weights).path, complete, dropout=None if with_dropout else 0.0)


def passes_texts(step: Done) -> bool:
    """Return whether a stage's work is to pass texts through an encoder."""
    return step.stage in CHECKPOINT


def cost_key(training: Settings) -> str:
    """Return a text that is equal for trainings whose steps cost the same.

    How many steps there are, and the seed, change neither time nor memory of one. Rounds often differ in nothing else.
    """
    return training.model_dump_json(exclude={"epochs", "steps", "seed"})


def in_powers(number: float) -> str:
    """Return a large number in three digits and a power of ten, as 1.25e15."""
    return f"{number:.2e}".replace("e+", "e")


def in_hours(hours: float) -> str:
    """Return hours with one digit after the point, less than an hour with three: `1.5`, `0.012`."""
    return f"{hours:,.1f}" if hours >= 1 else f"{hours:.3f}"


def in_words_of_time(hours: float) -> str:
    """Return hours with the unit that suits them: `4.2 s`, `3 min 20 s`, `5 h 12 min`, `1,235 h`."""
    return f"{hours:,.0f} h" if hours >= 100 else duration(hours * 3600)
