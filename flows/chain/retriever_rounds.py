"""The fine-tuning rounds of a recipe: each mines negatives, trains a retriever, and encodes the passages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.chain.backbone import initial_checkpoint, other_checkpoint
from flows.chain.mining_rankings import MiningRankings, with_approximate_indexes
from flows.chain.rankers import IndexedBm25, IndexedRetriever, Ranker, RetrieverSystem
from flows.chain.teacher import TeacherStages
from flows.chain.training_examples import TrainingExamples
from flows.recipe.approximate_schema import Approximate
from flows.recipe.round_schema import (
    Ensemble,
    ExpertQueries,
    FewShotQueries,
    Member,
    Round,
    expanded,
    truncated_run,
)  # fmt: skip
from flows.recipe.schema import STARTS, Recipe
from storage.artifact import Artifact
from storage.errors import UserError
from storage.store import sources
from storage.store.lookup import matching
from storage.store.store import Store
from storage.tables import Checkpoint, Index, Negatives, Overlap, Passages, Queries, Run, Vectors, Weights
from tasks.finetuning.import_negatives import import_negatives
from tasks.finetuning.learn_fusion import learn_fusion
from tasks.finetuning.mine import mine
from tasks.finetuning.miners.top import Top
from tasks.finetuning.select_queries import ExpertSelection, FewShot, sample_queries, suited_queries
from tasks.finetuning.train import train
from tasks.retrieval.index import index
from tasks.session import in_round


@dataclass
class Rounds:
    """The retrievers that a recipe's rounds have trained so far, and the rankings by them."""

    recipe: Recipe[Any]
    store: Store
    bm25: IndexedBm25
    examples: TrainingExamples
    initial_checkpoints: dict[str, Artifact[Checkpoint]]
    """`backbone` and, where there is a pre-training, `pretrained`."""
    checkpoints: dict[str, Artifact[Checkpoint]] = field(default_factory=dict)
    """The trained retrievers, by the name of the round, or of a round's training on one sample of queries."""
    retrievers: dict[str, IndexedRetriever] = field(default_factory=dict)
    """The same with their vectors and indexes of the passages."""
    approximate_indexes: dict[str, Artifact[Index]] = field(default_factory=dict)
    """By the name of the ranking, or of the mining."""
    mining_recall: list[Artifact[Overlap]] = field(default_factory=list)
    """How far approximate rankings of train queries agree with exact ones."""

    def __post_init__(self) -> None:
        initial = self.initial_checkpoints.get("pretrained", self.initial_checkpoints["backbone"])
        self.teacher = TeacherStages(
            self.recipe.teacher, initial, self.examples, self.passages, self.retrieve_for_training
        )

    @property
    def passages(self) -> Artifact[Passages]:
        """The passages that are retrieved."""
        return self.bm25.passages

    @property
    def vectors(self) -> dict[str, Artifact[Vectors]]:
        """The passages' vectors by the name of the round whose retriever has encoded them."""
        return {name: indexed.vectors for name, indexed in self.retrievers.items()}

    def run(self) -> None:
        """Run every round in the recipe's order."""
        for round_ in expanded(self.recipe.rounds):
            with in_round(round_.name):
                self.checkpoints[round_.name] = checkpoint = self._trained(round_)
                retriever = RetrieverSystem(checkpoint, round_.views, round_.fuse)
                indexed = retriever.on(self.passages, self.recipe.encode, self.recipe.index)
                self.retrievers[round_.name] = indexed
                for dim in round_.truncate_dims:
                    self.retrievers[truncated_run(round_.name, dim)] = indexed.truncated(dim, self.recipe.index)

    def retrieve(self, name: str, queries: Artifact[Queries], documents: int, view: str | None = None) -> Artifact[Run]:
        """Return the ranking by BM25 or by a round's retriever; by one of its views, or by all as the round ranks."""
        return self._ranker(name).rank(queries, documents, view)

    def retrieve_for_training(self, name: str, queries: Artifact[Queries], view: str | None = None) -> Artifact[Run]:
        """Return a ranking of the candidates for mining and labelling."""
        return self.retrieve(name, queries, self.recipe.train_documents, view)

    def search_approximate(self, settings: Approximate, queries: Artifact[Queries], documents: int) -> Artifact[Run]:
        """Return the ranking by an approximate index of a round's vectors."""
        exact = self.retrievers[settings.round]
        approximate = index(passages=self.passages, vectors=exact.vectors, settings=settings.index)
        self.approximate_indexes[settings.name] = approximate
        return exact.search(approximate, queries, documents, settings.view)

    def fusion_weights(self, ensemble: Ensemble, members: Sequence[Member]) -> Artifact[Weights] | None:
        """Return the members' weights, learned on the train queries; None where the fusion learns nothing."""
        if ensemble.learn is None:
            return None
        queries, positives = self.examples.queries, self.examples.positives
        runs = [self.retrieve_for_training(member.round, queries, member.view) for member in members]
        return learn_fusion(runs=runs, positives=positives, passages=self.passages, settings=ensemble.learn)

    def _trained(self, round_: Round) -> Artifact[Checkpoint]:
        """Return the retriever of a round, trained on its queries, their positives and its negatives."""
        start = self._initial_checkpoint(round_.start)
        if round_.train is None:
            return start
        queries = self._train_queries(round_)
        negatives = self._negatives(round_, queries)
        scores = self.teacher.scores(queries, negatives) if round_.train.distillation else None
        return train(
            start=start, queries=queries, passages=self.passages, positives=self.examples.positives,
            negatives=negatives, scores=scores, settings=round_.train,
        )  # fmt: skip

    def _train_queries(self, round_: Round) -> Artifact[Queries]:
        """Return the train queries of a round: all, a sample, or those that an expert view ranks best."""
        queries, positives, selection = self.examples.queries, self.examples.positives, round_.queries
        if isinstance(selection, FewShotQueries):
            few = FewShot(queries=selection.queries, sample=selection.samples[0], seed=self.recipe.seed)
            return sample_queries(queries=queries, positives=positives, settings=few)
        if isinstance(selection, ExpertQueries):
            runs = [self.retrieve_for_training(selection.round, queries, view) for view in selection.views]
            expert = ExpertSelection(names=list(selection.views), expert=selection.view, cutoff=selection.cutoff)
            return suited_queries(
                queries=queries, runs=runs, positives=positives, passages=self.passages, settings=expert
            )
        return queries

    def _negatives(self, round_: Round, queries: Artifact[Queries]) -> Artifact[Negatives]:
        """Return the negatives of a round: from a file, or mined from one ranking or from those of several views."""
        positives = self.examples.positives
        if round_.given is not None:
            file = sources.negatives(round_.given.file)
            return import_negatives(
                passages=self.passages, queries=queries, positives=positives, file=file, settings=round_.given
            )
        if round_.mine is None or round_.mine_with is None:
            raise TypeError(f"round {round_.name} mines nothing")
        runs, scores = self._mining_runs(round_, round_.mine_with, queries), None
        if round_.mine.miner == "cross_encoder":
            all_candidates = Top(miner="top", depth=round_.mine.depth, negatives=None, seed=round_.mine.seed)
            candidates = mine(runs=runs, positives=positives, passages=self.passages, settings=all_candidates)
            scores = self.teacher.scores(queries, candidates)
        return mine(runs=runs, positives=positives, passages=self.passages, scores=scores, settings=round_.mine)

    def _mining_runs(self, round_: Round, name: str, queries: Artifact[Queries]) -> list[Artifact[Run]]:
        """Return the rankings by BM25 or by a round's retriever that a round mines from."""
        ranker = self._ranker(name)
        if round_.mine_approximate:
            ranker = with_approximate_indexes(self.retrievers[name], round_.mine_approximate)
        rankings = MiningRankings(round_, ranker, queries, self.recipe.train_documents)
        self.approximate_indexes |= rankings.approximate_indexes()
        self.mining_recall += rankings.recall(self.recipe.seed)
        return rankings.runs()

    def _ranker(self, name: str) -> Ranker:
        return self.bm25 if name == "bm25" else self.retrievers[name]

    def _initial_checkpoint(self, name: str) -> Artifact[Checkpoint]:
        """Return the checkpoint of a round's `start`: `STARTS`, an earlier round, a folder, a hub's model, or a key."""
        known = self.initial_checkpoints | self.checkpoints
        if name in known:
            return known[name]
        if name == "random":
            return initial_checkpoint(self.recipe, random=True)
        if "/" in name or Path(name).is_dir():  # a key has no slash
            return other_checkpoint(self.recipe, name)
        matches = matching(name, self.store, schema="Checkpoint")
        if len(matches) != 1:
            names = ", ".join(dict.fromkeys((*STARTS, *known)))
            raise UserError(
                f"rounds: start {name!r} matches {len(matches)} checkpoints; expected {names}, a key of this store, "
                "a folder or the name of a model on the hub"
            )
        folder, _ = matches[0]
        return Artifact(folder.parent.name, folder.name, folder)
