"""A recipe's corpora of pseudo-queries: from passages, by one or several generators or from a file, and filtered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from flows.chain.retriever_rounds import Examples
from flows.recipe.pseudo_query_schema import PseudoQuerySettings
from flows.recipe.schema import Recipe
from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.store import sources
from storage.store.store import Store
from storage.tables import Checkpoint, Passages, PseudoQueries
from tasks.pseudo_queries.filter_queries import Filtering, filter_queries
from tasks.pseudo_queries.generate_queries import Generation, NamedGeneration, fill_ledger, generate_queries
from tasks.pseudo_queries.import_queries import Importing, import_queries
from tasks.pseudo_queries.join_queries import Joining, join_queries
from tasks.pseudo_queries.relevance import relevance
from tasks.pseudo_queries.round_trip import round_trip
from tasks.pseudo_queries.train_generator import train_generator
from tasks.retrieval.index import index


@dataclass(frozen=True)
class Generator:
    """A model that writes queries, and how it is asked."""

    name: str
    model: Artifact[Checkpoint] | Source
    asked: Generation

    def writing(self, share: tuple[int, Any] = (0, 1)) -> NamedGeneration:
        """The settings of the stages that write."""
        return NamedGeneration(**self.asked.model_dump(), generator=self.name, share=share)

    def replaced(self, store: Store) -> Source | None:
        """Of which texts other queries are wanted than were first written."""
        return self.writing().ledger_in(store.root, self.model).invalidated()


@dataclass(frozen=True)
class Writer:
    """Writes pseudo-queries, where the recipe wants some."""

    recipe: Recipe[Any]
    generators: list[Generator]
    store: Store

    @staticmethod
    def of(recipe: Recipe[Any], store: Store, examples: Examples | None, passages: Artifact[Passages]) -> Writer:
        """With the models that the recipe gives; the first may be made of the train pairs."""
        if (wanted := recipe.queries) is None:
            return Writer(recipe, [], store)
        others = [Generator(each.generator, sources.weights(each.model), each.generate) for each in wanted.also]
        return Writer(recipe, [*_first(recipe, wanted, examples, passages), *others], store)

    def writes(self, purpose: Literal["pretrain", "retrieve"]) -> bool:
        """Whether the recipe wants pseudo-queries for this."""
        return self.recipe.queries is not None and purpose in self.recipe.queries.for_

    def write(self, passages: Artifact[Passages]) -> Artifact[PseudoQueries]:
        """The passages' pseudo-queries, scored and filtered where the recipe says so."""
        if (wanted := self.recipe.queries) is None:
            raise UserError("queries: pseudo-queries are needed, but the recipe has no generator")
        written = self._imported(wanted.file, passages) if wanted.file else self._generated(wanted, passages)
        return written if wanted.filter is None else self._filtered(wanted.filter, written, passages)

    def _imported(self, file: str, passages: Artifact[Passages]) -> Artifact[PseudoQueries]:
        """Those that a file has."""
        name = self.recipe.queries.generator if self.recipe.queries else ""
        return import_queries(passages=passages, file=sources.queries(file), settings=Importing(name=name))

    def _generated(self, wanted: PseudoQuerySettings, passages: Artifact[Passages]) -> Artifact[PseudoQueries]:
        """Those of all generators, one after another."""
        written = [self._by(each, passages, wanted.shares) for each in self.generators]
        if len(written) == 1:
            return written[0]
        numbers = [each.asked.queries_per_passage for each in self.generators]
        return join_queries(written, settings=Joining(queries_per_passage=numbers))

    def _by(self, generator: Generator, passages: Artifact[Passages], shares: int) -> Artifact[PseudoQueries]:
        """Those of one generator; where the recipe wants shares, workers fill the ledger side by side first."""
        replaced = generator.replaced(self.store)
        filled = [
            fill_ledger(
                passages=passages,
                generator=generator.model,
                replaced=replaced,
                settings=generator.writing((number, shares)),
            )
            for number in range(shares if shares > 1 else 0)
        ]
        return generate_queries(
            passages=passages, generator=generator.model, replaced=replaced, filled=filled, settings=generator.writing()
        )

    def _filtered(
        self, wanted: Filtering, queries: Artifact[PseudoQueries], passages: Artifact[Passages]
    ) -> Artifact[PseudoQueries]:
        """The same with scores, and with the reason why one is dropped."""
        if wanted.round_trip is not None:
            bm25 = index(passages=passages, settings=self.recipe.bm25)
            queries = round_trip(pseudo_queries=queries, passages=passages, index=bm25, settings=wanted.round_trip)
        if wanted.relevance is not None:
            judge = sources.weights(wanted.relevance.model)
            queries = relevance(
                pseudo_queries=queries, passages=passages, cross_encoder=judge, settings=wanted.relevance.scoring
            )
        return queries if wanted.cut is None else filter_queries(queries, settings=wanted.cut)


def _first(
    recipe: Recipe[Any], wanted: PseudoQuerySettings, examples: Examples | None, passages: Artifact[Passages]
) -> list[Generator]:
    """The recipe's first generator, unless a file has the queries."""
    if wanted.generate is None:
        return []
    if wanted.model is not None:
        return [Generator(wanted.generator, sources.weights(wanted.model), wanted.generate)]
    if examples is None or wanted.train is None:
        raise UserError(
            "queries.train: making a generator needs dataset.train_split; name a split, or give queries.model"
        )
    pieces = sources.tokenizer(recipe.backbone.weights)
    made = train_generator(
        queries=examples.queries, positives=examples.positives, passages=passages, start=pieces, settings=wanted.train
    )
    return [Generator(wanted.generator, made, wanted.generate)]
