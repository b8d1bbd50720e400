"""Runs as tests write them, and a slow reference for the score that a run gives a passage."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

RankedLists = Mapping[str, Sequence[tuple[str, float]]]
"""A run: each query's passages and scores, best first."""


def in_run_order(scores: Mapping[str, float]) -> list[tuple[str, float]]:
    """trec_eval's order: float32 scores falling, equal ones by descending id."""
    rounded = [(passage, float(np.float32(score))) for passage, score in scores.items()]
    return sorted(rounded, key=lambda hit: (hit[1], hit[0].encode()), reverse=True)


def run_rows(lists: RankedLists) -> list[dict[str, Any]]:
    return [
        {"query_id": query, "passage_id": passage, "view": "dense", "rank": rank, "score": score}
        for query, ranked in lists.items()
        for rank, (passage, score) in enumerate(ranked, start=1)
    ]


def one_score(kind: str, passage: str, beginning: Sequence[tuple[str, float]]) -> float:
    """Return the score that one run gives a passage, from the first ranks of its list."""
    scores, missing = dict(beginning), passage not in dict(beginning)
    if not beginning:
        return 0.0
    if kind in ("sum", "linear"):
        return beginning[-1][1] if missing else scores[passage]
    if missing:
        return 0.0
    if kind.endswith("rr"):
        return 1 / (1 + [name for name, _ in beginning].index(passage))
    low, high = min(scores.values()), max(scores.values())
    return 1.0 if low == high else (scores[passage] - low) / (high - low)
