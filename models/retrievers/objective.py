"""Fine-tuning a retriever: the contrastive loss of its scores, and the papers' additions to it.

Every query has one positive and some hard negatives; the passages of other queries are in-batch negatives. The
additions are FLOPS regularisation (SPLADE), the competition of experts (CAME), and distillation from a cross-encoder
(DupMAE's third stage). All are computed from representations and scores of the complete batch, so gradients can be
cached at the representations for any similarity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from models.losses import contrastive_loss, distillation_loss, likely_relevant, margin_loss, pairwise_loss
from models.objective import Losses, Vectors
from models.representation import Representation, Role
from models.retrievers.came import Competition, competition_losses
from models.retrievers.examples import Examples, cut_to_longest
from models.retrievers.nested_vectors import truncated
from models.retrievers.retriever import SUM, Retriever
from models.retrievers.views.lexical import flops, mean_nonzero
from models.settings import VALIDATED, omitted_at
from models.tokens import Tokens

PARTS = ("dense", "lexical", "tokens")
"""The fields of a representation that have gradients."""

ContrastLoss = Literal["softmax", "pairwise"]
"""Cross-entropy over all passages of the batch, or over pairs of a query's positive with each of its own negatives."""


@dataclass(frozen=True, kw_only=True)
class Flops:
    """FLOPS regularisation: lambda sum_v (mean weight of token v over the batch)^2, for queries and for passages.

    The mean is over all passages of the batch, positives and negatives together, as in Tevatron; SPLADE's first trainer
    averages the terms of positives and of negatives.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = VALIDATED

    queries: float
    passages: float
    ramp: float
    """The share of the steps in which both lambdas rise from 0 with the square of the step; 0 for none."""
    ramp_counts_step: Annotated[bool, omitted_at(False)] = False
    """Whether a step counts itself: the first of T has a factor of (1 / T)^2, as in SPLADE's code, and not of 0."""

    def __post_init__(self) -> None:
        if min(self.queries, self.passages) < 0 or not 0 <= self.ramp <= 1:
            raise ValueError("flops: expected queries and passages of 0 or more, and a ramp from 0 to 1")

    def ramp_factor(self, progress: float, step_share: float) -> float:
        """Return the factor of both lambdas in a step, which is a share of the training after a share `progress`."""
        if self.ramp_counts_step:
            progress += step_share
        return min(1.0, progress / self.ramp) ** 2 if self.ramp else 1.0


Targets = Literal["soft_labels", "margins"]
"""The targets from a teacher: its softmax over a query's passages, or its margins (MarginMSE)."""


@dataclass(frozen=True, kw_only=True)
class Distillation:
    """Distillation from a cross-encoder's scores of each query's own passages (DupMAE, equation 15; MarginMSE)."""

    __pydantic_config__: ClassVar[dict[str, Any]] = VALIDATED

    teacher_temperature: float
    contrast_weight: float
    """The weight of the contrastive loss next to the soft labels: 0 printed; the release amounts to 1e-4 a passage."""
    targets: Annotated[Targets, omitted_at("soft_labels")] = "soft_labels"

    def __post_init__(self) -> None:
        if self.teacher_temperature <= 0 or self.contrast_weight < 0:
            raise ValueError("distillation: expected a teacher_temperature above 0 and a contrast_weight of 0 or more")


@dataclass(frozen=True, kw_only=True)
class ObjectiveSettings:
    """The losses of fine-tuning."""

    contrasts: Sequence[str]
    """The scores that have a contrastive loss: `sum` or views; empty if the experts compete."""
    temperature: float
    contrast_loss: ContrastLoss = "softmax"
    flops: Flops | None = None
    competition: Competition | None = None
    distillation: Distillation | None = None
    dimensions: Sequence[int] = ()
    """The nested dimensions that have the contrastive loss too (Matryoshka)."""
    exclude_above: float | None = None
    """The margin above the positive's score at which a passage is left out as likely relevant; None leaves out none."""

    def check(self, views: Sequence[str]) -> None:
        """Raise ValueError if a retriever with these views cannot have these losses."""
        if bool(self.contrasts) == (self.competition is not None):
            raise ValueError("contrasts: expected some of sum and the views, or [] and a competition")
        if unknown := set(self.contrasts) - {SUM, *views}:
            raise ValueError(f"contrasts: expected {SUM} or views of {', '.join(views)}, found {min(unknown)}")
        if self.competition and self.contrast_loss != "softmax":
            raise ValueError("contrast_loss: experts compete in a softmax; expected softmax with a competition")
        if self.flops and "lexical" not in views:
            raise ValueError("flops: expected a retriever with a lexical view")
        if self.dimensions and (tuple(views) != ("dense",) or self.distillation):
            raise ValueError("matryoshka: expected a retriever with a dense view only, and no distillation")
        if self.exclude_above is not None and (self.competition or self.contrast_loss != "softmax"):
            raise ValueError("exclude_above: expected a contrast_loss of softmax, and no competition")


class Finetuning(nn.Module):
    """InfoNCE over all passages of the batch (equation 12 of query-as-context pre-training), for any similarity."""

    def __init__(self, retriever: Retriever, settings: ObjectiveSettings) -> None:
        super().__init__()
        settings.check(retriever.views)
        self.retriever, self.settings = retriever, settings
        self.observed: dict[str, Tensor] = {}
        """Statistics of the last comparison, by name, still on its device."""

    def encode(self, batch: Examples) -> tuple[Vectors, Losses]:
        """Return the representations of the queries and of their passages, and no local loss."""
        return (*self._read(batch.queries, "query"), *self._read(batch.passages, "passage")), {}

    def compare(self, vectors: Vectors, batch: Examples) -> Losses:
        """Return the losses over all queries and passages of the batch."""
        half = len(vectors) // 2
        query_order, passage_order = batch.order or (None, None)
        queries = self._restored(vectors[:half], batch.queries, "query", query_order)
        passages = self._restored(vectors[half:], batch.passages, "passage", passage_order)
        scores = self.retriever.scores(queries, passages)
        positives_Q = torch.arange(len(batch), device=vectors[0].device) * batch.group
        self.observed = _magnitudes(scores, positives_Q, self.retriever.views)
        losses = self._contrasts(scores, positives_Q, batch)
        for dim in self.settings.dimensions:
            nested = (
                truncated(side, dim, normalise=self.retriever.settings.normalises) for side in (queries, passages)
            )
            contrasts = self._contrasts(self.retriever.scores(*nested), positives_Q, batch)
            losses |= {f"{name}_{dim}": loss for name, loss in contrasts.items()}
        if self.settings.distillation:
            losses = self._distilled(losses, scores[SUM], positives_Q, batch)
        if queries.lexical is not None and passages.lexical is not None:
            losses |= self._flops(queries.lexical, passages.lexical, batch)
        return losses

    def _read(self, tokens: Tokens, role: Role) -> Vectors:
        """Encode a chunk without the columns that are padding in all its texts; return its representations."""
        representation = self.retriever(cut_to_longest(tokens), role)
        if representation.tokens is not None and self.retriever.late:
            # Chunks are concatenated, so their token vectors must have equal lengths.
            missing = self.retriever.late.augmented(tokens, role).ids.shape[1] - representation.tokens.shape[1]
            representation = replace(representation, tokens=pad(representation.tokens, (0, 0, 0, missing)))
        return _parts(representation)

    def _restored(self, parts: Vectors, tokens: Tokens, role: Role, order: Tensor | None) -> Representation:
        """Return the representation of the batch in its original order; masks are recomputed from its tokens."""
        names = [name for name, view in (("dense", "dense"), ("lexical", "lexical"), ("tokens", "late"))
                 if view in self.retriever.views]  # fmt: skip
        representation = Representation(**dict(zip(names, parts, strict=True)))
        if late := self.retriever.late:
            mask, ids = late.compared(late.augmented(tokens, role), role)
            representation = replace(representation, token_mask=mask, token_ids=ids)
        if order is None:
            return representation
        back = torch.argsort(order)
        parts_of = {name: part.index_select(0, back) for name, part in vars(representation).items() if part is not None}
        return Representation(**parts_of)

    def _contrasts(self, scores: dict[str, Tensor], positives_Q: Tensor, batch: Examples) -> Losses:
        temperature, excluded = self.settings.temperature, batch.excluded
        if self.settings.competition:
            views = {view: scores[view] for view in self.retriever.views}
            losses, statistics = competition_losses(
                views, batch.group, self.settings.competition,
                progress=batch.progress, temperature=temperature, excluded_QP=excluded,
            )  # fmt: skip
            self.observed |= statistics
            return {f"contrast_{view}": loss for view, loss in losses.items()}
        names = {name: "contrastive" if name == SUM else f"contrast_{name}" for name in self.settings.contrasts}
        if self.settings.contrast_loss == "pairwise":
            # A query's own negatives are never relevant to it, so none is excluded.
            own_QG = _own_passages(positives_Q, batch.group)
            return {
                loss: pairwise_loss(scores[name].gather(1, own_QG), temperature=temperature)
                for name, loss in names.items()
            }
        return {
            loss: contrastive_loss(
                scores[name], positives_Q, temperature=temperature,
                excluded_QP=self._excluded(scores[name], positives_Q, excluded),
            )
            for name, loss in names.items()
        }  # fmt: skip

    def _excluded(self, scores_QP: Tensor, positives_Q: Tensor, known_QP: Tensor | None) -> Tensor | None:
        """Return the passages that a softmax leaves out: those known as relevant, and those likely to be."""
        if self.settings.exclude_above is None:
            return known_QP
        likely_QP = likely_relevant(scores_QP, positives_Q, self.settings.exclude_above)
        return likely_QP if known_QP is None else likely_QP | known_QP

    def _distilled(self, contrasts: Losses, scores_QP: Tensor, positives_Q: Tensor, batch: Examples) -> Losses:
        """Return the distillation loss over each query's own passages, and the weighted contrastive losses."""
        settings = self.settings.distillation
        if settings is None or batch.teacher is None:
            raise ValueError("distillation: the batch has no scores of a teacher")
        distance = margin_loss if settings.targets == "margins" else distillation_loss
        loss = distance(
            scores_QP.gather(1, _own_passages(positives_Q, batch.group)), batch.teacher,
            temperature=self.settings.temperature, teacher_temperature=settings.teacher_temperature,
        )  # fmt: skip
        kept = {name: settings.contrast_weight * contrast for name, contrast in contrasts.items()}
        return {"distillation": loss} | (kept if settings.contrast_weight else {})

    def _flops(self, queries_QV: Tensor, passages_PV: Tensor, batch: Examples) -> Losses:
        self.observed |= {
            "nonzero_queries": mean_nonzero(queries_QV), "nonzero_passages": mean_nonzero(passages_PV)
        }  # fmt: skip
        regularisation = self.settings.flops
        if regularisation is None:
            return {}
        factor = regularisation.ramp_factor(batch.progress, batch.step_share)
        return {
            "flops_queries": factor * regularisation.queries * flops(queries_QV),
            "flops_passages": factor * regularisation.passages * flops(passages_PV),
        }


def _own_passages(positives_Q: Tensor, group: int) -> Tensor:
    """Return the columns [Q, G] of each query's own passages, its positive first."""
    return positives_Q[:, None] + torch.arange(group, device=positives_Q.device)


def _parts(representation: Representation) -> Vectors:
    return tuple(part for name in PARTS if (part := getattr(representation, name)) is not None)


def _magnitudes(scores: dict[str, Tensor], positives_Q: Tensor, views: Sequence[str]) -> dict[str, Tensor]:
    """Return the mean absolute score of positives by view; empty for a single view."""
    if len(views) < 2:
        return {}
    return {f"positive_{view}": scores[view].detach().gather(1, positives_Q[:, None]).abs().mean() for view in views}
