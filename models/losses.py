"""Losses as functions of scores or logits: independent of the model, the similarity and the device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax, mse_loss, softmax, softplus


def masked_lm_loss(logits_NV: Tensor, labels_N: Tensor) -> Tensor:
    """Return the mean cross-entropy over N masked positions; without positions it is 0 with a gradient of 0.

    Equations 4, 6 and 10 of query-as-context pre-training, which print a sum with a sign too many; the mean is that of
    the released code.
    """
    if not len(labels_N):
        return logits_NV.sum()
    return cross_entropy(logits_NV.float(), labels_N)


def recovery_loss(
    vocabulary: Callable[[Tensor], Tensor], hidden_BLH: Tensor, labels_BL: Tensor, labelled_N: Tensor
) -> Tensor:
    """Return the MLM loss of hidden states; the vocabulary head is applied to the labelled flat positions only."""
    hidden_NH = hidden_BLH.flatten(0, -2).index_select(0, labelled_N)
    return masked_lm_loss(vocabulary(hidden_NH), labels_BL.flatten().index_select(0, labelled_N))


def contrastive_losses(
    scores_QP: Tensor, positives_Q: Tensor, *, temperature: float = 1.0, excluded_QP: Tensor | None = None
) -> Tensor:
    """Return InfoNCE for each query [Q]: the negative log-likelihood of its positive among the batch's passages.

    `excluded_QP` is True where a passage is relevant to a query but is not its positive here: the softmax skips it.
    """
    scores_QP = scores_QP.float() / temperature
    if excluded_QP is not None:
        scores_QP = scores_QP.masked_fill(excluded_QP, float("-inf"))
    return cross_entropy(scores_QP, positives_Q, reduction="none")


def contrastive_loss(
    scores_QP: Tensor, positives_Q: Tensor, *, temperature: float = 1.0, excluded_QP: Tensor | None = None
) -> Tensor:
    """Return the mean of `contrastive_losses` (equation 12 of query-as-context pre-training)."""
    return contrastive_losses(scores_QP, positives_Q, temperature=temperature, excluded_QP=excluded_QP).mean()


def likely_relevant(scores_QP: Tensor, positives_Q: Tensor, margin: float) -> Tensor:
    """Return a mask [Q, P], True where a passage scores above a query's positive by more than the margin.

    Such a passage may be a false negative, so that a softmax can leave it out (Zhang et al. 2025, Qwen3 Embedding,
    section 3, where the margin is 0.1). The positive itself is never left out, whatever the rounding. There is no
    gradient.
    """
    scores_QP = scores_QP.detach().float()
    above_QP = scores_QP > scores_QP.gather(1, positives_Q[:, None]) + margin
    return above_QP.scatter(1, positives_Q[:, None], torch.zeros_like(above_QP[:, :1]))


def pairwise_loss(scores_QG: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Return the mean of -log sigmoid(s+ - s-) over queries and their own negatives; column 0 has the positives.

    It is the negative log-likelihood of the positive in each pair of positive and negative, as in STAR (Zhan et al.
    2021), which the contrastive auto-encoder follows in its "pairwise loss" (section 4.1.3). Passages of other queries
    take no part.
    """
    scores_QG = scores_QG.float() / temperature
    return softplus(scores_QG[:, 1:] - scores_QG[:, :1]).mean()


def distillation_loss(
    scores_QG: Tensor, teacher_QG: Tensor, *, temperature: float = 1.0, teacher_temperature: float = 1.0
) -> Tensor:
    """Return the cross-entropy of the teacher's and the model's softmax over each query's passages (DupMAE, eq. 15).

    It is the Kullback-Leibler divergence plus the teacher's entropy, which is constant: the gradients are equal.
    """
    target_QG = softmax(teacher_QG.float() / teacher_temperature, dim=1)
    return -(target_QG * log_softmax(scores_QG.float() / temperature, dim=1)).sum(1).mean()


def margin_loss(
    scores_QG: Tensor, teacher_QG: Tensor, *, temperature: float = 1.0, teacher_temperature: float = 1.0
) -> Tensor:
    """Return the mean squared difference of the model's and the teacher's margins of a positive over its negatives.

    MarginMSE (Hofstätter et al. 2020, Improving Efficient Neural Ranking Models with Cross-Architecture Knowledge
    Distillation), with which GPL adapts retrievers (Wang et al. 2022). Column 0 has the positives; a margin is a
    difference of scores, each divided by its temperature.
    """
    scores_QG, teacher_QG = scores_QG.float() / temperature, teacher_QG.float() / teacher_temperature
    return mse_loss(scores_QG[:, :1] - scores_QG[:, 1:], teacher_QG[:, :1] - teacher_QG[:, 1:])


def partner_losses(scores_NN: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Return the negative log-likelihood [N] of each text's partner among the others; rows 2k, 2k+1 are partners."""
    size = len(scores_NN)
    scores_NN = scores_NN.float() / temperature
    scores_NN = scores_NN.masked_fill(torch.eye(size, dtype=torch.bool, device=scores_NN.device), float("-inf"))
    return cross_entropy(scores_NN, torch.arange(size, device=scores_NN.device) ^ 1, reduction="none")


def partner_contrast(scores_NN: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Return the mean of `partner_losses`: InfoNCE with N - 2 negatives per text.

    Equation 5 of query-as-context pre-training (coCondenser).
    """
    return partner_losses(scores_NN, temperature=temperature).mean()
