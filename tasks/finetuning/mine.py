"""Mine hard negatives: what runs rank high for a query and is no positive of it.

First every passage of every relevant document leaves the lists, then each list is cut to the depth, then a miner
(`tasks/finetuning/miners/<miner>.py`) chooses, then a sample is kept: so a query with many positives has as many
negatives as any other. So many queries are a shard, which becomes a file of its own.

A miner's module has its settings and `Choice(settings, scores)`, called with what there is of one query.
"""

from __future__ import annotations

import importlib
import json
import logging
import random
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field

from storage.artifact import Artifact
from storage.errors import UserError
from storage.files import write_atomically
from storage.rows import parts, read_rows, read_table, write_rows
from storage.settings import Seed, Settings
from storage.store.store import SCRATCH
from storage.tables import Negatives, Passages, Positives, Run, TeacherScores
from tasks.runtime.shards import Job, Shard, kept, part, run_shards
from tasks.stage import stage

log = logging.getLogger(__name__)

QUERIES_PER_PART = 10_000

T = TypeVar("T")
Row = dict[str, Any]


class MiningSettings(Settings):
    """Which part of each list may become negatives, and how many do."""

    miner: str
    depth: int = Field(gt=0)
    """Passages of a list that are left after its positives are removed."""
    negatives: int | None = Field(gt=0)
    """How many of these are drawn for a query; null keeps all."""
    seed: Seed


@dataclass(frozen=True)
class Asked:
    """What there is of one query."""

    query_id: str
    positives: Sequence[str]
    """The passages that are trained on as positives, in the table's order."""
    ranked: Sequence[Sequence[Row]]
    """The whole list of each run."""
    left: Sequence[Sequence[Row]]
    """The same without the passages of relevant documents, cut to the depth."""


class Choice(Protocol):
    """What a miner's module makes of its settings."""

    def __call__(self, asked: Asked) -> list[Row]:
        """Which of what is left may be drawn, in an order of its own."""
        ...


@stage(version=3, table=Negatives)
def mine(
    out: Path,
    runs: Sequence[Artifact[Run]],
    positives: Artifact[Positives],
    passages: Artifact[Passages],
    scores: Artifact[TeacherScores] | None,
    *,
    settings: MiningSettings,
) -> None:
    """Write each query's negatives; a query without a positive has none."""
    miner(settings, len(runs), scores)  # what cannot be read shows here, not in a process
    shards = _shards(runs)
    run_shards(Job(mine_part, out, (runs, positives, passages, scores), settings, "mining", "passages"), shards)
    counts = [json.loads((out / _counts(shard.number)).read_text()) for shard in shards]
    chosen, possible = (sum(each.get(name, 0) for each in counts) for name in ("chosen", "possible"))
    log.info("%s: %d of %d passages may be negatives", settings.miner, chosen, possible)


def mine_part(
    out: Path, shard: Shard, done: Callable[[int], object], runs: Sequence[Artifact[Run]],
    positives: Artifact[Positives], passages: Artifact[Passages], scores: Artifact[TeacherScores] | None, *,
    settings: MiningSettings,
) -> None:  # fmt: skip
    """Write the negatives of a shard's queries, and beside them how many there could be."""
    known = kept(Known, settings, len(runs), positives, passages, scores)

    def rows() -> Iterator[Row]:
        counts = Counter[str]()
        yield from _mined(lists(runs, shard), known, settings, counts, done)
        write_atomically(out / _counts(shard.number), json.dumps(counts))

    write_rows(out, Negatives, rows(), part(shard.number))


class Known:
    """What a process knows of all queries: their positives, and how negatives are chosen."""

    def __init__(
        self, settings: MiningSettings, runs: int, positives: Artifact[Positives], passages: Artifact[Passages],
        scores: Artifact[TeacherScores] | None,
    ) -> None:  # fmt: skip
        labels = read_table(positives, Positives)
        self.relevant = relevant_passages(labels, read_table(passages, Passages, ["passage_id", "doc_id"]))
        self.positives = by_query(labels)
        self.choose: Choice = miner(settings, runs, scores).Choice(settings, scores)


def miner(settings: MiningSettings, runs: int, scores: Artifact[TeacherScores] | None) -> Any:
    """The module that chooses: of so many runs, with a teacher's scores where it reads them."""
    module = importlib.import_module(f"tasks.finetuning.miners.{settings.miner}")
    if runs != 1 and not (runs and module.SEVERAL_RUNS):
        raise UserError(f"mine.miner: {settings.miner} reads one ranking, found {runs}; only `union` reads several")
    if (scores is None) == module.READS_SCORES:
        raise UserError(
            f"mine.miner: {settings.miner} {'reads' if module.READS_SCORES else 'does not read'} a teacher's scores"
        )
    return module


def lists(runs: Sequence[Artifact[Run]], shard: Shard | None = None) -> Iterator[tuple[str, list[list[Row]]]]:
    """Query by query, of a shard or of all, its list in each run; a run may lack queries.

    The order is one on which the runs agree.
    """
    for each in _shards(runs) if shard is None else [shard]:
        rows = [read_rows(run, Run, *span) for run, span in zip(runs, each.of["spans"], strict=True)]
        streams = [groupby(one, key=lambda row: row["query_id"]) for one in rows]
        heads = [next(stream, None) for stream in streams]
        for query_id in each.of["queries"]:
            found: list[list[Row]] = []
            for number, head in enumerate(heads):
                if head is not None and head[0] == query_id:
                    found.append(list(head[1]))
                    heads[number] = next(streams[number], None)
                else:
                    found.append([])
            yield query_id, found


def relevant_passages(positives: pa.Table, passages: pa.Table) -> dict[str, set[str]]:
    """For each query that has a positive, all passages of all its positives' documents."""
    passages = passages.filter(pc.is_in(passages["doc_id"], value_set=positives["doc_id"].combine_chunks()))
    of_document: dict[str, list[str]] = {}
    for row in passages.to_pylist():
        of_document.setdefault(row["doc_id"], []).append(row["passage_id"])
    found: dict[str, set[str]] = {}
    for row in positives.to_pylist():
        found.setdefault(row["query_id"], set()).update(of_document.get(row["doc_id"], ()))
    return found


def by_query(positives: pa.Table) -> dict[str, list[str]]:
    """Each query's positives, in the order of the table."""
    found: dict[str, list[str]] = {}
    for query, passage in zip(positives["query_id"].to_pylist(), positives["passage_id"].to_pylist(), strict=True):
        found.setdefault(query, []).append(passage)
    return found


def without(ranked: Sequence[Row], positives: Container[str], depth: int) -> list[Row]:
    """The first `depth` passages of a list that are no positive."""
    return [row for row in ranked if row["passage_id"] not in positives][:depth]


def drawn(rows: list[T], keep: int | None, seed: str) -> list[T]:
    """All, or `keep` of them at random, in their order."""
    if keep is None or len(rows) <= keep:
        return rows
    return [rows[place] for place in sorted(random.Random(seed).sample(range(len(rows)), keep))]


def _mined(
    found: Iterator[tuple[str, list[list[Row]]]], known: Known, settings: MiningSettings, counts: Counter[str],
    done: Callable[[int], object],
) -> Iterator[Row]:  # fmt: skip
    """The negatives of each query; `counts` says how many were possible, and how many of these the miner chose."""
    for query_id, ranked in found:
        done(sum(map(len, ranked)))
        if query_id not in known.relevant:
            continue
        left = [without(each, known.relevant[query_id], settings.depth) for each in ranked]
        chosen = known.choose(Asked(query_id, known.positives[query_id], ranked, left))
        counts.update(possible=len({row["passage_id"] for each in left for row in each}), chosen=len(chosen))
        for row in drawn(chosen, settings.negatives, f"{settings.seed} {query_id}"):
            yield {name: row[name] for name in ("query_id", "passage_id", "rank", "score")}


def _counts(shard: int) -> str:
    """The file of what is counted of a shard, which lasts as long as the stage."""
    return f"{SCRATCH}/counts-{shard:05d}.json"


def _shards(runs: Sequence[Artifact[Run]]) -> list[Shard]:
    """So many queries each, with the rows of each run that are theirs; one shard at least."""
    listed = [_queries(run) for run in runs]
    order = _common_order(runs, listed)
    place = {query: number for number, query in enumerate(order)}
    firsts = range(0, max(len(order), 1), QUERIES_PER_PART)
    rows_RS = np.zeros((len(runs), len(firsts)), np.int64)
    for run, queries in enumerate(listed):
        for query, rows in queries:
            rows_RS[run, place[query] // QUERIES_PER_PART] += rows
    found = []
    for number, (first, rows_R, ends_R) in enumerate(zip(firsts, rows_RS.T, rows_RS.cumsum(1).T, strict=True)):
        spans = np.stack([ends_R - rows_R, ends_R], axis=1).tolist()
        of = {"queries": order[first : first + QUERIES_PER_PART], "spans": spans}
        files = [_counts(number), f"{part(number)}.parquet"]
        found.append(Shard(number, int(rows_R.sum()), files, of))
    return found


def _common_order(runs: Sequence[Artifact[Run]], listed: Sequence[Sequence[tuple[str, int]]]) -> list[str]:
    """The queries of all runs, in an order that agrees with each of them."""
    order: TopologicalSorter[str] = TopologicalSorter()
    for queries in listed:
        for query, _ in queries[:1]:
            order.add(query)
        for (earlier, _), (query, _) in pairwise(queries):
            order.add(query, earlier)
    try:
        return list(order.static_order())
    except CycleError as error:
        named = ", ".join(run.reference for run in runs)
        raise UserError(
            f"{named}: the queries do not come in one order, each with its rows together (see {error.args[1][0]!r}); "
            "search again, all with the same queries"
        ) from None


def _queries(run: Artifact[Run]) -> list[tuple[str, int]]:
    """Each query of a run and how many rows it has, in the run's order."""
    stretches = groupby(_stretches(run), key=lambda stretch: stretch[0])
    return [(query, sum(rows for _, rows in each)) for query, each in stretches]


def _stretches(run: Artifact[Run]) -> Iterator[tuple[str, int]]:
    """The query of the next rows and how many these are; neighbours may have the same query."""
    for path in parts(run.path):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=["query_id"]):
                encoded = pc.run_end_encode(batch.column(0))
                rows = np.diff(encoded.run_ends.to_numpy(), prepend=0).tolist()
                yield from zip(encoded.values.to_pylist(), rows, strict=True)
