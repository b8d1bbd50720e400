"""CAME: a mixture of experts with private layers above shared layers, which compete for the queries of a batch.

Queries differ in the kind of match they need: words, phrases or meaning. A lexical, a local (here `late`) and a global
(here `dense`) expert therefore share the lower layers of one encoder. In the first phase all experts learn from every
query equally; in the second an expert learns most from the queries whose positive it ranks best.

Cai et al. 2023, CAME: Competitively Learning a Mixture-of-Experts Model for First-stage Retrieval, sections 3.2, 3.3.

Shape suffixes: B batch, L length, H hidden, N real tokens, Q queries, P passages, E views.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import softmax

from models.layers.backbone import Backbone
from models.layers.unpadding import Packing
from models.losses import contrastive_losses
from models.objective import Losses
from models.settings import VALIDATED
from models.tokens import Tokens

OWNER_ORDER = ("dense", "late", "lexical")
"""The first of these views that a model has uses the encoder's own upper layers, so its folder opens as that expert."""


@dataclass(frozen=True, kw_only=True)
class Competition:
    """The two phases of training: standardised learning (equation 9), then competition (equations 10 and 11)."""

    __pydantic_config__: ClassVar[dict[str, Any]] = VALIDATED

    temperature: float
    """Tau: the lower, the larger the weight of the best expert."""
    scope: Literal["batch", "group"]
    """The passages among which a positive is ranked: all of the batch, or the query's own group."""
    standardised: float
    """The share of the steps, from the first, in which all weights are 1; 0 for none, as on hard negatives."""
    scale: float
    """The sum of a query's weights in competition: 1 printed; the number of experts keeps the losses' scale."""

    def __post_init__(self) -> None:
        if not (self.temperature > 0 and self.scale > 0):
            raise ValueError("competition: expected a temperature and a scale above 0")
        if not 0 <= self.standardised <= 1:
            raise ValueError("competition: expected standardised, a share of the steps, from 0 to 1")


class Experts(nn.Module):
    """The private layers of each view, above the shared ones (section 3.2).

    One view, the owner, has the encoder's own upper layers. The parameters here are copies of them for the other views.
    """

    def __init__(self, model: Backbone, views: Sequence[str], shared_layers: int) -> None:
        super().__init__()
        layers = model.layers
        if not 0 <= shared_layers <= len(layers):
            raise ValueError(f"shared_layers: expected 0 to {len(layers)}, the model's layers, found {shared_layers}")
        self.views, self.shared_layers = tuple(views), shared_layers
        owner = min(views, key=OWNER_ORDER.index)
        self.private = nn.ModuleDict()
        for view in views:
            if view != owner and shared_layers < len(layers):
                upper = {str(number): layers[number] for number in range(shared_layers, len(layers))}
                self.private[view] = nn.ModuleDict(copy.deepcopy(upper))

    def forward(self, model: Backbone, tokens: Tokens) -> dict[str, Tensor]:
        """Return the last hidden states [B, L, H] by view; the shared layers run once (equations 2 to 6)."""
        packing = Packing(tokens.mask, unattended_BL=tokens.unattended, positions_N=tokens.positions)
        embedded_NH = packing.packed(model.embed(tokens.ids))
        shared_NH = model.run(model.layers[: self.shared_layers], embedded_NH, packing)

        def upper(layers: Iterable[nn.Module]) -> Tensor:
            return packing.padded(model.final_norm(model.run(layers, shared_NH, packing)))

        own_BLH = upper(model.layers[self.shared_layers :])
        private = {view: upper(cast(nn.ModuleDict, layers).values()) for view, layers in self.private.items()}
        return {view: private.get(view, own_BLH) for view in self.views}


def competition_losses(
    scores: Mapping[str, Tensor], group: int, settings: Competition, *, progress: float, temperature: float,
    excluded_QP: Tensor | None,
) -> tuple[Losses, dict[str, Tensor]]:  # fmt: skip
    """Return the contrastive loss of each view's scores [Q, P], weighted by query, and statistics of the weights.

    Each query has `group` consecutive passages, its positive first. While `progress` is below the standardised share
    of the training every weight is 1 (equation 9); afterwards the views compete (equations 10, 11). `temperature` is
    that of the contrastive loss. Excluded passages count neither in losses nor in ranks.
    """
    first_QP = next(iter(scores.values()))
    positives_Q = torch.arange(len(first_QP), device=first_QP.device) * group
    ranked_QP = _ranked_passages(first_QP, positives_Q, group, settings.scope, excluded_QP)
    ranks_QE = torch.stack([_ranks(scores_QP, positives_Q, ranked_QP) for scores_QP in scores.values()], dim=1)
    weights_QE = settings.scale * softmax(1 / ranks_QE / settings.temperature, dim=1)
    if progress < settings.standardised:
        weights_QE = torch.ones_like(weights_QE)
    losses: Losses = {}
    for (view, scores_QP), weights_Q in zip(scores.items(), weights_QE.unbind(1), strict=True):
        losses_Q = contrastive_losses(scores_QP, positives_Q, temperature=temperature, excluded_QP=excluded_QP)
        losses[view] = (weights_Q * losses_Q).mean()
    return losses, _statistics(tuple(scores), ranks_QE, weights_QE)


def _ranked_passages(
    scores_QP: Tensor, positives_Q: Tensor, group: int, scope: str, excluded_QP: Tensor | None
) -> Tensor:
    """Return a mask [Q, P], True at the passages among which a query's positive is ranked."""
    ranked_QP = torch.ones_like(scores_QP, dtype=torch.bool) if excluded_QP is None else ~excluded_QP
    if scope == "batch":
        return ranked_QP
    groups_P = torch.arange(scores_QP.shape[1], device=scores_QP.device) // group
    return ranked_QP & (groups_P == (positives_Q // group)[:, None])


def _ranks(scores_QP: Tensor, positives_Q: Tensor, ranked_QP: Tensor) -> Tensor:
    """Return the rank of each query's positive [Q]: 1 plus the number of passages with a larger score; no gradient."""
    better_QP = scores_QP > scores_QP.gather(1, positives_Q[:, None])
    return 1 + (better_QP & ranked_QP).sum(1)


def _statistics(views: Sequence[str], ranks_QE: Tensor, weights_QE: Tensor) -> dict[str, Tensor]:
    """Return means over the batch's queries: weights and shares of wins by view, the weights' entropy, and ties."""
    best_QE = ranks_QE == ranks_QE.amin(1, keepdim=True)
    num_best_Q1 = best_QE.sum(1, keepdim=True)
    shares_QE = weights_QE / weights_QE.sum(1, keepdim=True)
    entropy, ties = torch.special.entr(shares_QE).sum(1).mean(), (num_best_Q1 > 1).float().mean()
    names = [*(f"weight_{view}" for view in views), *(f"wins_{view}" for view in views), "entropy", "ties"]
    values = torch.cat([weights_QE.mean(0), (best_QE / num_best_Q1).mean(0), torch.stack([entropy, ties])])
    return dict(zip(names, values.unbind(), strict=True))
