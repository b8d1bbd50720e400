"""The settings of a recipe's fine-tuning rounds, of its teacher, and of the rankings that are made from rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, model_validator

from flows.recipe.approximate_schema import Approximate, ApproximateMining
from storage.settings import Settings
from tasks.cross_encoder.pairs import Scoring
from tasks.cross_encoder.rerank import Reranking
from tasks.cross_encoder.train_teacher import TeacherTraining
from tasks.finetuning.import_negatives import ImportedNegatives
from tasks.finetuning.learn_fusion import LearnFusion
from tasks.finetuning.miners.cross_encoder import CrossEncoder
from tasks.finetuning.miners.margin import Margin
from tasks.finetuning.miners.top import Top
from tasks.finetuning.miners.union import Union
from tasks.finetuning.train import Training, ViewName
from tasks.retrieval.fuse import Fusion

Miner = Annotated[Top | Union | Margin | CrossEncoder, Field(discriminator="miner")]


class FewShotQueries(Settings):
    """Training on few queries (CPDAE, table 3); systems of equal seed have the same samples."""

    queries: Annotated[int, Field(gt=0)]
    """The size of a sample of the train queries that have a positive."""
    samples: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    """The number of each sample. Each has a training of its own; the round's result is their mean."""


class ExpertQueries(Settings):
    """Training on the queries that one of several views of an earlier round ranks best (CAME, section 5.3)."""

    round: str
    views: Annotated[list[ViewName], Field(min_length=2)]
    view: ViewName
    """The expert: the view whose queries are kept."""
    cutoff: Annotated[int, Field(gt=0)]

    @model_validator(mode="after")
    def _expert_is_a_view(self) -> ExpertQueries:
        if self.view not in self.views:
            raise ValueError(f"view: expected one of {', '.join(self.views)}, found {self.view}")
        return self


FEW_SHOT, EXPERT = "[few-shot]", "[expert]"  # with brackets, since tags are no keys of an error's location


def _kind_of_queries(value: Any) -> str:
    few_shot = isinstance(value, FewShotQueries) or (isinstance(value, dict) and "samples" in value)
    return FEW_SHOT if few_shot else EXPERT


TrainQueries = Annotated[
    Annotated[FewShotQueries, Tag(FEW_SHOT)] | Annotated[ExpertQueries, Tag(EXPERT)], Discriminator(_kind_of_queries)
]


class Round(Settings):
    """One fine-tuning round: which negatives are mined, and what is trained on them."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
    """Also the name of the round's ranking in the report."""
    queries: TrainQueries | None = None
    """The train queries that are used; null for all."""
    mine_with: str | None
    """`bm25`, or the earlier round whose retriever mines; null where a file has the negatives, or none are needed."""
    mine_views: list[ViewName] = Field(default_factory=list)
    """Mine from the separate rankings of these views, and not from the ranking by all views."""
    mine_approximate: list[ApproximateMining] = Field(default_factory=list, exclude_if=lambda indexes: not indexes)
    """Approximate indexes to mine with, one for a view; the other views are searched exactly."""
    mine: Miner | None
    given: ImportedNegatives | None = None
    """Negatives of a file, in place of mining."""
    start: str
    """pretrained, backbone, random, an earlier round to continue, or a checkpoint by key, folder or hub name."""
    train: Training | None
    """Null, with no mining, where the initial checkpoint itself is the retriever: its dense view."""
    fuse: Fusion | None = None
    """How the views' rankings are fused; null adds up their scores for every passage."""
    rows: list[ViewName] = Field(default_factory=list)
    """Views that are also evaluated separately; their rankings are called NAME_VIEW."""
    truncate_dims: list[Annotated[int, Field(gt=0)]] = Field(default_factory=list, exclude_if=lambda dims: not dims)
    """Numbers of dimensions to which dense vectors are truncated and evaluated; the rankings are called NAME_dimN."""

    @model_validator(mode="after")
    def _has_what_it_trains_on(self) -> Round:
        if (self.mine_with is None) != (self.mine is None):
            raise ValueError("give mine_with and mine, or set both to null")
        negatives = (self.mine is not None) + (self.given is not None)
        if negatives != (self.train is not None):
            raise ValueError("give train, and its negatives by mine_with and mine or by given; else all of them null")
        if self.mine and (self.mine.miner == "union") != (len(self.mine_views) > 1):
            views = ", ".join(self.mine_views) or "none"
            raise ValueError(f"mine_views: the miner union reads two views or more, and no other does; found {views}")
        if self.train is None and (self.queries is not None or self.fuse is not None):
            raise ValueError("queries and fuse: expected null where nothing is trained")
        return self

    @model_validator(mode="after")
    def _truncated_vectors_are_dense(self) -> Round:
        if self.truncate_dims and (self.views != ("dense",) or self.is_few_shot):
            raise ValueError("truncate_dims: expected a round with one dense vector, and all train queries")
        if len(set(self.truncate_dims)) < len(self.truncate_dims):
            raise ValueError(f"truncate_dims: expected each once, found {self.truncate_dims}")
        return self

    @model_validator(mode="after")
    def _approximate_views_differ(self) -> Round:
        views = [mining.view for mining in self.mine_approximate]
        if len(set(views)) < len(views):
            raise ValueError(f"mine_approximate: expected one index for a view, found {', '.join(views)}")
        return self

    @model_validator(mode="after")
    def _views_can_be_fused(self) -> Round:
        if self.fuse and self.fuse.kind == "linear":
            raise ValueError("fuse: a linear fusion is learned; give it among `fusions`")
        if self.fuse and len(self.views) < 2:
            raise ValueError(f"fuse: expected a retriever of several views, found {', '.join(self.views)}")
        return self

    @property
    def views(self) -> tuple[str, ...]:
        """The views of the round's retriever."""
        return self.train.retriever.views if self.train else ("dense",)

    @property
    def is_few_shot(self) -> bool:
        """Return whether the round trains on each sample of queries, so that it has no retriever of its own."""
        return isinstance(self.queries, FewShotQueries)

    @property
    def needs_teacher(self) -> bool:
        """Return whether a cross-encoder's scores are distilled or filter the negatives."""
        distils = self.train is not None and self.train.distillation is not None
        return distils or (self.mine is not None and self.mine.miner == "cross_encoder")

    def trainings(self) -> list[Round]:
        """Return the round for each of its samples of queries, or the round itself where it has no samples."""
        if not isinstance(self.queries, FewShotQueries):
            return [self]
        return [
            self.model_copy(update={
                "name": f"{self.name}_{sample}", "queries": self.queries.model_copy(update={"samples": [sample]})
            })
            for sample in self.queries.samples
        ]  # fmt: skip

    def run_of(self, view: str) -> str | None:
        """Return the name of the ranking by one view only; None where that is not evaluated."""
        if view in self.rows:
            return view_run(self.name, view)
        return self.name if self.views == (view,) else None


def expanded(rounds: Sequence[Round]) -> Iterator[Round]:
    """Yield every training of the rounds: a few-shot round has one for each sample."""
    for round_ in rounds:
        yield from round_.trainings()


def retrievers(rounds: Sequence[Round]) -> dict[str, Round]:
    """Return the rounds that have one retriever, by name: a few-shot round has several, one for each sample."""
    return {round_.name: round_ for round_ in rounds if not round_.is_few_shot}


@dataclass(frozen=True)
class Member:
    """A ranking that is fused: that of a round, or of one of its views."""

    round: str
    view: str | None

    @staticmethod
    def read(text: str) -> Member:
        """Return the member that `ROUND` or `ROUND/VIEW` names."""
        name, _, view = text.partition("/")
        return Member(name, view or None)


class Ensemble(Settings):
    """A fusion of several rankings."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
    members: Annotated[
        list[Annotated[str, Field(pattern=r"^[a-z0-9_]+(/(dense|late|lexical))?$")]], Field(min_length=2)
    ]
    """ROUND, or ROUND/VIEW."""
    fuse: Fusion
    learn: LearnFusion | None = None
    """How a `linear` fusion learns the members' weights; null for all others."""

    @model_validator(mode="after")
    def _learned(self) -> Ensemble:
        if (self.fuse.kind == "linear") != (self.learn is not None):
            raise ValueError("learn: expected settings where fuse.kind is linear, else null")
        return self


class Teacher(Settings):
    """The cross-encoder that retrievers are distilled from, or that filters mined negatives."""

    weights: str | None
    """A BERT or a cross-encoder by folder, package:NAME/FOLDER or hub name; null for the pre-trained checkpoint, or for
    the backbone where nothing is pre-trained."""
    mine_with: str
    """`bm25`, or the round from whose ranking its negatives are sampled."""
    mine: Miner
    train: TeacherTraining | None
    """Null where the weights are those of a trained cross-encoder."""
    score: Scoring
    reranks: str
    """The ranking whose top passages it re-ranks, to measure the teacher itself."""
    rerank: Reranking

    @model_validator(mode="after")
    def _trained(self) -> Teacher:
        if self.train is None and self.weights is None:
            raise ValueError("give the weights of a trained cross-encoder, or how to train one (train)")
        if self.mine.miner != "top":
            raise ValueError(
                f"mine.miner: a teacher's negatives are of one ranking; expected top, found {self.mine.miner}"
            )
        return self


def view_run(name: str, view: str) -> str:
    """Return the name of the ranking by one view of a round."""
    return f"{name}_{view}"


def truncated_run(name: str, dim: int) -> str:
    """Return the name of the ranking by the first dimensions of a round's vectors."""
    return f"{name}_dim{dim}"


def exact_run(rounds: Sequence[Round], approximate: Approximate) -> str:
    """Return the name of the exact ranking that an approximate one is compared with."""
    exact = next(round_.run_of(approximate.view) for round_ in rounds if round_.name == approximate.round)
    return exact or view_run(approximate.round, approximate.view)
