"""Hard negatives that others mined become a round's negatives, checked against passages and positives.

The file's negatives are scattered over piles on disk by the place of their query, and each pile is chosen from by
itself. In memory are the ids of passages and of their documents, as in mining, and one pile, which is about a 256th of
the file.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.external.hash_partitions import Piles
from storage.external.id_index import Corpus, Numbers
from storage.imports import negative_files
from storage.rows import in_one_chunk, read_table, write_rows
from storage.settings import Seed, Settings
from storage.store.store import SCRATCH
from storage.tables import Negatives, Passages, Positives, Queries
from tasks.finetuning.candidates import sample
from tasks.retrieval.ranking import ranges
from tasks.runtime.progress import progress
from tasks.runtime.shard import part
from tasks.session import print_line
from tasks.stage import stage

PILES = 256
QUERIES_PER_PILE = 1_000  # at least
EXAMPLES = 3

PLACED = pa.schema([
    ("query", pa.int32()), ("place", pa.int64()), ("system", pa.int16()), ("score", pa.float64()),
    ("positive", pa.float64()),
])  # fmt: skip


class Given(Settings):
    """Which negatives of a file a round learns from, in place of mining."""

    file: str = Field(exclude=True)
    """Its path (`storage.imports.negative_files` has the formats); a key knows the file by what is in it."""
    systems: list[str] | None
    """Whose lists are read; null for all. Triples are of no system."""
    per_system: int | None = Field(gt=0)
    """Of each system's list the first so many that no earlier system gave; null for all."""
    margin: float | None = Field(ge=0)
    """How far below the lowest of the query's positives a cross-encoder scores a negative at least; null for any."""
    per_query: int | None = Field(gt=0)
    """How many of these are drawn for a query; null keeps all."""
    seed: Seed


@stage(version=1, table=Negatives)
def import_negatives(
    out: Path, passages: Artifact[Passages], queries: Artifact[Queries], positives: Artifact[Positives], file: Source,
    *, settings: Given,
) -> None:  # fmt: skip
    """Write the file's negatives of each query that has a positive, in the queries' order.

    A `rank` is that in the system's list, from 1, as far as that is in the passages and not relevant; a score is a
    cross-encoder's, NaN where the file has none. No passage of a relevant document is a negative; an id that is a
    document's stands for its first passage. Raises UserError where a row is broken, or nothing is left.
    """
    scratch, corpus = out / SCRATCH, Corpus.read(passages)
    shutil.rmtree(scratch, ignore_errors=True)
    labels = read_table(positives, Positives, ["query_id", "passage_id"])
    asked = in_one_chunk(read_table(queries, Queries, ["query_id"]))["query_id"].combine_chunks()
    asked = asked.filter(pc.is_in(asked, value_set=labels["query_id"].combine_chunks()))
    each = max(QUERIES_PER_PILE, -(-len(asked) // PILES))
    seen = _Seen(file.path, settings)
    with Piles(scratch, PLACED, -(-len(asked) // each)) as piles:
        for rows in _placed(file.path, asked, corpus, seen):
            piles.add(rows, rows["query"].to_numpy() // each)
    seen.check(passages)
    relevant, without = corpus.relevant(asked, labels, positives), 0
    for number in range(-(-len(asked) // each)):
        rows = _Chosen(piles.read(number), corpus, relevant, settings)
        write_rows(out, Negatives, rows.of(asked[number * each : (number + 1) * each], number * each), part(number))
        without += rows.without
    if without == len(asked):
        raise UserError(f"{file.path}: no negative is left; all are relevant, or not below the margin")
    if without:
        print_line(f"{file.path}: has no negatives for {without:,} of {len(asked):,} queries")


def choose(places: Sequence[int], systems: Sequence[int], per_system: int | None) -> list[int]:
    """Which of a query's negatives, in the file's order, are taken: what several systems found once, so many of each.

    As BEIR's models choose their training data (`train_msmarco_v3.py` of https://github.com/beir-cellar/beir).
    """
    taken, counts, chosen = set[int](), Counter[int](), list[int]()
    for number, (place, system) in enumerate(zip(places, systems, strict=True)):
        if place not in taken and counts[system] != per_system:
            taken.add(place)
            counts[system] += 1
            chosen.append(number)
    return chosen


@dataclass
class _Seen:
    """What a file had, to say what is wrong where little of it can be used."""

    path: Path
    settings: Given
    counts: Counter[str] = field(default_factory=Counter)
    systems: list[str] = field(default_factory=list)
    examples: dict[str, list[str]] = field(default_factory=lambda: {"queries": [], "passages": []})

    def note(self, what: str, ids: pa.ChunkedArray, known: pa.ChunkedArray) -> None:
        """Count ids, and keep the first that are not known."""
        self.counts[what] += len(ids)
        self.counts[f"known {what}"] += pc.sum(known).as_py() or 0
        if len(examples := self.examples[what]) < EXAMPLES:
            unknown = pc.unique(ids.filter(pc.invert(known))).to_pylist()
            examples += [each for each in unknown if each not in examples][: EXAMPLES - len(examples)]

    def check(self, passages: Artifact[Passages]) -> None:
        """Raises UserError where nothing can be used; says how much is left out."""
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


def _placed(path: Path, asked: pa.Array, corpus: Corpus, seen: _Seen) -> Iterator[pa.Table]:
    """The file's negatives of queries that are asked, with the places of their passages, as tables of PLACED."""
    settings = seen.settings
    for rows in progress(negative_files.read(path), what="reading negatives", unit="blocks"):
        systems = pc.unique(rows["system"]).to_pylist()
        seen.systems += [each for each in systems if each not in seen.systems]
        queries = pc.index_in(rows["query_id"], value_set=asked)
        seen.note("queries", rows["query_id"], pc.is_valid(queries))
        wanted = pc.is_valid(queries)
        if settings.systems is not None:
            wanted = pc.and_(wanted, pc.is_in(rows["system"], value_set=pa.array(settings.systems, pa.string())))
        rows, queries = rows.filter(wanted), queries.filter(wanted)
        if settings.margin is not None and (unscored := rows.filter(pc.is_nan(rows["score"]))):
            raise UserError(
                f"{path}: given.margin: query {unscored['query_id'][0]} has negatives without a cross-encoder's score; "
                "take the file that has scores (https://sbert.net/datasets/msmarco-hard-negatives.jsonl.gz), or null"
            )
        places = corpus.places(rows["passage_id"].to_pylist())
        known = pa.chunked_array([pa.array(places >= 0)])
        seen.note("passages", rows["passage_id"], known)
        numbers = pc.index_in(rows["system"], value_set=pa.array(seen.systems, pa.string())).cast(pa.int16())
        columns = [queries, pa.chunked_array([places]), numbers, rows["score"], rows["positive"]]
        yield pa.table(columns, schema=PLACED).filter(known)


class _Chosen:
    """The negatives of a pile's queries, as rows of the table."""

    def __init__(self, pile: pa.Table, corpus: Corpus, relevant: Numbers, settings: Given) -> None:
        columns = {name: pile[name].to_numpy() for name in PLACED.names}
        left = ~np.isin(corpus.pairs(columns["query"], columns["place"]), relevant)
        lists = columns["query"].astype(np.int64) * (np.iinfo(np.int16).max + 1) + columns["system"]
        # In triples a negative stands once for each positive.
        left[left] = _first(lists[left] * len(corpus.document) + columns["place"][left])
        columns["rank"] = np.zeros(len(pile), np.int64)
        columns["rank"][left] = _counted(lists[left])
        if settings.margin is not None:
            left &= columns["score"] <= columns["positive"] - settings.margin
        order = np.flatnonzero(left)[columns["query"][left].argsort(kind="stable")]
        self._columns = {name: column[order] for name, column in columns.items()}
        self._names, self._settings = corpus.names, settings
        self.without = 0
        """How many queries had none."""

    def of(self, queries: pa.Array, first: int) -> Iterator[dict[str, Any]]:
        """The rows of queries, which are numbered from `first`: by rank, and of equal ranks the first system's."""
        numbers = np.arange(first, first + len(queries) + 1)
        bounds = np.searchsorted(self._columns["query"], numbers).tolist()
        for query, (start, end) in zip(queries.to_pylist(), pairwise(bounds), strict=True):
            own = {name: column[start:end] for name, column in self._columns.items()}
            chosen = choose(own["place"].tolist(), own["system"].tolist(), self._settings.per_system)
            ranks = own["rank"].tolist()
            chosen.sort(key=lambda number: ranks[number])  # stable
            self.without += not chosen
            kept = sample(chosen, self._settings.per_query, f"{self._settings.seed} {query}")
            names = self._names.take(pa.array(own["place"][kept], pa.int64())).to_pylist()
            for name, number in zip(names, kept, strict=True):
                yield {"query_id": query, "passage_id": name, "rank": ranks[number], "score": own["score"][number]}


def _first(keys: Numbers) -> Numbers:
    """Whether a key is there for the first time."""
    found = np.zeros(len(keys), bool)
    found[np.unique(keys, return_index=True)[1]] = True
    return found


def _counted(keys: Numbers) -> Numbers:
    """Return how often each key has occurred so far, from 1."""
    counts = np.unique(keys, return_counts=True)[1]
    occurrences = np.empty(len(keys), np.int64)
    occurrences[keys.argsort(kind="stable")] = ranges(np.ones_like(counts), counts)
    return occurrences
