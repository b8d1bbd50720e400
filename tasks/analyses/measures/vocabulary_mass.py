"""Distributions over a vocabulary: the mass on the tokens of a text, and on common and rare ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.pretraining import TermCounts
from storage.errors import UserError

BINS = 8


class VocabularyMass:
    """Running statistics over texts: sums over the vocabulary, and some numbers for each text."""

    def __init__(self, terms: TermCounts, common: float, size: int) -> None:
        self._text_share_V, self._common = np.zeros(size), common
        frequency = np.asarray(terms.document_frequency)
        self._text_share_V[: len(frequency)] = frequency / terms.num_texts
        self._edges = np.geomspace(1 / terms.num_texts, 1, BINS + 1)
        self._sums, self._counts = np.zeros(BINS), np.zeros(BINS, np.int64)
        self._sum_V, self._entropies, self._texts = np.zeros(size), 0.0, 0
        self._values: dict[str, list[float]] = {}

    def add(self, shares_V: NDArray[np.float64], own: NDArray[np.int64]) -> None:
        """Add a text's distribution; `own` are the distinct tokens of the text."""
        if not len(own):
            return
        self._texts += 1
        self._sum_V += shares_V
        self._entropies += entropy(shares_V)
        mass, text_shares = shares_V[own], self._text_share_V[own]
        common = text_shares >= self._common
        self._note("on_own_words", float(mass.sum()))
        self._note("own_among_top", float(np.isin(np.argsort(-shares_V, kind="stable")[: len(own)], own).mean()))
        self._note("common_mass", float(mass[common].sum() / mass.sum()))
        self._note("common_words", float(common.mean()))
        self._note("common_difference", float(mass[common].sum() / mass.sum() - common.mean()))
        if (correlation := rank_correlation(mass, text_shares)) is not None:
            self._note("rank_correlation", correlation)
        bins = np.clip(np.searchsorted(self._edges, text_shares, side="right") - 1, 0, BINS - 1)
        np.add.at(self._sums, bins, mass / mass.mean())
        np.add.at(self._counts, bins, 1)

    def _note(self, name: str, value: float) -> None:
        self._values.setdefault(name, []).append(value)

    def statistics(self) -> dict[str, Any]:
        """Return means over texts, the effective number of distinguished texts, and mass by document frequency."""
        if self._texts < 2:
            raise UserError(f"word_distribution: expected two texts or more that have words, found {self._texts}")
        information = entropy(self._sum_V / self._texts) - self._entropies / self._texts
        return {
            "means": {name: mean(values) for name, values in sorted(self._values.items())},
            "told_apart": math.exp(information),
            "profile": [
                {"from": float(low), "to": float(high), "words": int(count), "mass": float(total / count)}
                for low, high, total, count in zip(
                    self._edges[:-1], self._edges[1:], self._sums, self._counts, strict=True
                )
                if count
            ],
        }


def entropy(shares: NDArray[np.float64]) -> float:
    """Return -sum p log p, in nats."""
    positive = shares[shares > 0]
    return float(-(positive * np.log(positive)).sum())


def rank_correlation(mass: NDArray[np.float64], text_shares: NDArray[np.float64]) -> float | None:
    """Return Spearman's rank correlation over a text's tokens; None for fewer than three tokens, or equal values."""
    from scipy.stats import spearmanr

    if len(mass) < 3 or np.ptp(mass) == 0 or np.ptp(text_shares) == 0:
        return None
    return float(spearmanr(mass, text_shares).statistic)


def mean(values: Sequence[float]) -> dict[str, Any]:
    """Return the mean over texts with its 95 % interval by Student's t; no interval for one text."""
    from scipy.stats import t

    array, texts = np.asarray(values), len(values)
    half = float(t.ppf(0.975, texts - 1) * array.std(ddof=1) / math.sqrt(texts)) if texts > 1 else None
    center = float(array.mean())
    return {"mean": center, "interval": None if half is None else [center - half, center + half], "texts": texts}
