"""The rankings that a round mines from, by exact search or by approximate indexes, whose recall is reported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from flows.chain.rankers import IndexedRetriever, Ranker
from flows.recipe.approximate_schema import ApproximateMining
from flows.recipe.round_schema import Round
from storage.artifact import Artifact
from storage.tables import Index, Overlap, Queries, Run
from tasks.evaluation.overlap import PERSISTENCE, Overlapping, overlap
from tasks.finetuning.select_queries import RecallSample, sample_for_recall
from tasks.retrieval.index import index


@dataclass(frozen=True)
class MiningRankings:
    """The rankings of a round's train queries: one, or those of several views."""

    round: Round
    ranker: Ranker
    queries: Artifact[Queries]
    documents: int
    """The depth of a ranking."""

    def runs(self) -> list[Artifact[Run]]:
        """Return the rankings to mine from."""
        views: Sequence[str | None] = self.round.mine_views or [None]
        return [self.ranker.rank(self.queries, self.documents, view) for view in views]

    def approximate_indexes(self) -> dict[str, Artifact[Index]]:
        """Return the approximate indexes by their names in the report."""
        indexes = self.ranker.approximate if isinstance(self.ranker, IndexedRetriever) else {}
        return {f"{self.round.name}: {mining.index.engine} to mine with": indexes[mining.view]
                for mining in self.round.mine_approximate}  # fmt: skip

    def recall(self, seed: int) -> Iterator[Artifact[Overlap]]:
        """Yield how far each approximate ranking agrees with exact search, on a sample of the train queries."""
        for mining in self.round.mine_approximate:
            assert isinstance(self.ranker, IndexedRetriever)
            sampled = RecallSample(queries=mining.recall_queries, seed=seed)
            sample = sample_for_recall(queries=self.queries, settings=sampled)
            exact = self.ranker.search(self.ranker.index, sample, self.documents, mining.view)
            mined = self.ranker.rank(self.queries, self.documents, mining.view)
            name = f"{self.round.mine_with}, {mining.view}"
            names = [f"{name}, exact", f"{name}, {mining.index.engine}, to mine for {self.round.name}"]
            yield overlap([exact, mined], settings=Overlapping(names=names, depth=self.documents, p=PERSISTENCE))


def with_approximate_indexes(retriever: IndexedRetriever, mining: Sequence[ApproximateMining]) -> IndexedRetriever:
    """Return the retriever with these indexes in place of exact search."""
    vectors, passages = retriever.vectors, retriever.passages
    indexes: dict[str, Artifact[Index]] = {
        approximate.view: index(passages=passages, vectors=vectors, settings=approximate.index)
        for approximate in mining
    }
    return replace(retriever, approximate=indexes)
