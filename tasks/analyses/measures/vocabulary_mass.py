"""What distributions over a vocabulary say of texts: how much mass is on a text's own words, and on which of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.pretraining import TermCounts
from storage.errors import UserError

Values = NDArray[np.float64]
Ids = NDArray[np.int64]

BINS = 8


class Found:
    """What is known of the texts so far: sums over the vocabulary, and some numbers of each text."""

    def __init__(self, terms: TermCounts, common: float, size: int) -> None:
        self._often_V, self._common = np.zeros(size), common
        self._often_V[: len(terms.texts)] = np.asarray(terms.texts) / terms.num_texts
        self._edges = np.geomspace(1 / terms.num_texts, 1, BINS + 1)
        self._sums, self._counts = np.zeros(BINS), np.zeros(BINS, np.int64)
        self._total_V, self._entropies, self._texts = np.zeros(size), 0.0, 0
        self._of_texts: dict[str, list[float]] = {}

    def add(self, shares_V: Values, own: Ids) -> None:
        """A text's distribution, and the pieces that it has, each once."""
        if not len(own):
            return
        self._texts += 1
        self._total_V += shares_V
        self._entropies += entropy(shares_V)
        mass, often = shares_V[own], self._often_V[own]
        common = often >= self._common
        self._note("on_own_words", float(mass.sum()))
        self._note("own_among_top", float(np.isin(np.argsort(-shares_V, kind="stable")[: len(own)], own).mean()))
        self._note("common_mass", float(mass[common].sum() / mass.sum()))
        self._note("common_words", float(common.mean()))
        self._note("common_difference", float(mass[common].sum() / mass.sum() - common.mean()))
        if (correlation := rank_correlation(mass, often)) is not None:
            self._note("rank_correlation", correlation)
        bins = np.clip(np.searchsorted(self._edges, often, side="right") - 1, 0, BINS - 1)
        np.add.at(self._sums, bins, mass / mass.mean())
        np.add.at(self._counts, bins, 1)

    def _note(self, name: str, value: float) -> None:
        self._of_texts.setdefault(name, []).append(value)

    def figures(self) -> dict[str, Any]:
        """Means over texts, how much the distributions tell texts apart, and mass by how often a word occurs."""
        if self._texts < 2:
            raise UserError(f"word_distribution: expected two texts or more that have words, found {self._texts}")
        information = entropy(self._total_V / self._texts) - self._entropies / self._texts
        return {
            "means": {name: mean(values) for name, values in sorted(self._of_texts.items())},
            "told_apart": math.exp(information),
            "profile": [
                {"from": float(low), "to": float(high), "words": int(count), "mass": float(total / count)}
                for low, high, total, count in zip(
                    self._edges[:-1], self._edges[1:], self._sums, self._counts, strict=True
                )
                if count
            ],
        }


def entropy(shares: Values) -> float:
    """-sum p log p, in nats."""
    kept = shares[shares > 0]
    return float(-(kept * np.log(kept)).sum())


def rank_correlation(mass: Values, often: Values) -> float | None:
    """Spearman's, of a text's words; None where there are fewer than three, or all are equal."""
    from scipy.stats import spearmanr

    if len(mass) < 3 or np.ptp(mass) == 0 or np.ptp(often) == 0:
        return None
    return float(spearmanr(mass, often).statistic)


def mean(values: Sequence[float]) -> dict[str, Any]:
    """The mean over texts with Student's interval of 95 %; none where there is one text."""
    from scipy.stats import t

    array, texts = np.asarray(values), len(values)
    half = float(t.ppf(0.975, texts - 1) * array.std(ddof=1) / math.sqrt(texts)) if texts > 1 else None
    middle = float(array.mean())
    return {"mean": middle, "interval": None if half is None else [middle - half, middle + half], "texts": texts}
