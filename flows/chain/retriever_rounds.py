"""The rounds of a recipe: mine, train, encode, index, search, as often as it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.recipe.round_schema import Approximate, Ensemble, ExpertQueries, FewShotQueries, Member, Round
from flows.recipe.schema import STARTS, Recipe
from flows.store_lookup import matching
from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.store import sources
from storage.store.store import Store
from storage.tables import (
    Checkpoint,
    Index,
    Negatives,
    Passages,
    Positives,
    Queries,
    Run,
    TeacherScores,
    Vectors,
    Weights,
)  # fmt: skip
from tasks.cross_encoder.rerank import rerank
from tasks.cross_encoder.score import score
from tasks.cross_encoder.train_teacher import train_teacher
from tasks.finetuning.import_negatives import import_negatives
from tasks.finetuning.learn_fusion import learn_fusion
from tasks.finetuning.mine import mine
from tasks.finetuning.miners.top import Top
from tasks.finetuning.select_queries import ExpertQueries, FewShot, sample_queries, suited_queries
from tasks.finetuning.train import train
from tasks.pretraining.initialise import initialise
from tasks.retrieval.encode import encode
from tasks.retrieval.fuse import Fusion, fuse
from tasks.retrieval.index import index
from tasks.retrieval.search import Search, search
from tasks.session import in_round

Start = Artifact[Checkpoint]


@dataclass(frozen=True)
class Examples:
    """What retrievers learn from: queries, and for each its relevant documents and a passage of each."""

    queries: Artifact[Queries]
    positives: Artifact[Positives]


@dataclass(frozen=True)
class Searchable:
    """A retriever and what it made of the passages."""

    checkpoint: Start
    vectors: Artifact[Vectors]
    index: Artifact[Index]
    views: Sequence[str]
    fusion: Fusion | None


@dataclass
class Rounds:
    """What the rounds so far have made."""

    recipe: Recipe[Any]
    store: Store
    passages: Artifact[Passages]
    bm25: Artifact[Index]
    examples: Examples
    starts: dict[str, Start]
    """The backbone and, where there is one, the pre-trained checkpoint, by word."""
    made: dict[str, Searchable] = field(default_factory=dict)
    quick: dict[str, Artifact[Index]] = field(default_factory=dict)
    """Approximate indexes, by the rows that they give."""
    _teacher: Start | Source | None = None

    def run(self, each: Round) -> None:
        """Mine, train, encode and index; the retriever is then known by the round's name."""
        with in_round(each.name):
            retriever = self.trained(each)
            vectors = encode(passages=self.passages, checkpoint=retriever, settings=self.recipe.encode)
            flat = index(passages=self.passages, vectors=vectors, settings=self.recipe.index)
        self.made[each.name] = Searchable(retriever, vectors, flat, each.views, each.fuse)

    def trained(self, each: Round) -> Start:
        """The retriever of a round: of its queries, their positives and what was mined for them."""
        start = self.starting_point(each.start)
        if each.train is None:
            return start
        queries = self.asked(each)
        negatives = self.mined(each, queries)
        scores = self.scored(queries, negatives) if each.train.distillation else None
        return train(
            start=start,
            queries=queries,
            passages=self.passages,
            positives=self.examples.positives,
            negatives=negatives,
            scores=scores,
            settings=each.train,
        )

    def asked(self, each: Round) -> Artifact[Queries]:
        """The train queries of a round: all, a few, or those that suit an expert."""
        queries, positives = self.examples.queries, self.examples.positives
        if isinstance(each.queries, FewShotQueries):
            few = FewShot(queries=each.queries.queries, sample=each.queries.samples[0], seed=self.recipe.seed)
            return sample_queries(queries=queries, positives=positives, settings=few)
        if isinstance(each.queries, ExpertQueries):
            wanted = each.queries
            runs = [self.found(wanted.round, queries, self.recipe.train_documents, view) for view in wanted.views]
            settings = ExpertQueries(names=list(wanted.views), expert=wanted.view, cutoff=wanted.cutoff)
            return suited_queries(
                queries=queries, runs=runs, positives=positives, passages=self.passages, settings=settings
            )
        return queries

    def mined(self, each: Round, queries: Artifact[Queries]) -> Artifact[Negatives]:
        """The negatives of a round, from a file, from one ranking, or from those of several views."""
        if each.given is not None:
            file, positives = sources.negatives(each.given.file), self.examples.positives
            return import_negatives(
                passages=self.passages, queries=queries, positives=positives, file=file, settings=each.given
            )
        if each.mine is None or each.mine_with is None:
            raise TypeError(f"round {each.name} mines nothing")
        depth, positives = self.recipe.train_documents, self.examples.positives
        views: Sequence[str | None] = each.mine_views or [None]
        runs = [self.found(each.mine_with, queries, depth, view) for view in views]
        scores = None
        if each.mine.miner == "cross_encoder":
            wide = Top(miner="top", depth=each.mine.depth, negatives=None, seed=each.mine.seed)
            scores = self.scored(queries, mine(runs=runs, positives=positives, passages=self.passages, settings=wide))
        return mine(runs=runs, positives=positives, passages=self.passages, scores=scores, settings=each.mine)

    def found(self, name: str, queries: Artifact[Queries], documents: int, view: str | None = None) -> Artifact[Run]:
        """What a round, or BM25, finds; by one of its views, or by all as the round ranks."""
        if name == "bm25":
            return search(index=self.bm25, queries=queries, passages=self.passages,
                          settings=Search(documents=documents, view="bm25"))  # fmt: skip
        made = self.made[name]
        if view is None and made.fusion is not None:
            runs = [self.found(name, queries, documents, each) for each in made.views]
            return fuse(runs=runs, settings=made.fusion)
        chosen = view or (made.views[0] if len(made.views) == 1 else "sum")
        settings = Search(documents=documents, view=chosen)
        return search(
            index=made.index,
            vectors=made.vectors,
            queries=queries,
            checkpoint=made.checkpoint,
            passages=self.passages,
            settings=settings,
        )

    def approximately(self, quick: Approximate, queries: Artifact[Queries], documents: int) -> Artifact[Run]:
        """What an approximate index of a round's vectors finds."""
        made = self.made[quick.round]
        self.quick[quick.name] = built = index(passages=self.passages, vectors=made.vectors, settings=quick.index)
        settings = Search(documents=documents, view=quick.view)
        return search(
            index=built,
            vectors=made.vectors,
            queries=queries,
            checkpoint=made.checkpoint,
            passages=self.passages,
            settings=settings,
        )

    def learned(self, ensemble: Ensemble, members: Sequence[Member]) -> Artifact[Weights] | None:
        """What each member counts, learned of the train queries; None where nothing is learned."""
        if ensemble.learn is None:
            return None
        queries, positives = self.examples.queries, self.examples.positives
        runs = [self.found(each.round, queries, self.recipe.train_documents, each.view) for each in members]
        return learn_fusion(runs=runs, positives=positives, passages=self.passages, settings=ensemble.learn)

    def scored(self, queries: Artifact[Queries], negatives: Artifact[Negatives]) -> Artifact[TeacherScores]:
        """What the teacher says of every positive and every negative."""
        teaching = self.recipe.teacher
        if teaching is None:
            raise UserError("teacher: a round distils or mines with a cross-encoder, but the recipe has no teacher")
        return score(
            teacher=self.teacher(),
            queries=queries,
            passages=self.passages,
            positives=self.examples.positives,
            negatives=negatives,
            settings=teaching.score,
        )

    def teacher(self) -> Start | Source:
        """The recipe's cross-encoder, trained when it is first asked for."""
        teaching = self.recipe.teacher
        if self._teacher is None and teaching is not None:
            with in_round("teacher"):
                start: Start | Source = self.starts.get("pretrained", self.starts["backbone"])
                if teaching.weights is not None:
                    start = sources.weights(teaching.weights)
                self._teacher = start
                if teaching.train is not None:
                    queries, positives = self.examples.queries, self.examples.positives
                    found = self.found(teaching.mine_with, queries, self.recipe.train_documents)
                    negatives = mine(runs=[found], positives=positives, passages=self.passages, settings=teaching.mine)
                    self._teacher = train_teacher(
                        start=start,
                        queries=queries,
                        passages=self.passages,
                        positives=positives,
                        negatives=negatives,
                        settings=teaching.train,
                    )
        if self._teacher is None:
            raise UserError("teacher: the recipe has none")
        return self._teacher

    def reranked(self, run: Artifact[Run], queries: Artifact[Queries]) -> Artifact[Run]:
        """A ranking as the teacher would have it."""
        if self.recipe.teacher is None:
            raise UserError("teacher: the recipe has none")
        with in_round("teacher"):
            return rerank(
                teacher=self.teacher(),
                run=run,
                queries=queries,
                passages=self.passages,
                settings=self.recipe.teacher.rerank,
            )

    def starting_point(self, name: str) -> Start:
        """The checkpoint a round starts from: by word, by the name of an earlier round, by key or by folder."""
        recipe, known = self.recipe, self.starts | {each: made.checkpoint for each, made in self.made.items()}
        if name in known:
            return known[name]
        if name == "random":
            return initialise(
                sources.weights(recipe.backbone.weights),
                settings=recipe.backbone.model_copy(update={"start": "random"}),
            )
        if Path(name).is_dir():
            return initialise(sources.weights(name), settings=recipe.backbone)
        matches = matching(name, self.store, schema="Checkpoint")
        if len(matches) != 1:
            words = ", ".join((*STARTS, *(each for each in known if each not in STARTS)))
            raise UserError(
                f"rounds: start {name!r} matches {len(matches)} checkpoints; expected {words}, a key of this store "
                "or a folder"
            )
        folder, _ = matches[0]
        return Artifact(folder.parent.name, folder.name, folder)
