"""The shape of a recipe's rounds: what each mines with, learns from and trains, and the rows made of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, model_validator

from storage.settings import Settings
from tasks.cross_encoder.pairs import Scoring
from tasks.cross_encoder.rerank import Reranking
from tasks.cross_encoder.train_teacher import TeacherTraining
from tasks.finetuning.import_negatives import Given
from tasks.finetuning.learn_fusion import LearnFusion
from tasks.finetuning.miners.cross_encoder import CrossEncoder
from tasks.finetuning.miners.margin import Margin
from tasks.finetuning.miners.top import Top
from tasks.finetuning.miners.union import Union
from tasks.finetuning.train import Training, View
from tasks.retrieval.engines.candidates import Candidates
from tasks.retrieval.engines.faiss import Faiss
from tasks.retrieval.engines.seismic import Seismic
from tasks.retrieval.fuse import Fusion

Miner = Annotated[Top | Union | Margin | CrossEncoder, Field(discriminator="miner")]
Engine = Annotated[Faiss | Seismic | Candidates, Field(discriminator="engine")]
SEARCHED_VIEW = {"faiss": "dense", "seismic": "lexical", "candidates": "late"}


class Few(Settings):
    """Learning from few queries (CPDAE, table 3): the same for every system of equal seed."""

    queries: Annotated[int, Field(gt=0)]
    """How many are drawn of those that have a positive."""
    samples: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    """A training for each; the row of the round is their mean."""

    @staticmethod
    def name(of: str, sample: int) -> str:
        """What the training of a sample is called."""
        return f"{of}_{sample}"


class Suiting(Settings):
    """Learning from the queries on which one of several views is best (CAME, section 5.3)."""

    round: str
    """An earlier round."""
    views: Annotated[list[View], Field(min_length=2)]
    view: View
    """The one whose queries are kept."""
    cutoff: Annotated[int, Field(gt=0)]

    @model_validator(mode="after")
    def _one_of_them(self) -> Suiting:
        if self.view not in self.views:
            raise ValueError(f"view: expected one of {', '.join(self.views)}, found {self.view}")
        return self


def _is_few(value: Any) -> str:
    return "few" if isinstance(value, Few) or (isinstance(value, dict) and "samples" in value) else "suited"


Chosen = Annotated[Annotated[Few, Tag("few")] | Annotated[Suiting, Tag("suited")], Discriminator(_is_few)]


class Round(Settings):
    """One round of mining and training; its name is its row in the report."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
    queries: Chosen | None = None
    """Which train queries are learned from; null for all."""
    mine_with: str | None
    """`bm25`, or the name of an earlier round whose retriever mines; null where negatives are given, or none needed."""
    mine_views: list[View] = Field(default_factory=list)
    """Mine from the lists of these views, each for itself, and not from the ranking of all."""
    mine: Miner | None
    given: Given | None = None
    """Negatives that others mined, of a file, in place of mining."""
    start: str
    """pretrained, backbone, random, an earlier round to continue, or a checkpoint by key or folder."""
    train: Training | None
    """Null, with no mining, where the start itself is the retriever: its dense view."""
    fuse: Fusion | None = None
    """How the views' lists make one ranking; null adds up their scores for every passage."""
    rows: list[View] = Field(default_factory=list)
    """Views whose own ranking is a row, called NAME_VIEW."""

    @model_validator(mode="after")
    def _trained_on_what_is_mined(self) -> Round:
        if (self.mine_with is None) != (self.mine is None):
            raise ValueError("give mine_with and mine, or set both to null")
        negatives = (self.mine is not None) + (self.given is not None)
        if negatives != (self.train is not None):
            raise ValueError("give train, and its negatives by mine_with and mine or by given; else all of them null")
        if self.mine and (self.mine.miner == "union") != (len(self.mine_views) > 1):
            found = ", ".join(self.mine_views) or "none"
            raise ValueError(f"mine_views: the miner union reads two views or more, and no other does; found {found}")
        if self.train is None and (self.queries is not None or self.fuse is not None):
            raise ValueError("queries and fuse: expected null where nothing is trained")
        if self.fuse and self.fuse.kind == "linear":
            raise ValueError("fuse: a linear fusion is learned; give it among `fusions`")
        if self.fuse and len(self.views) < 2:
            raise ValueError(f"fuse: expected a retriever of several views, found {', '.join(self.views)}")
        return self

    @property
    def views(self) -> tuple[str, ...]:
        """Those of its retriever."""
        return self.train.retriever.views if self.train else ("dense",)

    @property
    def reads_a_teacher(self) -> bool:
        """Whether a cross-encoder's scores take part."""
        distils = self.train is not None and self.train.distillation is not None
        return distils or (self.mine is not None and self.mine.miner == "cross_encoder")

    def row_of(self, view: str) -> str | None:
        """The row that a view alone ranks; None where there is none."""
        if view in self.rows:
            return row(self.name, view)
        return self.name if self.views == (view,) else None


@dataclass(frozen=True)
class Member:
    """A ranking that is fused: that of a round, or of one of its views."""

    round: str
    view: str | None

    @staticmethod
    def read(text: str) -> Member:
        """`ROUND` or `ROUND/VIEW`."""
        name, _, view = text.partition("/")
        return Member(name, view or None)


class Ensemble(Settings):
    """A row that is made of several rankings."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
    members: Annotated[
        list[Annotated[str, Field(pattern=r"^[a-z0-9_]+(/(dense|late|lexical))?$")]], Field(min_length=2)
    ]
    """ROUND, or ROUND/VIEW."""
    fuse: Fusion
    learn: LearnFusion | None = None
    """How a `linear` fusion learns what each member counts; null for all others."""

    @model_validator(mode="after")
    def _learned(self) -> Ensemble:
        if (self.fuse.kind == "linear") != (self.learn is not None):
            raise ValueError("learn: expected settings where fuse.kind is linear, else null")
        return self


class Approximate(Settings):
    """A row that is searched with an approximate index, beside the exact one."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
    round: str
    view: View
    index: Engine


class Teaching(Settings):
    """The cross-encoder that distils and filters."""

    weights: str | None
    """A BERT or a cross-encoder by folder, package:NAME/FOLDER or hub name; null takes the pre-trained checkpoint, or
    the backbone where nothing is pre-trained."""
    mine_with: str
    """Whose ranking its negatives are drawn from."""
    mine: Miner
    train: TeacherTraining | None
    """Null where the weights are a trained cross-encoder's."""
    score: Scoring
    reranks: str
    """The row whose first passages it re-orders: its own quality."""
    rerank: Reranking

    @model_validator(mode="after")
    def _trained(self) -> Teaching:
        if self.train is None and self.weights is None:
            raise ValueError("give the weights of a trained cross-encoder, or how to train one (train)")
        if self.mine.miner != "top":
            raise ValueError(
                f"mine.miner: a teacher's negatives are of one ranking; expected top, found {self.mine.miner}"
            )
        return self


def row(name: str, view: str) -> str:
    """What the row of a view is called."""
    return f"{name}_{view}"


def exact(rounds: Sequence[Round], quick: Approximate) -> str:
    """The row that an approximate one should equal."""
    found = next(each.row_of(quick.view) for each in rounds if each.name == quick.round)
    return found or row(quick.round, quick.view)
