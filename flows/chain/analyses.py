"""The analyses that a recipe asks for: which of its artifacts each looks at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flows.chain.evaluation import Measured
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
from tasks.pretraining.count_terms import count_terms
from tasks.session import in_round


@dataclass(frozen=True)
class Ran:
    """What a recipe has made."""

    recipe: Recipe[Any]
    rounds: Rounds
    measured: Measured
    """The split that the headline is about."""
    spans: Artifact[Passages]
    """What is pre-trained on."""
    pseudo_queries: Artifact[PseudoQueries] | None
    """Those of the spans."""
    pairs: Artifact[Pairs] | None
    """The spans with their contexts, as they are pre-trained on."""
    tokenizer: Source

    @property
    def qrels(self) -> Artifact[Qrels]:
        """The judgements, which a split with answers alone has not."""
        if self.measured.asked.qrels is None:
            raise UserError(f"analyses: split {self.measured.asked.split} has no qrels; leave out those that need some")
        return self.measured.asked.qrels

    @property
    def relevant_from(self) -> int:
        """The least grade of a relevant document."""
        return datasets.relevant_from(self.recipe.dataset.reader, self.measured.asked.split)

    @property
    def lengths(self) -> dict[str, Any]:
        """How much of a text is read."""
        return self.recipe.encode.model_dump(include={"query_max_tokens", "passage_max_tokens"})


def analyse(ran: Ran) -> list[Artifact[Analysis]]:
    """Every analysis of the recipe, in its order."""
    return [LOOKS_AT[each.analysis](ran, each) for each in ran.recipe.analyses]


def _divergence(ran: Ran, settings: divergence.Settings) -> Artifact[Analysis]:
    reading = divergence.Reading(**settings.model_dump(), **ran.lengths, relevant_from=ran.relevant_from)
    with in_round(settings.round):
        queries, made = ran.measured.asked.queries, ran.rounds.made[settings.round]
        return divergence.divergence(
            queries=queries, qrels=ran.qrels, passages=ran.rounds.passages, checkpoint=made.checkpoint, settings=reading
        )


def _expert_disagreement(ran: Ran, settings: expert_disagreement.Settings) -> Artifact[Analysis]:
    views = next(each.rows for each in ran.recipe.rounds if each.name == settings.round)
    reading = expert_disagreement.Reading(**settings.model_dump(), names=list(views), relevant_from=ran.relevant_from)
    with in_round(settings.round):
        runs = [ran.measured.runs[view_run(settings.round, view)] for view in views]
        queries = ran.measured.asked.queries
        return expert_disagreement.expert_disagreement(
            runs=runs, queries=queries, qrels=ran.qrels, passages=ran.rounds.passages, settings=reading
        )


def _pair_relatedness(ran: Ran, settings: pair_relatedness.Settings) -> Artifact[Analysis]:
    if ran.pseudo_queries is None:
        raise UserError("analyses: pair_relatedness looks at pseudo-queries of what is pre-trained on; there are none")
    scorer: Source | Artifact[Checkpoint] = sources.weights(settings.weights)
    reading = pair_relatedness.Reading(**settings.model_dump(), weights=settings.weights, **ran.lengths)
    return pair_relatedness.pair_relatedness(
        passages=ran.spans, pseudo_queries=ran.pseudo_queries, scorer=scorer, settings=reading
    )


def _text_statistics(ran: Ran, settings: text_statistics.Settings) -> Artifact[Analysis]:
    for name in ("spacy", settings.tagger) if settings.tagger else ():
        sources.package(name, not_installed(settings.tagger or ""))
    reading = text_statistics.Reading(**settings.model_dump(), language=ran.recipe.split.language)
    return text_statistics.text_statistics(
        queries=ran.measured.asked.queries, passages=ran.rounds.passages, tokenizer=ran.tokenizer, settings=reading
    )


def _word_distribution(ran: Ran, settings: word_distribution.Settings) -> Artifact[Analysis]:
    if ran.recipe.pretrain is None or ran.pairs is None:
        raise UserError("analyses: word_distribution looks at a pre-training; there is none")
    length = ran.recipe.pretrain.objective.max_tokens
    reading = word_distribution.Reading(**settings.model_dump(), max_tokens=length)
    terms, checkpoint = count_terms(pairs=ran.pairs, tokenizer=ran.tokenizer), ran.rounds.starts["pretrained"]
    return word_distribution.word_distribution(pairs=ran.pairs, terms=terms, checkpoint=checkpoint, settings=reading)


LOOKS_AT: dict[str, Callable[[Ran, Any], Artifact[Analysis]]] = {
    "divergence": _divergence,
    "expert_disagreement": _expert_disagreement,
    "pair_relatedness": _pair_relatedness,
    "text_statistics": _text_statistics,
    "word_distribution": _word_distribution,
}
