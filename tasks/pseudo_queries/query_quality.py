"""The quality of pseudo-queries without judgements: counts, lengths, copies, loops, languages, and the round trip.

The round trip is the rank of a query's own passage in BM25's list. The other measures show whether queries that do well
in it merely copy the passage, or are all the same.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from storage.artifact import Artifact
from storage.external.database import Database
from storage.files import write_atomically
from storage.formats.ids import share
from storage.pseudo_queries import Alongside, kept_queries
from storage.rows import read_rows, table_blocks, write_rows
from storage.settings import Seed, Settings
from storage.store.publishing import SCRATCH
from storage.tables import Passages, PseudoQueries, Quality, Queries, Run, passage_text
from tasks.pseudo_queries.language_id import Languages
from tasks.pseudo_queries.quality_counts import EXAMPLES, LONG_WORDS, Figures, round_trip, shortened
from tasks.pseudo_queries.query_text import Look, Passage
from tasks.stage import stage

ROUND_TRIP_CUTOFF = 10
COLUMNS = ("passage_id", "rank", "query", "generator", "round_trip", "relevance", "kept", "reason")
SHOWN = ("rank", "query", "generator", "round_trip", "relevance", "kept", "reason")
PASSAGE_LETTERS, QUERY_LETTERS, QUERIES_SHOWN = 2000, 300, 30  # limits of a sample

Row = dict[str, Any]


class Sampling(Settings):
    """The sample of passages whose queries are examined more closely."""

    passages: Annotated[int, Field(ge=1)]
    """The number of passages whose languages are identified and, if no filter scored all, whose round trip is taken."""
    samples: Annotated[int, Field(ge=0)]
    """The number of these passages that are shown with their queries."""
    seed: Seed
    long_words: Annotated[int, Field(ge=1)] = LONG_WORDS
    """Queries of more words are counted as too long."""


@stage(version=2, table=Queries)
def pseudo_queries_as_queries(out: Path, pseudo_queries: Artifact[PseudoQueries], *, settings: Sampling) -> None:
    """Write the pseudo-queries of sampled passages as queries for a search; ids are PASSAGE?RANK."""
    drawn = set(draw(pseudo_queries, settings))
    write_rows(out, Queries, (
        {"query_id": query_id(row), "text": row["query"]}
        for row in kept_queries(pseudo_queries) if row["passage_id"] in drawn
    ))  # fmt: skip


@stage(version=2, table=Quality)
def query_quality(
    out: Path, passages: Artifact[Passages], pseudo_queries: Artifact[PseudoQueries], run: Artifact[Run] | None,
    *, settings: Sampling,
) -> None:  # fmt: skip
    """Write `quality.json`, in one pass over both tables with memory that does not grow with them.

    The round trip is the table's column if a filter scored it; otherwise it is from `run`, BM25's run for the queries
    of `pseudo_queries_as_queries` with these settings; without a run it is null. Languages are those of the sampled
    passages. Every other measure covers all rows (`tasks.pseudo_queries.quality_counts`).
    """
    drawn = draw(pseudo_queries, settings)
    sampled, shown = set(drawn), set(drawn[: settings.samples])
    languages, samples = Languages(), dict[str, Row]()
    alongside = Alongside(read_columns(pseudo_queries, COLUMNS))
    without = total = 0
    with Database(out / SCRATCH / "database") as database:
        corpus = CorpusMeasures(database, settings.long_words)
        for passage in read_rows(passages, Passages):
            text, passage_id = passage_text(passage["title"], passage["text"]), passage["passage_id"]
            rows = alongside.rows(passage_id)
            total += 1
            without += not any(row["kept"] for row in rows)
            corpus.add(text, rows)
            if passage_id in sampled:
                languages.count(text, [row["query"] for row in rows if row["kept"]])
            if passage_id in shown:
                samples[passage_id] = sample(passage_id, text, rows)
        alongside.end()
        figures = corpus.all()
    measures = {
        "passages": total,
        "passages_without_queries": without,
        **figures,
        "languages": languages.figures(EXAMPLES),
        "samples": [samples[passage_id] for passage_id in drawn[: settings.samples]],
    }
    if measures["round_trip"] is None and run is not None:
        measures["round_trip"] = round_trip_of_run(pseudo_queries, run, sampled)
    write_atomically(out / "quality.json", json.dumps(measures, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def query_id(row: Row) -> str:
    """Return the id of a pseudo-query as a query of a search."""
    return f"{row['passage_id']}?{row['rank']}"


def draw(pseudo_queries: Artifact[PseudoQueries], settings: Sampling) -> list[str]:
    """Return the ids of sampled passages with pseudo-queries, selected and ordered by the hash of the id.

    Two versions of a corpus thus show the same passages if both have them.
    """
    ids = (row["passage_id"] for row in read_columns(pseudo_queries, ("passage_id", "query")) if row["query"])
    drawn = ((share(passage_id, str(settings.seed)), passage_id) for passage_id, _ in groupby(ids))
    return [passage_id for _, passage_id in heapq.nsmallest(settings.passages, drawn)]


def round_trip_of_run(
    pseudo_queries: Artifact[PseudoQueries], run: Artifact[Run], drawn: Collection[str]
) -> dict[str, Any] | None:
    """Return the round trip of the sampled passages' kept queries; a passage below the cutoff has rank 0."""
    kept = (row for row in kept_queries(pseudo_queries) if row["passage_id"] in drawn)
    passage_of = {query_id(row): row["passage_id"] for row in kept}
    rank_of = {
        row["query_id"]: row["rank"]
        for row in read_rows(run, Run)
        if row["rank"] <= ROUND_TRIP_CUTOFF and passage_of.get(row["query_id"]) == row["passage_id"]
    }
    ranks = Counter((rank_of.get(query, 0), True) for query in passage_of)
    return round_trip(ranks, "a draw of passages", cut=False) if passage_of else None


def read_columns(pseudo_queries: Artifact[PseudoQueries], columns: Sequence[str]) -> Iterator[Row]:
    """Yield the rows in order, with only these columns."""
    for block in table_blocks(pseudo_queries.path, PseudoQueries, columns):
        yield from block.to_pylist()


def sample(passage_id: str, text: str, rows: Sequence[Row]) -> Row:
    """Return a passage and its queries, shortened for a page."""
    queries: list[Row] = [{name: row[name] for name in SHOWN} for row in rows[:QUERIES_SHOWN]]
    for query in queries:
        query["query"] = shortened(query["query"], QUERY_LETTERS)
    return {"passage_id": passage_id, "passage": shortened(text, PASSAGE_LETTERS), "queries": queries,
            "more": max(0, len(rows) - QUERIES_SHOWN)}  # fmt: skip


class CorpusMeasures:
    """The measures of all pseudo-queries and of those of each generator."""

    def __init__(self, database: Database, long_words: int) -> None:
        self._database, self._long_words = database, long_words
        self._all = Figures(database, "distinct_queries", long_words)
        self._by: dict[str, Figures] = {}

    def add(self, text: str, rows: Sequence[Row]) -> None:
        """Count a passage and its queries."""
        passage = Passage(text)
        looks = [Look.at(row["query"], passage) if row["kept"] else None for row in rows]
        self._all.add(rows, looks)
        for name in {row["generator"] for row in rows}:
            own = [index for index, row in enumerate(rows) if row["generator"] == name]
            self._of(name).add([rows[index] for index in own], [looks[index] for index in own])

    def _of(self, generator: str) -> Figures:
        if generator not in self._by:
            self._by[generator] = Figures(self._database, f"distinct_{len(self._by)}", self._long_words)
        return self._by[generator]

    def all(self) -> dict[str, Any]:
        """Return all measures; those of each generator are under `generators`."""
        by = {name: figures.main() for name, figures in sorted(self._by.items())}
        return {**self._all.main(), **self._all.details(), "generators": by}
