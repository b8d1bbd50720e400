"""The analyses of a recipe and the artifacts that they read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flows.chain.collection import SplitTopics
from flows.chain.evaluation import SplitResults
from flows.chain.model_weights import model_weights
from flows.chain.retriever_rounds import Rounds
from flows.recipe.round_schema import view_run
from flows.recipe.schema import Recipe
from storage import datasets
from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.store import sources
from storage.tables import Analysis, Checkpoint, Pairs, Passages, PseudoQueries, Qrels
from tasks.analyses import divergence, expert_disagreement, pair_relatedness, text_statistics, word_distribution
from tasks.analyses.measures.pos_tagger import not_installed
from tasks.corpus.split_corpus import TokenizerFile
from tasks.pretraining.count_terms import count_terms
from tasks.session import in_round


@dataclass(frozen=True)
class AnalysisInputs:
    """The artifacts of a recipe that analyses read."""

    recipe: Recipe[Any]
    rounds: Rounds
    results: SplitResults
    """The results of the headline's split."""
    spans: Artifact[Passages]
    """The passages that are pre-trained on."""
    pseudo_queries: Artifact[PseudoQueries] | None
    """The pseudo-queries of the spans."""
    pairs: Artifact[Pairs] | None
    """The spans with their contexts."""
    tokenizer: TokenizerFile

    @property
    def topics(self) -> SplitTopics:
        """The topics of the headline's split."""
        return self.results.topics

    @property
    def qrels(self) -> Artifact[Qrels]:
        """The judgements. Raises UserError for a split that has only answers."""
        if self.topics.qrels is None:
            raise UserError(f"analyses: split {self.topics.split} has no qrels; leave out those that need some")
        return self.topics.qrels

    @property
    def relevant_from(self) -> int:
        """The lowest grade of a relevant document."""
        return datasets.relevant_from(self.recipe.dataset.reader, self.topics.split)

    @property
    def encoding(self) -> dict[str, Any]:
        """The lengths at which texts are cut, and the precision where it is given."""
        return self.recipe.encode.model_dump()


def analyse(inputs: AnalysisInputs) -> list[Artifact[Analysis]]:
    """Return every analysis of the recipe, in its order."""
    return [ANALYSES[settings.analysis](inputs, settings) for settings in inputs.recipe.analyses]


def _divergence(inputs: AnalysisInputs, settings: divergence.Settings) -> Artifact[Analysis]:
    reading = divergence.Reading(**settings.model_dump(), **inputs.encoding, relevant_from=inputs.relevant_from)
    with in_round(settings.round):
        queries, indexed = inputs.topics.queries, inputs.rounds.retrievers[settings.round]
        return divergence.divergence(
            queries=queries,
            qrels=inputs.qrels,
            passages=inputs.rounds.passages,
            checkpoint=indexed.retriever.checkpoint,
            settings=reading,
        )


def _expert_disagreement(inputs: AnalysisInputs, settings: expert_disagreement.Settings) -> Artifact[Analysis]:
    views = next(round_.rows for round_ in inputs.recipe.rounds if round_.name == settings.round)
    names = [*views, *settings.counterparts]
    reading = expert_disagreement.Reading(**settings.model_dump(), names=names, relevant_from=inputs.relevant_from)
    with in_round(settings.round):
        of_run = inputs.results.runs
        runs = [of_run[name] for name in (*(view_run(settings.round, view) for view in views), *settings.counterparts)]
        queries = inputs.topics.queries
        return expert_disagreement.expert_disagreement(
            runs=runs, queries=queries, qrels=inputs.qrels, passages=inputs.rounds.passages, settings=reading
        )


def _pair_relatedness(inputs: AnalysisInputs, settings: pair_relatedness.Settings) -> Artifact[Analysis]:
    if inputs.pseudo_queries is None:
        raise UserError("analyses: pair_relatedness needs pseudo-queries of what is pre-trained on; there are none")
    scorer: Source | Artifact[Checkpoint] = model_weights(settings.weights)
    reading = pair_relatedness.Reading(**settings.model_dump(), weights=settings.weights, **inputs.encoding)
    return pair_relatedness.pair_relatedness(
        passages=inputs.spans, pseudo_queries=inputs.pseudo_queries, scorer=scorer, settings=reading
    )


def _text_statistics(inputs: AnalysisInputs, settings: text_statistics.Settings) -> Artifact[Analysis]:
    for name in ("spacy", settings.tagger) if settings.tagger else ():
        sources.package(name, not_installed(settings.tagger or ""))
    reading = text_statistics.Reading(**settings.model_dump(), language=inputs.recipe.split.language)
    return text_statistics.text_statistics(
        queries=inputs.topics.queries, passages=inputs.rounds.passages, tokenizer=inputs.tokenizer, settings=reading
    )


def _word_distribution(inputs: AnalysisInputs, settings: word_distribution.Settings) -> Artifact[Analysis]:
    if inputs.recipe.pretrain is None or inputs.pairs is None:
        raise UserError("analyses: word_distribution needs a pre-training; there is none")
    length = inputs.recipe.pretrain.objective.max_tokens
    reading = word_distribution.Reading(
        **settings.model_dump(), max_tokens=length, precision=inputs.recipe.encode.precision
    )
    terms = count_terms(pairs=inputs.pairs, tokenizer=inputs.tokenizer)
    checkpoint = inputs.rounds.initial_checkpoints["pretrained"]
    return word_distribution.word_distribution(pairs=inputs.pairs, terms=terms, checkpoint=checkpoint, settings=reading)


ANALYSES: dict[str, Callable[[AnalysisInputs, Any], Artifact[Analysis]]] = {
    "divergence": _divergence,
    "expert_disagreement": _expert_disagreement,
    "pair_relatedness": _pair_relatedness,
    "text_statistics": _text_statistics,
    "word_distribution": _word_distribution,
}
