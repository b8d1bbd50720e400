"""Training a retriever: the contrast of its scores, and what the papers add to it.

Every query is shown one positive and some hard negatives, and competes with the passages of all other queries too.
Added are a price for word pieces (SPLADE's FLOPS), the competition of experts (CAME), and soft labels of a
cross-encoder (DupMAE's third stage). All of them read scores of the whole batch, so gradients can be cached at the
representations, whatever the similarity is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from models.losses import contrastive_loss, distillation_loss
from models.objective import Losses, Vectors
from models.representation import Representation, Role
from models.retrievers.came import Competition, competition_losses
from models.retrievers.retriever import SUM, Retriever
from models.retrievers.views.lexical import flops, mean_nonzero
from models.settings import VALIDATED
from models.tokens import Tokens

PARTS = ("dense", "lexical", "tokens")
"""What of a representation has gradients."""


@dataclass(frozen=True, kw_only=True)
class Flops:
    """What word pieces cost: lambda sum_v (mean over the batch of a piece's weight)^2, for queries and for passages."""

    __pydantic_config__: ClassVar[dict[str, Any]] = VALIDATED

    queries: float
    passages: float
    ramp: float
    """Share of the steps in which both rise from 0 with the square of the step; 0 for none."""

    def __post_init__(self) -> None:
        if min(self.queries, self.passages) < 0 or not 0 <= self.ramp <= 1:
            raise ValueError("flops: expected queries and passages of 0 or more, and a ramp from 0 to 1")

    def risen(self, progress: float) -> float:
        """The share of the price at a share of the training."""
        return min(1.0, progress / self.ramp) ** 2 if self.ramp else 1.0


@dataclass(frozen=True, kw_only=True)
class Distillation:
    """Learning from a cross-encoder's scores of each query's own passages (DupMAE, equation 15)."""

    __pydantic_config__: ClassVar[dict[str, Any]] = VALIDATED

    teacher_temperature: float
    contrast_weight: float
    """What the contrast counts beside the soft labels: 0 printed; what is released comes to 1e-4 a passage."""

    def __post_init__(self) -> None:
        if self.teacher_temperature <= 0 or self.contrast_weight < 0:
            raise ValueError("distillation: expected a teacher_temperature above 0 and a contrast_weight of 0 or more")


@dataclass(frozen=True, kw_only=True)
class ObjectiveSettings:
    """What is minimised."""

    contrasts: Sequence[str]
    """Which scores are contrasted, each for itself: `sum`, or views; empty where the experts compete."""
    temperature: float
    flops: Flops | None = None
    competition: Competition | None = None
    distillation: Distillation | None = None

    def check(self, views: Sequence[str]) -> None:
        """Refuse what a retriever of these views cannot be trained with."""
        if bool(self.contrasts) == (self.competition is not None):
            raise ValueError("contrasts: expected some of sum and the views, or [] and a competition")
        if unknown := set(self.contrasts) - {SUM, *views}:
            raise ValueError(f"contrasts: expected {SUM} or views of {', '.join(views)}, found {min(unknown)}")
        if self.flops and "lexical" not in views:
            raise ValueError("flops: expected a retriever with a lexical view")


@dataclass(frozen=True)
class Examples:
    """Q queries and, in the same order, G passages of each, its positive first; or both `sorted_by_length`."""

    queries: Tokens
    passages: Tokens
    group: int
    excluded: Tensor | None
    """[Q, P], True where a passage is relevant to a query but is not its positive here."""
    progress: float = 0.0
    """The share of the training that is done."""
    teacher: Tensor | None = None
    """[Q, G], what a cross-encoder says of each query's own passages."""
    places: tuple[Tensor, Tensor] | None = None
    """[Q] and [P], where in that order queries and passages are that stand in another; None where they stand in it."""

    def __len__(self) -> int:
        return len(self.queries.ids)

    def sorted_by_length(self) -> Examples:
        """The same with queries, and apart from them passages, from the shortest to the longest.

        Chunks so have texts of about one length, and nearly no padding: a batch's texts do not meet before their
        comparison, for which they are put back.
        """
        sides = self.queries, self.passages
        of_queries, of_passages = (torch.argsort(each.mask.sum(1), stable=True) for each in sides)
        queries = Tokens(self.queries.ids[of_queries], self.queries.mask[of_queries])
        passages = Tokens(self.passages.ids[of_passages], self.passages.mask[of_passages])
        return replace(self, queries=queries, passages=passages, places=(of_queries, of_passages))

    def rows(self, start: int, stop: int) -> Examples:
        """Some queries and as many groups of passages. What concerns the whole batch is left out."""
        passages = self.passages.rows(start * self.group, stop * self.group)
        return replace(
            self, queries=self.queries.rows(start, stop), passages=passages, excluded=None, teacher=None, places=None
        )

    def to(self, device: torch.device) -> Examples:
        """The same on another device."""
        excluded, teacher = (None if each is None else each.to(device) for each in (self.excluded, self.teacher))
        places = None if self.places is None else (self.places[0].to(device), self.places[1].to(device))
        return replace(
            self, queries=self.queries.to(device), passages=self.passages.to(device), excluded=excluded,
            teacher=teacher, places=places,
        )  # fmt: skip


class Finetuning(nn.Module):
    """InfoNCE over all passages of the batch (equation 12 of query-as-context pre-training), for any similarity."""

    def __init__(self, retriever: Retriever, settings: ObjectiveSettings) -> None:
        super().__init__()
        settings.check(retriever.views)
        self.retriever, self.settings = retriever, settings
        self.observed: dict[str, float] = {}
        """What the last comparison saw beside its losses."""

    def encode(self, batch: Examples) -> tuple[Vectors, Losses]:
        """The parts of the queries' and of their passages' representations; no local loss."""
        return (*self._read(batch.queries, "query"), *self._read(batch.passages, "passage")), {}

    def compare(self, vectors: Vectors, batch: Examples) -> Losses:
        """The losses of every query with all passages."""
        half = len(vectors) // 2
        of_queries, of_passages = batch.places or (None, None)
        queries = self._joined(vectors[:half], batch.queries, "query", of_queries)
        passages = self._joined(vectors[half:], batch.passages, "passage", of_passages)
        scores = self.retriever.scores(queries, passages)
        positives_Q = torch.arange(len(batch), device=vectors[0].device) * batch.group
        self.observed = _sizes(scores, positives_Q, self.retriever.views)
        losses = self._contrasts(scores, positives_Q, batch)
        if self.settings.distillation:
            losses = self._distilled(losses, scores[SUM], positives_Q, batch)
        if queries.lexical is not None and passages.lexical is not None:
            losses |= self._flops(queries.lexical, passages.lexical, batch.progress)
        return losses

    def _read(self, tokens: Tokens, role: Role) -> Vectors:
        """The parts of a chunk's representations, read without the padding that all its texts have."""
        found = self.retriever(cut_to_longest(tokens), role)
        if found.tokens is not None and self.retriever.late:
            missing = self.retriever.late.augmented(tokens, role).ids.shape[1] - found.tokens.shape[1]
            found = replace(found, tokens=pad(found.tokens, (0, 0, 0, missing)))  # as long as those of other chunks
        return _parts(found)

    def _joined(self, parts: Vectors, tokens: Tokens, role: Role, places: Tensor | None) -> Representation:
        """The representation of the whole batch, put back in its order.

        What needs no gradient is read from its tokens again.
        """
        names = [name for name, view in (("dense", "dense"), ("lexical", "lexical"), ("tokens", "late"))
                 if view in self.retriever.views]  # fmt: skip
        found = Representation(**dict(zip(names, parts, strict=True)))
        if late := self.retriever.late:
            mask, ids = late.compared(late.augmented(tokens, role), role)
            found = replace(found, token_mask=mask, token_ids=ids)
        if places is None:
            return found
        back = torch.argsort(places)
        parts_of = {name: part.index_select(0, back) for name, part in vars(found).items() if part is not None}
        return Representation(**parts_of)

    def _contrasts(self, scores: dict[str, Tensor], positives_Q: Tensor, batch: Examples) -> Losses:
        temperature, excluded = self.settings.temperature, batch.excluded
        if self.settings.competition:
            views = {view: scores[view] for view in self.retriever.views}
            losses, seen = competition_losses(
                views, positives_Q, batch.group, self.settings.competition, batch.progress, temperature, excluded
            )
            self.observed |= seen
            return {f"contrast_{view}": loss for view, loss in losses.items()}
        return {
            f"contrast_{name}" if name != SUM else "contrastive":
                contrastive_loss(scores[name], positives_Q, temperature=temperature, excluded_QP=excluded)
            for name in self.settings.contrasts
        }  # fmt: skip

    def _distilled(self, contrasts: Losses, scores_QP: Tensor, positives_Q: Tensor, batch: Examples) -> Losses:
        """The soft labels of each query's own passages, and what is left of the contrasts."""
        settings = self.settings.distillation
        if settings is None or batch.teacher is None:
            raise ValueError("distillation: the batch has no scores of a teacher")
        own_QG = positives_Q[:, None] + torch.arange(batch.group, device=positives_Q.device)
        loss = distillation_loss(
            scores_QP.gather(1, own_QG), batch.teacher,
            temperature=self.settings.temperature, teacher_temperature=settings.teacher_temperature,
        )  # fmt: skip
        kept = {name: settings.contrast_weight * each for name, each in contrasts.items()}
        return {"distillation": loss} | (kept if settings.contrast_weight else {})

    def _flops(self, queries_QV: Tensor, passages_PV: Tensor, progress: float) -> Losses:
        self.observed |= {
            "nonzero_queries": mean_nonzero(queries_QV).item(), "nonzero_passages": mean_nonzero(passages_PV).item()
        }  # fmt: skip
        price = self.settings.flops
        if price is None:
            return {}
        share = price.risen(progress)
        return {
            "flops_queries": share * price.queries * flops(queries_QV),
            "flops_passages": share * price.passages * flops(passages_PV),
        }


def cut_to_longest(tokens: Tokens) -> Tokens:
    """Without the columns in which every text has ended."""
    longest = int(tokens.mask.sum(1).max())
    return Tokens(tokens.ids[:, :longest], tokens.mask[:, :longest])


def known_positives(relevant: Sequence[set[str]], documents: Sequence[str], group: int) -> Tensor | None:
    """[Q, P], True where a passage's document is relevant to a query whose positive it is not; None if nowhere."""
    excluded_QP = torch.tensor([[document in wanted for document in documents] for wanted in relevant])
    for query in range(len(relevant)):
        excluded_QP[query, query * group] = False
    return excluded_QP if excluded_QP.any() else None


def _parts(found: Representation) -> Vectors:
    return tuple(part for name in PARTS if (part := getattr(found, name)) is not None)


def _sizes(scores: dict[str, Tensor], positives_Q: Tensor, views: Sequence[str]) -> dict[str, float]:
    """How large each view's scores of positives are, where several are added up."""
    if len(views) < 2:
        return {}
    return {
        f"positive_{view}": scores[view].detach().gather(1, positives_Q[:, None]).abs().mean().item() for view in views
    }
