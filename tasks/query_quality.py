"""How good the pseudo-queries are, without judgements: does a query lead back to its own passage?

BM25 ranks the passages for a draw of the pseudo-queries (the round trip); the other figures tell
whether queries that do well merely copy, or are all the same.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Collection, Iterator
from hashlib import blake2b
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from storage.artifact import Artifact
from storage.files import write_atomically
from storage.rows import num_rows, read_rows, write_rows
from storage.settings import Settings
from storage.tables import Passages, PseudoQueries, Queries, Run, Table, passage_text
from tasks.pseudo_queries import kept_queries
from tasks.stage import stage

ROUND_TRIP_CUTOFF = 10
WORD = re.compile(r"\w+")

Row = dict[str, Any]


class Quality(Table):
    """quality.json."""


class Sampling(Settings):
    """Which pseudo-queries are looked at more closely."""

    passages: Annotated[int, Field(ge=1)]
    """Passages whose queries make the round trip."""
    samples: Annotated[int, Field(ge=0)]
    """Of these, how many are shown with their queries."""
    seed: int


@stage(version=1, table=Queries)
def pseudo_queries_as_queries(out: Path, pseudo_queries: Artifact[PseudoQueries], *, settings: Sampling) -> None:
    """Write the pseudo-queries of a draw of passages as queries to search for; ids are PASSAGE?RANK."""
    drawn = set(draw(pseudo_queries, settings))
    write_rows(out, Queries, (
        {"query_id": query_id(row), "text": row["query"]}
        for row in kept_queries(pseudo_queries) if row["passage_id"] in drawn
    ))  # fmt: skip


@stage(version=1, table=Quality)
def query_quality(
    out: Path, passages: Artifact[Passages], pseudo_queries: Artifact[PseudoQueries], run: Artifact[Run],
    *, settings: Sampling,
) -> None:  # fmt: skip
    """Write `quality.json`. `run` is BM25's for what `pseudo_queries_as_queries` draws with these settings.

    `round_trip` is a share of the queries drawn, the other shares are of all; `words` tells how many
    queries have how many words.
    """
    drawn = draw(pseudo_queries, settings)
    of_all = Figures()
    samples: dict[str, Row] = {}
    for passage, queries in with_queries(passages, pseudo_queries):
        text = passage_text(passage["title"], passage["text"])
        of_all.count(text, queries)
        if passage["passage_id"] in drawn[: settings.samples]:
            samples[passage["passage_id"]] = {"passage_id": passage["passage_id"], "passage": text, "queries": queries}
    figures = {
        "round_trip": round_trip(pseudo_queries, run, set(drawn)),
        **of_all.shares(),
        "queries": of_all.queries,
        "passages_without_queries": num_rows(passages.path) - of_all.passages,
        "words": {str(words): count for words, count in sorted(of_all.lengths.items())},
        "samples": [samples[passage_id] for passage_id in drawn[: settings.samples]],
    }
    write_atomically(out / "quality.json", json.dumps(figures, indent=1, ensure_ascii=False))


def query_id(row: Row) -> str:
    """What a pseudo-query is called when it is searched for."""
    return f"{row['passage_id']}?{row['rank']}"


def draw(pseudo_queries: Artifact[PseudoQueries], settings: Sampling) -> list[str]:
    """Passages that have pseudo-queries, drawn at random, in the order of the draw."""
    ids = list(dict.fromkeys(row["passage_id"] for row in kept_queries(pseudo_queries)))
    return random.Random(settings.seed).sample(ids, min(settings.passages, len(ids)))


def round_trip(pseudo_queries: Artifact[PseudoQueries], run: Artifact[Run], drawn: Collection[str]) -> float:
    """The share of the drawn passages' queries whose own passage is in the run's first ranks."""
    asked = {query_id(row): row["passage_id"] for row in kept_queries(pseudo_queries) if row["passage_id"] in drawn}
    found = {
        row["query_id"]
        for row in read_rows(run, Run)
        if row["rank"] <= ROUND_TRIP_CUTOFF and asked.get(row["query_id"]) == row["passage_id"]
    }
    return len(found) / len(asked)


def with_queries(
    passages: Artifact[Passages], pseudo_queries: Artifact[PseudoQueries]
) -> Iterator[tuple[Row, list[str]]]:
    """Each passage that has pseudo-queries, and these by rank; both tables are in the passages' order."""
    groups = groupby(kept_queries(pseudo_queries), key=itemgetter("passage_id"))
    waiting = next(groups, None)
    for passage in read_rows(passages, Passages):
        if waiting is not None and waiting[0] == passage["passage_id"]:
            yield passage, [row["query"] for row in sorted(waiting[1], key=itemgetter("rank"))]
            waiting = next(groups, None)
    if waiting is not None:
        raise ValueError(f"the pseudo-queries of {waiting[0]} are out of the passages' order, or of other passages")


class Figures:
    """Counts over all pseudo-queries. Words are runs of letters and digits, whatever their case."""

    def __init__(self) -> None:
        self.passages = self.queries = self.copied = self.in_passage = 0
        self.lengths: Counter[int] = Counter()
        self._seen: set[bytes] = set()  # hashes: the texts of a large collection would fill the memory

    def count(self, passage: str, queries: list[str]) -> None:
        """Add a passage's queries."""
        words = set(words_of(passage))
        texts = [words_of(query) for query in queries]
        self.passages += 1
        self.queries += len(queries)
        self.in_passage += len({tuple(text) for text in texts})
        for text in texts:
            self.lengths[len(text)] += 1
            self.copied += sum(word in words for word in text)
            self._seen.add(blake2b(" ".join(text).encode(), digest_size=8).digest())

    def shares(self) -> dict[str, float]:
        """What the counts say of the queries as a whole."""
        num_words = sum(words * count for words, count in self.lengths.items())
        return {
            "distinct_share": len(self._seen) / self.queries,
            "distinct_share_in_passage": self.in_passage / self.queries,
            "copied_share": self.copied / max(1, num_words),
            "mean_words": num_words / self.queries,
        }


def words_of(text: str) -> list[str]:
    """Its words, in lower case."""
    return WORD.findall(text.lower())
