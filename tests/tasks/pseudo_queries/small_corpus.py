"""A corpus of twelve short passages and the settings with which a random T5 generates queries for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from storage.artifact import Artifact
from storage.rows import read_rows
from storage.tables import PseudoQueries
from tasks.pseudo_queries.generate_queries import NamedGeneration
from tests.tasks.corpora import passage

WORDS = [
    "the", "a", "of", "river", "city", "king", "old", "war", "painter", "in", "french", "born", "film", "novel",
    "island",
]  # fmt: skip


SETTINGS = NamedGeneration(
    queries_per_passage=3, prefix="the ", input_max_tokens=32, top_k=10, top_p=0.95, max_new_tokens=8, seed=42,
    shard_passages=4, batch_tokens=10_000, generator="tiny",
)  # fmt: skip


COUNT = 12


def texts(count: int = COUNT) -> list[str]:
    random = np.random.default_rng(0)
    return [" ".join(random.choice(WORDS, size=random.integers(3, 20))) for _ in range(count)]


def rows(inputs: Sequence[str]) -> list[dict[str, Any]]:
    return [passage(f"d{number}#0", text) for number, text in enumerate(inputs)]


Corpus = Callable[..., Artifact[PseudoQueries]]


def by_text(corpus: Artifact[PseudoQueries]) -> dict[str, list[str]]:
    """The queries of each text, by rank."""
    results: dict[str, list[str]] = {}
    for row in read_rows(corpus, PseudoQueries):
        assert row["rank"] == len(results.setdefault(row["passage_sha256"], []))
        results[row["passage_sha256"]].append(row["query"])
    return results


def ranked_ids(results: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """Of each row."""
    return [(row["passage_id"], row["rank"]) for row in results]


def counts(corpus: Artifact[PseudoQueries]) -> tuple[int, int]:
    """How many rows were kept and how many made."""
    results = json.loads((corpus.path / "logs" / "written.json").read_text())
    return results["kept"], results["made"]
