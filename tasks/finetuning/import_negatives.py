"""Hard negatives that others mined become a round's negatives, checked against passages and positives.

A database joins the file's negatives with the passages and sorts them by query, in a memory that does not grow with
either; the ids of the train queries are in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.external.database import Database
from storage.imports import negative_files
from storage.rows import in_one_chunk, read_table, write_rows
from storage.settings import Seed, Settings
from storage.store.publishing import SCRATCH
from storage.tables import Negatives, Passages, Positives, Queries
from tasks.finetuning.candidates import sample
from tasks.finetuning.negatives_join import COUNTS, GIVEN, LABELS, LOCATE, MISSING, RANK, RANKED, RELEVANT, UNKNOWN
from tasks.runtime.progress import progress
from tasks.runtime.shard import part
from tasks.session import print_line
from tasks.stage import stage

MOST_PARTS = 256
QUERIES_PER_PART = 1_000  # at least
EXAMPLES = 3

Row = dict[str, Any]


class ImportedNegatives(Settings):
    """The negatives of a file that a round learns from, instead of mining."""

    file: str = Field(exclude=True)
    """Its path (`storage.imports.negative_files` has the formats). The key has the file's content, not its path."""
    systems: list[str] | None
    """The systems whose lists are read; null for all. Triples have no system."""
    per_system: int | None = Field(gt=0)
    """The number of negatives from each system that no earlier system has; null for all."""
    margin: float | None = Field(ge=0)
    """The least distance of a negative's cross-encoder score below the query's lowest positive; null for any."""
    per_query: int | None = Field(gt=0)
    """The number of negatives sampled for a query; null keeps all."""
    seed: Seed


@stage(version=1, table=Negatives)
def import_negatives(
    out: Path, passages: Artifact[Passages], queries: Artifact[Queries], positives: Artifact[Positives], file: Source,
    *, settings: ImportedNegatives,
) -> None:  # fmt: skip
    """Write the file's negatives of each query that has a positive, in the queries' order.

    A `rank` is that in the system's list, from 1, as far as that is in the passages and not relevant; a score is a
    cross-encoder's, NaN where the file has none. No passage of a relevant document is a negative; an id that is a
    document's means its first passage. Raises UserError if a row is invalid or no negative remains.
    """
    labels = read_table(positives, Positives, ["query_id", "passage_id"])
    train = in_one_chunk(read_table(queries, Queries, ["query_id"]))["query_id"].combine_chunks()
    train = train.filter(pc.is_in(train, value_set=labels["query_id"].combine_chunks()))
    size = max(QUERIES_PER_PART, -(-len(train) // MOST_PARTS))
    seen = _Seen(file.path, settings)
    with Database(out / SCRATCH / "database") as database:
        database.view("passages", passages, Passages)
        database.create("given", GIVEN, _blocks(file.path, train, seen))
        for statement in LOCATE:
            database.execute(statement)
        seen.note_passages(database)
        seen.check(passages)
        database.create("labels", LABELS, [_labels(labels, train)])
        database.execute(RELEVANT)
        for row in database.rows(MISSING):
            raise UserError(
                f"{positives.reference}: passage {row['passage_id']!r} is not in the corpus; label the positives again"
            )
        for statement in RANK:
            database.execute(statement)
        chosen = _Chosen(database.rows(RANKED, settings.margin, settings.margin), settings)
        for number, first in enumerate(range(0, len(train), size)):
            write_rows(out, Negatives, chosen.of(train[first : first + size].to_pylist(), first), part(number))
    if chosen.without == len(train):
        raise UserError(f"{file.path}: no negative is left; all are relevant, or not below the margin")
    if chosen.without:
        print_line(f"{file.path}: has no negatives for {chosen.without:,} of {len(train):,} queries")


def choose(rows: Sequence[int], systems: Sequence[int], per_system: int | None) -> list[int]:
    """Return the indices of the negatives to keep for a query: each passage once, at most `per_system` of a system.

    As BEIR's models choose their training data (`train_msmarco_v3.py` of https://github.com/beir-cellar/beir).
    """
    taken, counts, chosen = set[int](), Counter[int](), list[int]()
    for number, (row, system) in enumerate(zip(rows, systems, strict=True)):
        if row not in taken and counts[system] != per_system:
            taken.add(row)
            counts[system] += 1
            chosen.append(number)
    return chosen


@dataclass
class _Seen:
    """Counts of a file's negatives, for the message when few of them can be used."""

    path: Path
    settings: ImportedNegatives
    counts: Counter[str] = field(default_factory=Counter)
    systems: list[str] = field(default_factory=list)
    examples: dict[str, list[str]] = field(default_factory=lambda: {"queries": [], "passages": []})

    def note_queries(self, ids: pa.ChunkedArray, known: pa.ChunkedArray) -> None:
        """Count the negatives and those of train queries, and keep the first queries that are no train queries."""
        self.counts.update({"queries": len(ids), "known queries": pc.sum(known).as_py() or 0})
        if len(examples := self.examples["queries"]) < EXAMPLES:
            unknown = pc.unique(ids.filter(pc.invert(known))).to_pylist()
            examples += [query for query in unknown if query not in examples][: EXAMPLES - len(examples)]

    def note_passages(self, database: Database) -> None:
        """Count the negatives and those whose passages are known, and keep the first ids that are not."""
        (counts,) = database.rows(COUNTS)
        self.counts.update({"passages": counts["passages"], "known passages": counts["known"]})
        self.examples["passages"] = [row["given_id"] for row in database.rows(UNKNOWN, EXAMPLES)]

    def check(self, passages: Artifact[Passages]) -> None:
        """Raise UserError where nothing can be used; print how many negatives are left out."""
        if missing := set(self.settings.systems or ()) - set(self.systems):
            there = ", ".join(filter(None, self.systems)) or "none"
            raise UserError(f"{self.path}: given.systems: no list of {min(missing)!r}; the systems are {there}")
        if not self.counts["queries"]:
            raise UserError(f"{self.path}: has no negatives; {negative_files.EXPECTED}")
        reasons = {
            "queries": "no train query with a positive; give the file of the collection's train split",
            "passages": f"neither passages nor documents of {passages.reference}; give the file of the same collection",
        }
        for what, reason in reasons.items():
            if not self.counts[f"known {what}"]:
                raise UserError(f"{self.path}: its {what} ({', '.join(self.examples[what])}, …) are {reason}")
        if unknown := self.counts["passages"] - self.counts["known passages"]:
            named = ", ".join(self.examples["passages"])
            print_line(f"{self.path}: left out {unknown:,} of {self.counts['passages']:,} negatives, whose passages "
                 f"are not in {passages.reference}, such as {named}")  # fmt: skip


def _blocks(path: Path, train: pa.Array, seen: _Seen) -> Iterator[pa.Table]:
    """Yield the file's negatives of train queries in its order, as tables of GIVEN."""
    settings, number = seen.settings, 0
    for rows in progress(negative_files.read(path), what="reading negatives", unit="blocks"):
        systems = pc.unique(rows["system"]).to_pylist()
        seen.systems += [system for system in systems if system not in seen.systems]
        queries = pc.index_in(rows["query_id"], value_set=train)
        seen.note_queries(rows["query_id"], pc.is_valid(queries))
        wanted = pc.is_valid(queries)
        if settings.systems is not None:
            wanted = pc.and_(wanted, pc.is_in(rows["system"], value_set=pa.array(settings.systems, pa.string())))
        rows, queries = rows.filter(wanted), queries.filter(wanted)
        if settings.margin is not None and (unscored := rows.filter(pc.is_nan(rows["score"]))):
            raise UserError(
                f"{path}: given.margin: query {unscored['query_id'][0]} has negatives without a cross-encoder's score; "
                "take the file that has scores (https://sbert.net/datasets/msmarco-hard-negatives.jsonl.gz), or null"
            )
        system_numbers = pc.index_in(rows["system"], value_set=pa.array(seen.systems, pa.string())).cast(pa.int16())
        numbers = pa.array(range(number, number + len(rows)), pa.int64())
        columns = [numbers, queries, rows["passage_id"], system_numbers, rows["score"], rows["positive"]]
        yield pa.table(columns, schema=GIVEN)
        number += len(rows)


def _labels(labels: pa.Table, train: pa.Array) -> pa.Table:
    """Return the labels of train queries as a table of LABELS."""
    labels = labels.filter(pc.is_in(labels["query_id"], value_set=train))
    numbers = pa.array(range(len(labels)), pa.int64())
    queries = pc.index_in(labels["query_id"], value_set=train)
    return pa.table([numbers, queries, labels["passage_id"]], schema=LABELS)


class _Chosen:
    """The negatives of each query, as rows of the table; `ranked` has them in the order of the queries."""

    def __init__(self, ranked: Iterator[Row], settings: ImportedNegatives) -> None:
        self._groups, self._settings = groupby(ranked, key=itemgetter("query")), settings
        self._next = next(self._groups, None)
        self.without = 0
        """The number of queries that had none."""

    def of(self, queries: Sequence[str], first: int) -> Iterator[Row]:
        """Yield the rows of queries from number `first` on, by rank and then by system."""
        for number, query in enumerate(queries, first):
            rows: list[Row] = []
            if self._next and self._next[0] == number:
                rows = list(self._next[1])
                self._next = next(self._groups, None)
            passage_rows, systems = ([row[name] for row in rows] for name in ("row", "system"))
            chosen = choose(passage_rows, systems, self._settings.per_system)
            chosen.sort(key=lambda index: rows[index]["rank"])  # stable
            self.without += not chosen
            for index in sample(chosen, self._settings.per_query, f"{self._settings.seed} {query}"):
                row = rows[index]
                yield {"query_id": query, **{name: row[name] for name in ("passage_id", "rank", "score")}}
