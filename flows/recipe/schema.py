"""The settings of a recipe: one section for each step of the chain, in the terms of the papers.

A recipe is complete: missing and unknown keys are refused. Only what cannot change a result (`execution`) has defaults,
and each section's `seed`, which is the recipe's unless the section names its own.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar, cast

import yaml
from pydantic import Field, model_validator

from flows.recipe import rules
from flows.recipe.approximate_schema import Approximate
from flows.recipe.pseudo_query_schema import PseudoQuerySettings
from flows.recipe.round_schema import Ensemble, Round, Teacher, retrievers, truncated_run, view_run
from flows.recipe.sections import (
    AnalysisSettings,
    Corpora,
    Dataset,
    EvaluationSettings,
    Headline,
    SearchDepth,
    Split,
    Transfer,
)
from storage.results.reported import check_reported, parse_reported
from storage.settings import Seed, Settings
from tasks.pretraining.initialise import BackboneSettings
from tasks.pretraining.pair_contexts import Contexts
from tasks.pretraining.pretrain import Pretraining
from tasks.report.claims import Claims
from tasks.retrieval.encode import Encoding
from tasks.retrieval.engines.bm25 import Bm25
from tasks.retrieval.engines.exact import Exact
from tasks.session import Execution

STARTS = ("pretrained", "backbone", "random")
BM25_VARIANTS = ("bm25_doc2query", "bm25_without_titles")
"""The rankings by BM25 over changed texts, which mine nothing."""

P = TypeVar("P")


class Recipe(Settings, Generic[P]):
    """An experiment of a paper, from corpus to report; `P` is the class of the paper's own settings."""

    title: str
    seed: Seed
    dataset: Dataset
    corpora: Corpora
    split: Split
    backbone: BackboneSettings
    queries: PseudoQuerySettings | None
    """Null where neither pre-training nor BM25 uses pseudo-queries."""
    contexts: Contexts | None
    """Null where the paper pre-trains on texts without contexts."""
    pretrain: Pretraining[P] | None
    """Null where the backbone's weights are pre-trained already, and every round starts from them."""
    bm25: Bm25
    encode: Encoding
    index: Exact
    """The exact index of a round's vectors."""
    teacher: Teacher | None = None
    rounds: Annotated[list[Round], Field(min_length=1)]
    fusions: list[Ensemble] = Field(default_factory=list)
    approximate: list[Approximate] = Field(default_factory=list)
    train_documents: Annotated[int, Field(gt=0)]
    """Documents retrieved for each train query: the candidates of mining and labelling."""
    search: SearchDepth
    """How many documents are retrieved for each evaluation query."""
    evaluate: EvaluationSettings
    transfer: Transfer | None = None
    analyses: list[AnalysisSettings] = Field(default_factory=list)
    """Analyses of the papers in addition to their results (`tasks/analyses`)."""
    headline: Headline
    claims: Claims | None = Field(default=None, exclude_if=lambda claims: claims is None)
    """The claims of the report about the results, and what it leaves open; null claims nothing."""
    reported: dict[str, Any]
    """The paper's numbers for this recipe's runs, and the rows that print them (`storage/results/reported.py`)."""
    fast: bool = Field(default=False, exclude_if=lambda fast: not fast)
    """Whether this is a smoke test: two steps of each training, no other collections, and no claims
    (`flows/recipe/few_steps.py`); its report says so. `pretrieve reproduce --fast` sets it."""
    execution: Execution = Field(default_factory=Execution)

    @model_validator(mode="after")
    def _compared_runs_exist(self) -> Recipe[P]:
        names = self.run_names()
        rules.runs_exist(names, [*self.evaluate.comparisons, self.headline])
        if self.headline.metric not in self.evaluate.metrics:
            raise ValueError(f"headline.metric: {self.headline.metric} is none of evaluate.metrics")
        rules.claims_are_tested(self.claims, self.evaluate.comparisons)
        if self.teacher:
            means = [round_.name for round_ in self.rounds if round_.is_few_shot]
            rankings = [name for name in names if name not in ("teacher", *BM25_VARIANTS, *means)]
            rules.teacher_reads_rankings(self.teacher, rankings, self.rounds)
        return self

    def run_names(self) -> list[str]:
        """Return the name of every ranking or mean of rankings that the report may have."""
        names = ["bm25", *BM25_VARIANTS]
        for round_ in self.rounds:
            trainings = round_.trainings()
            names += [round_.name, *(training.name for training in trainings if round_.is_few_shot)]
            names += [view_run(training.name, view) for training in trainings for view in round_.rows]
            names += [truncated_run(round_.name, dim) for dim in round_.truncate_dims]
        names += [fusion.name for fusion in self.fusions] + [approximate.name for approximate in self.approximate]
        return [*names, *(["teacher"] if self.teacher else [])]

    @model_validator(mode="after")
    def _contexts_are_what_the_paper_reads(self) -> Recipe[P]:
        if self.pretrain is None:
            if self.contexts is not None:
                raise ValueError("contexts: without pretrain nothing reads them; expected null")
            return self
        reads = cast(Any, self.pretrain.objective).reads
        rules.contexts_fit_paper(self.contexts, self.pretrain.paper, reads)
        both = bool(self.contexts and self.contexts.pseudo_queries and self.contexts.passages)
        if both != (self.pretrain.mix is not None):
            raise ValueError("pretrain.mix: expected step or example where contexts are of both kinds, else null")
        return self

    @model_validator(mode="after")
    def _pseudo_queries_suffice(self) -> Recipe[P]:
        needed = self.contexts.pseudo_queries if self.contexts else 0
        if needed and not self.generates_for_pretraining:
            raise ValueError("contexts.pseudo_queries: expected `pretrain` in queries.for, or 0")
        generated = self.queries.queries_per_passage if self.queries else None
        if generated is not None and needed > generated:
            raise ValueError(
                f"contexts.pseudo_queries: expected at most the {generated} that are generated, found {needed}; "
                f"also set contexts.pseudo_queries={generated}, or generate more"
            )
        if self.queries is None and self.dataset.train_split is None:
            raise ValueError("queries: without a train split pseudo-queries are trained on; expected a generator")
        if self.pretrain and self.pretrain.probe and self.dataset.train_split is None and not needed:
            raise ValueError(
                "pretrain.probe: without a train split the contexts' pseudo-queries are searched with; "
                "expected null, or contexts.pseudo_queries above 0"
            )
        return self

    @property
    def generates_for_pretraining(self) -> bool:
        """Return whether pseudo-queries are generated for the texts of pre-training."""
        return self.queries is not None and "pretrain" in self.queries.for_

    @model_validator(mode="after")
    def _rounds_build_on_earlier_ones(self) -> Recipe[P]:
        rules.names_differ(self.rounds, reserved=("bm25", *BM25_VARIANTS, "teacher", *STARTS))
        rules.rankings_differ(self.run_names())
        rules.mining_rounds_exist(self.rounds)
        rules.starts_exist(self.rounds, self.run_names(), pretrains=self.pretrain is not None)
        rules.views_exist(self.rounds)
        rules.untrained_rounds_are_dense(self.rounds)
        rules.teacher_is_trained_in_time(self.rounds, self.teacher)
        rules.fusion_members_exist(self.fusions, self.rounds)
        rules.approximate_indexes_fit(self.approximate, self.rounds)
        rules.approximate_mining_fits(self.rounds)
        return self

    @model_validator(mode="after")
    def _spans_with_titles_are_read(self) -> Recipe[P]:
        if self.split.pretrain_titles and self.pretrain is None and not self.generates_for_pretraining:
            raise ValueError("split.pretrain_titles: without pretrain nothing reads spans; expected null")
        return self

    @model_validator(mode="after")
    def _reported_numbers_are_printed(self) -> Recipe[P]:
        reported = parse_reported(self.reported, self.headline.run)
        check_reported(reported, self.run_names(), self.dataset.reader, self.dataset.eval_splits)
        return self

    @model_validator(mode="after")
    def _titles_can_be_left_out(self) -> Recipe[P]:
        if self.evaluate.bm25_without_titles and not self.split.titles:
            raise ValueError(
                "evaluate.bm25_without_titles: passages have no titles to leave out; "
                "with split.titles=false also set evaluate.bm25_without_titles=false"
            )
        return self

    @model_validator(mode="after")
    def _transferred_rounds_exist(self) -> Recipe[P]:
        known = ["bm25", *retrievers(self.rounds)]
        for name in self.transfer.rounds if self.transfer else []:
            if name not in known:
                raise ValueError(f"transfer.rounds: expected some of {', '.join(known)}, found {name!r}")
        return self

    @model_validator(mode="after")
    def _analyses_have_what_they_need(self) -> Recipe[P]:
        for analysis in self.analyses:
            if hasattr(analysis, "round"):
                rules.analysis_fits_round(analysis.analysis, analysis.round, self.rounds)
            if analysis.analysis == "expert_disagreement":
                rules.counterparts_are_rankings(analysis.counterparts, self.run_names(), self.rounds)
            if analysis.analysis == "pair_relatedness" and not self.generates_for_pretraining:
                raise ValueError("analyses: pair_relatedness needs pseudo-queries; expected `pretrain` in queries.for")
            if analysis.analysis == "word_distribution" and (self.pretrain is None or self.pretrain.paper != "cpdae"):
                raise ValueError("analyses: word_distribution needs CPDAE's decoder; expected pretrain.paper cpdae")
        return self


def as_yaml(recipe: Recipe[Any]) -> str:
    """Return the recipe as it runs, without the paths of its data and without what cannot change a result."""
    value = recipe.model_dump(mode="json", by_alias=True, exclude={"execution": True, "dataset": {"path": True}})
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=110)
