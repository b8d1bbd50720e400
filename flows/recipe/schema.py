"""The shape of a recipe: complete YAML, one level of sections, unknown keys refused.

A recipe is the settings of every stage of the chain, in the words of the papers. What it leaves out
is refused, but for what cannot change a result (`execution`) and for each section's `seed`, which is
the recipe's unless the section names its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Generic, TypeVar, cast

import yaml
from pydantic import Field, model_validator

from flows.recipe.pseudo_query_schema import PseudoQuerying
from flows.recipe.round_schema import SEARCHED_VIEW, Approximate, Ensemble, Few, Member, Round, Suiting, Teaching, row
from flows.recipe.sections import Analysing, Corpora, Dataset, Depth, Headline, Testing, Transfer
from storage.settings import Seed, Settings
from tasks.corpus.split_corpus import Splitting
from tasks.pretraining.initialise import Backbone
from tasks.pretraining.pair_contexts import Contexts
from tasks.pretraining.pretrain import Pretraining
from tasks.retrieval.encode import Encoding
from tasks.retrieval.engines.bm25 import Bm25
from tasks.retrieval.engines.exact import Exact
from tasks.session import Execution

STARTS = ("pretrained", "backbone", "random")

P = TypeVar("P")


class Recipe(Settings, Generic[P]):
    """One row of a results table, from corpus to report; `P` is the settings of its paper."""

    title: str
    seed: Seed
    dataset: Dataset
    corpora: Corpora
    split: Splitting
    backbone: Backbone
    queries: PseudoQuerying | None
    """Null where neither pre-training nor BM25 asks for pseudo-queries."""
    contexts: Contexts | None
    """Null where the paper reads texts alone."""
    pretrain: Pretraining[P] | None
    """Null where the backbone's weights are pre-trained already, and every round starts from them."""
    bm25: Bm25
    encode: Encoding
    index: Exact
    """How a round's vectors are searched: exactly."""
    teacher: Teaching | None = None
    rounds: Annotated[list[Round], Field(min_length=1)]
    fusions: list[Ensemble] = Field(default_factory=list)
    approximate: list[Approximate] = Field(default_factory=list)
    train_documents: Annotated[int, Field(gt=0)]
    """Documents found for each training query: what mining and labelling have to choose from."""
    search: Depth
    """How deep the evaluation's queries search."""
    evaluate: Testing
    transfer: Transfer | None = None
    analyses: list[Analysing] = Field(default_factory=list)
    """What the papers looked at beside their results (`tasks/analyses`)."""
    headline: Headline
    reported: dict[str, Any]
    """What the paper prints for this row, with its table; empty where it prints nothing."""
    execution: Execution = Execution()

    @model_validator(mode="after")
    def _runs_exist(self) -> Recipe[P]:
        known = self.row_names()
        tested = [name for each in self.evaluate.comparisons for name in (each.run, each.baseline)]
        for name in (*tested, self.headline.run, self.headline.baseline):
            if name not in known:
                raise ValueError(
                    f"evaluate and headline: {name!r} is no run of this recipe; expected {', '.join(known)}"
                )
        means = [each.name for each in self.rounds if isinstance(each.queries, Few)]
        lists = [name for name in known if name not in ("teacher", "bm25_doc2query", *means)]
        if self.teacher and self.teacher.reranks not in lists:
            raise ValueError(f"teacher.reranks: expected one of {', '.join(lists)}, found {self.teacher.reranks!r}")
        if self.teacher and self.teacher.mine_with not in ("bm25", *(each.name for each in self.rounds)):
            raise ValueError(f"teacher.mine_with: expected bm25 or a round, found {self.teacher.mine_with!r}")
        if self.headline.metric not in self.evaluate.metrics:
            raise ValueError(f"headline.metric: {self.headline.metric} is none of evaluate.metrics")
        return self

    def row_names(self) -> list[str]:
        """Every row that the report may have."""
        known = ["bm25", "bm25_doc2query"]
        for each in self.rounds:
            samples = each.queries.samples if isinstance(each.queries, Few) else []
            names = [each.name, *(Few.name(each.name, sample) for sample in samples)]
            known += [*names, *(row(name, view) for name in (names[1:] or names) for view in each.rows)]
        known += [*(each.name for each in self.fusions), *(quick.name for quick in self.approximate)]
        return [*known, *(["teacher"] if self.teacher else [])]

    @model_validator(mode="after")
    def _contexts_are_what_the_paper_reads(self) -> Recipe[P]:
        if self.pretrain is None:
            if self.contexts is not None:
                raise ValueError("contexts: without pretrain nothing reads them; expected null")
            return self
        paper, reads = self.pretrain.paper, cast(Any, self.pretrain.objective).reads
        kinds = self.contexts.passages if self.contexts else []
        if (self.contexts is None) != (reads == "texts"):
            raise ValueError(f"contexts: {paper} reads {reads}; expected {'null' if reads == 'texts' else 'contexts'}")
        if (reads == "sentences") != ("sentences" in kinds):
            raise ValueError(f"contexts.passages: {paper} reads {reads}; found {kinds}")
        if self.contexts and not (self.contexts.pseudo_queries or kinds):
            raise ValueError("contexts: expected pseudo_queries above 0, or some passages")
        both = bool(self.contexts and self.contexts.pseudo_queries and kinds)
        if both != (self.pretrain.mix is not None):
            raise ValueError("pretrain.mix: expected step or example where contexts are of both kinds, else null")
        return self

    @model_validator(mode="after")
    def _pseudo_queries_suffice(self) -> Recipe[P]:
        asked = self.contexts.pseudo_queries if self.contexts else 0
        if asked and (self.queries is None or "pretrain" not in self.queries.for_):
            raise ValueError("contexts.pseudo_queries: expected `pretrain` in queries.for, or 0")
        made = self.queries.queries_per_passage if self.queries else None
        if made is not None and asked > made:
            raise ValueError(f"contexts.pseudo_queries: expected at most the {made} that are generated, found {asked}")
        if self.queries is None and self.dataset.train_split is None:
            raise ValueError("queries: without a train split pseudo-queries are trained on; expected a generator")
        return self

    @model_validator(mode="after")
    def _rounds_follow(self) -> Recipe[P]:
        earlier: dict[str, Round] = {}
        names = self.row_names()
        for each in self.rounds:
            if each.name in ("bm25", "bm25_doc2query", "teacher", *STARTS):
                raise ValueError(f"rounds: the name {each.name!r} is taken; give each round its own")
            if each.mine_with not in (None, "bm25", *earlier):
                known = ", ".join(("bm25", *earlier))
                raise ValueError(f"rounds: {each.name} mines with {each.mine_with!r}, which is none of {known}")
            if each.start == "pretrained" and self.pretrain is None:
                raise ValueError(f"rounds: {each.name} starts from a pre-training, but pretrain is null")
            if each.start in names and each.start not in earlier:
                raise ValueError(
                    f"rounds: {each.name} starts from {each.start!r}; expected an earlier round of one sample"
                )
            _views_there(f"rounds: {each.name}.mine_views", each.mine_views, earlier.get(each.mine_with or ""))
            _views_there(f"rounds: {each.name}.rows", each.rows, each)
            if isinstance(each.queries, Suiting):
                if each.queries.round not in earlier:
                    raise ValueError(f"rounds: {each.name}.queries: {each.queries.round!r} is no earlier round")
                _views_there(f"rounds: {each.name}.queries", each.queries.views, earlier[each.queries.round])
            if each.train is None and each.start in earlier and earlier[each.start].views != ("dense",):
                raise ValueError(
                    f"rounds: {each.name} is not trained, and ranks by one dense vector, which {each.start} has not"
                )
            if each.reads_a_teacher and self.teacher is None:
                raise ValueError(f"rounds: {each.name} reads a teacher's scores; expected a section teacher")
            if each.reads_a_teacher and self.teacher and self.teacher.mine_with not in ("bm25", *earlier):
                raise ValueError(f"teacher.mine_with: {each.name} needs the teacher before {self.teacher.mine_with!r}")
            if not isinstance(each.queries, Few):  # several trainings: nothing can go on from their mean
                earlier[each.name] = each
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"rounds: the name {min(twice)!r} is taken; give each round its own")
        for ensemble in self.fusions:
            for member in map(Member.read, ensemble.members):
                if member.round not in ("bm25", *earlier):
                    raise ValueError(f"fusions: {ensemble.name}: {member.round!r} is no round of this recipe")
                if member.view:
                    _views_there(f"fusions: {ensemble.name}", [member.view], earlier.get(member.round))
        for quick in self.approximate:
            if quick.round not in earlier or earlier[quick.round].row_of(quick.view) is None:
                raise ValueError(
                    f"approximate: {quick.name}: expected a round with {quick.view} among its rows, to compare with"
                )
            if quick.view != SEARCHED_VIEW[quick.index.engine]:
                view = SEARCHED_VIEW[quick.index.engine]
                raise ValueError(f"approximate: {quick.name}: {quick.index.engine} searches {view}, not {quick.view}")
            _can_be_approximated(quick, earlier[quick.round])
        return self

    @model_validator(mode="after")
    def _transferred_rounds_exist(self) -> Recipe[P]:
        known = ["bm25", *(each.name for each in self.rounds if not isinstance(each.queries, Few))]
        for name in self.transfer.rounds if self.transfer else []:
            if name not in known:
                raise ValueError(f"transfer.rounds: expected some of {', '.join(known)}, found {name!r}")
        return self

    @model_validator(mode="after")
    def _analyses_have_what_they_look_at(self) -> Recipe[P]:
        trained = {each.name: each for each in self.rounds if not isinstance(each.queries, Few)}
        for each in self.analyses:
            of = trained.get(getattr(each, "round", ""))
            if hasattr(each, "round") and of is None:
                raise ValueError(
                    f"analyses: {each.analysis}: expected a round ({', '.join(trained)}), found {each.round}"
                )
            if each.analysis == "divergence" and of and "dense" not in of.views:
                raise ValueError(f"analyses: divergence looks at dense vectors, which {of.name} has not")
            if each.analysis == "expert_disagreement" and of and len(of.rows) < 2:
                raise ValueError(
                    f"analyses: expert_disagreement compares the rows of two views; {of.name} has {of.rows}"
                )
            if each.analysis == "pair_relatedness" and (self.queries is None or "pretrain" not in self.queries.for_):
                raise ValueError(
                    "analyses: pair_relatedness looks at pseudo-queries; expected `pretrain` in queries.for"
                )
            if each.analysis == "word_distribution" and (self.pretrain is None or self.pretrain.paper != "cpdae"):
                raise ValueError("analyses: word_distribution looks at CPDAE's decoder; expected pretrain.paper cpdae")
        return self


def _can_be_approximated(quick: Approximate, of: Round) -> None:
    """Refuse views whose vectors an engine cannot index."""
    views = of.train.retriever if of.train else None
    if quick.view == "lexical" and views and views.lexical and views.lexical.activation == "none":
        raise ValueError(
            f"approximate: {quick.name}: seismic needs weights above 0, which activation none does not give"
        )
    if quick.view == "late" and views and views.late and views.late.exact_match:
        raise ValueError(
            f"approximate: {quick.name}: candidates compare all tokens; exact matches are searched exactly"
        )


def _views_there(what: str, views: Sequence[str], of: Round | None) -> None:
    """Refuse views that a round's retriever has not."""
    there = of.views if of else ()
    if missing := set(views) - set(there):
        raise ValueError(f"{what}: expected views of {', '.join(there) or 'no retriever'}, found {min(missing)}")


def as_yaml(recipe: Recipe[Any]) -> str:
    """The recipe as it runs, without where its data lies and what cannot change a result."""
    value = recipe.model_dump(mode="json", by_alias=True, exclude={"execution": True, "dataset": {"path": True}})
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=110)
