"""A recipe's pseudo-queries: generated from passages or imported from a file, filtered, and their quality."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from flows.chain.model_weights import model_weights
from flows.chain.rankers import Bm25System, IndexedBm25
from flows.chain.training_examples import TrainingExamples
from flows.recipe.pseudo_query_schema import PseudoQuerySettings
from flows.recipe.schema import Recipe
from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.store import sources
from storage.store.store import Store
from storage.tables import Checkpoint, Passages, PseudoQueries
from tasks.pseudo_queries.detokenise import detokenise_queries
from tasks.pseudo_queries.drop_duplicates import drop_duplicates
from tasks.pseudo_queries.filter_queries import filter_queries
from tasks.pseudo_queries.filter_settings import Filtering
from tasks.pseudo_queries.filter_texts import filter_texts
from tasks.pseudo_queries.generate_queries import Generation, NamedGeneration, fill_ledger, generate_queries
from tasks.pseudo_queries.import_queries import Importing, import_queries
from tasks.pseudo_queries.join_queries import Joining, join_queries
from tasks.pseudo_queries.query_quality import ROUND_TRIP_CUTOFF, pseudo_queries_as_queries, query_quality
from tasks.pseudo_queries.relevance import relevance
from tasks.pseudo_queries.round_trip import round_trip
from tasks.pseudo_queries.text_rules import TextRules
from tasks.pseudo_queries.train_generator import train_generator
from tasks.retrieval.index import index


@dataclass(frozen=True)
class Generator:
    """A model that generates queries, and how."""

    name: str
    model: Artifact[Checkpoint] | Source
    settings: Generation

    def stage_settings(self, share: tuple[int, Any] = (0, 1)) -> NamedGeneration:
        """Return the settings of the stages that generate; a share is its number and the number of shares."""
        return NamedGeneration(**self.settings.model_dump(), generator=self.name, share=share)

    def replaced(self, store: Store) -> Source | None:
        """Return which texts' queries were invalidated, so that others are generated; None where none were."""
        return self.stage_settings().ledger_in(store.root, self.model).invalidated()


@dataclass(frozen=True)
class PseudoQueryGenerators:
    """Generates pseudo-queries as the recipe's section `queries` says."""

    recipe: Recipe[Any]
    generators: list[Generator]
    store: Store

    @staticmethod
    def of(
        recipe: Recipe[Any], store: Store, examples: TrainingExamples | None, passages: Artifact[Passages]
    ) -> PseudoQueryGenerators:
        """Return the recipe's generators; the first may be trained on the train split's examples."""
        if (settings := recipe.queries) is None:
            return PseudoQueryGenerators(recipe, [], store)
        further = [
            Generator(generator.generator, model_weights(generator.model), generator.generate)
            for generator in settings.also
        ]
        return PseudoQueryGenerators(recipe, [*_first(recipe, settings, examples, passages), *further], store)

    def are_for(self, purpose: Literal["pretrain", "retrieve"]) -> bool:
        """Return whether the recipe uses pseudo-queries for pre-training, or to expand what is retrieved."""
        return self.recipe.queries is not None and purpose in self.recipe.queries.for_

    def generate(self, passages: Artifact[Passages]) -> Artifact[PseudoQueries]:
        """Return the passages' pseudo-queries, scored and filtered where the recipe says so."""
        if (settings := self.recipe.queries) is None:
            raise UserError("queries: pseudo-queries are needed, but the recipe has no generator")
        if settings.file:
            importing = Importing(name=settings.generator)
            queries = import_queries(passages=passages, file=sources.queries(settings.file), settings=importing)
        else:
            queries = self._generated(settings, passages)
        return queries if settings.filter is None else self._filtered(settings.filter, queries, passages)

    def expanded_bm25(self, passages: Artifact[Passages]) -> IndexedBm25 | None:
        """Return BM25 over the passages with their pseudo-queries appended; None where the recipe has none."""
        if not self.are_for("retrieve"):
            return None
        expanded = index(passages=passages, pseudo_queries=self.generate(passages), settings=self.recipe.bm25)
        return IndexedBm25(passages, expanded)

    def quality(self, passages: Artifact[Passages], queries: Artifact[PseudoQueries]) -> Artifact[Any]:
        """Return the quality of pseudo-queries, such as how well BM25 retrieves with a query the passage it is of."""
        if (settings := self.recipe.queries) is None:
            raise UserError("queries: this recipe generates none")
        if settings.filter is not None and settings.filter.round_trip is not None:
            return query_quality(passages=passages, pseudo_queries=queries, settings=settings.quality)
        sampled = pseudo_queries_as_queries(queries, settings=settings.quality)
        bm25 = Bm25System(self.recipe.bm25).on(passages, self.recipe.encode, self.recipe.index)
        run = bm25.rank(sampled, ROUND_TRIP_CUTOFF)
        return query_quality(passages=passages, pseudo_queries=queries, run=run, settings=settings.quality)

    def _generated(self, settings: PseudoQuerySettings, passages: Artifact[Passages]) -> Artifact[PseudoQueries]:
        """Return the queries of all generators; a passage's are in the generators' order."""
        generated = [self._by(generator, passages, settings.shares) for generator in self.generators]
        if len(generated) == 1:
            return generated[0]
        numbers = [generator.settings.queries_per_passage for generator in self.generators]
        return join_queries(generated, settings=Joining(queries_per_passage=numbers))

    def _by(self, generator: Generator, passages: Artifact[Passages], shares: int) -> Artifact[PseudoQueries]:
        """Return the queries of one generator; where there are shares, parallel stages fill the cache first."""
        replaced = generator.replaced(self.store)
        filled = [
            fill_ledger(
                passages=passages, generator=generator.model, replaced=replaced,
                settings=generator.stage_settings((number, shares)),
            )
            for number in range(shares if shares > 1 else 0)
        ]  # fmt: skip
        return generate_queries(
            passages=passages, generator=generator.model, replaced=replaced, filled=filled,
            settings=generator.stage_settings(),
        )  # fmt: skip

    def _filtered(
        self, settings: Filtering, queries: Artifact[PseudoQueries], passages: Artifact[Passages]
    ) -> Artifact[PseudoQueries]:
        """Return the queries with scores, and with the reason where one is dropped."""
        if settings.detokenise:
            queries = detokenise_queries(queries)
        if settings.round_trip is not None:
            bm25 = index(passages=passages, settings=self.recipe.bm25)
            queries = round_trip(pseudo_queries=queries, passages=passages, index=bm25, settings=settings.round_trip)
        if settings.relevance is not None:
            cross_encoder = model_weights(settings.relevance.model)
            queries = relevance(
                pseudo_queries=queries, passages=passages, cross_encoder=cross_encoder,
                settings=settings.relevance.scoring,
            )  # fmt: skip
        if settings.cut is not None:
            queries = filter_queries(queries, settings=settings.cut)
        if settings.texts is not None:
            queries = _by_texts(settings.texts, queries, passages)
        return queries if settings.duplicates is None else drop_duplicates(queries, settings=settings.duplicates)


def _by_texts(
    rules: TextRules, queries: Artifact[PseudoQueries], passages: Artifact[Passages]
) -> Artifact[PseudoQueries]:
    """Return the queries filtered by their texts; a file of forbidden words counts by its content, not its path."""
    word_list = sources.word_list(rules.forbidden) if isinstance(rules.forbidden, str) else None
    if word_list is not None:
        rules = rules.model_copy(update={"forbidden": None})
    return filter_texts(pseudo_queries=queries, passages=passages, word_list=word_list, settings=rules)


def _first(
    recipe: Recipe[Any], settings: PseudoQuerySettings, examples: TrainingExamples | None, passages: Artifact[Passages]
) -> list[Generator]:
    """Return the recipe's first generator, in a list that is empty where a file has the queries."""
    if settings.generate is None:
        return []
    if settings.model is not None:
        return [Generator(settings.generator, model_weights(settings.model), settings.generate)]
    if examples is None or settings.train is None:
        raise UserError(
            "queries.train: training a generator needs dataset.train_split; name a split, or give queries.model"
        )
    trained = train_generator(
        queries=examples.queries, positives=examples.positives, passages=passages,
        start=sources.tokenizer(recipe.backbone.weights), settings=settings.train,
    )  # fmt: skip
    return [Generator(settings.generator, trained, settings.generate)]
