"""Candidates for negatives: each query's ranked lists, its positives, and the shards of queries that are mined."""

from __future__ import annotations

import random
from collections.abc import Container, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import groupby, pairwise
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import blocks_with_keys, parts, read_rows
from storage.store.store import SCRATCH
from storage.tables import Passages, Run
from tasks.finetuning.miners import Row
from tasks.runtime.shard import Shard, part

T = TypeVar("T")

QUERIES_PER_PART = 10_000


def lists(runs: Sequence[Artifact[Run]], shard: Shard | None = None) -> Iterator[tuple[str, list[list[Row]]]]:
    """Yield each query of a shard, or of all, with its ranked list in each run; a run may lack queries.

    The queries come in an order on which the runs agree.
    """
    for current in query_shards(runs) if shard is None else [shard]:
        rows = [read_rows(run, Run, *span) for run, span in zip(runs, current.of["spans"], strict=True)]
        streams = [groupby(rows_of_run, key=lambda row: row["query_id"]) for rows_of_run in rows]
        heads = [next(stream, None) for stream in streams]
        for query_id in current.of["queries"]:
            ranked: list[list[Row]] = []
            for number, head in enumerate(heads):
                if head is not None and head[0] == query_id:
                    ranked.append(list(head[1]))
                    heads[number] = next(streams[number], None)
                else:
                    ranked.append([])
            yield query_id, ranked


def relevant_passages(positives: pa.Table, passages: Artifact[Passages]) -> dict[str, set[str]]:
    """Return the passages of all relevant documents of each query.

    `positives` has a row for each pair of `query_id` and relevant `doc_id`. A query has an empty set if its documents
    have no passages here.
    """
    of_document: dict[str, list[str]] = {}
    for block in blocks_with_keys(passages, Passages, "doc_id", positives["doc_id"].to_pylist(), ["passage_id"]):
        for row in block.to_pylist():
            of_document.setdefault(row["doc_id"], []).append(row["passage_id"])
    relevant: dict[str, set[str]] = {}
    for row in positives.to_pylist():
        relevant.setdefault(row["query_id"], set()).update(of_document.get(row["doc_id"], ()))
    return relevant


def positives_of_queries(positives: pa.Table) -> dict[str, list[str]]:
    """Return each query's positive passages, in the order of the table."""
    passages: dict[str, list[str]] = {}
    for query, passage in zip(positives["query_id"].to_pylist(), positives["passage_id"].to_pylist(), strict=True):
        passages.setdefault(query, []).append(passage)
    return passages


def remove_positives(ranked: Sequence[Row], positives: Container[str], depth: int) -> list[Row]:
    """Return the first `depth` passages of a list that are not positives."""
    return [row for row in ranked if row["passage_id"] not in positives][:depth]


def sample(rows: list[T], number: int | None, seed: str) -> list[T]:
    """Return all rows, or a random sample of `number` of them, in their order."""
    if number is None or len(rows) <= number:
        return rows
    return [rows[index] for index in sorted(random.Random(seed).sample(range(len(rows)), number))]


def counts_file(shard: int) -> str:
    """Return the path of a shard's counts, in a folder that is deleted when the stage is done."""
    return f"{SCRATCH}/counts-{shard:05d}.json"


def query_shards(runs: Sequence[Artifact[Run]]) -> list[Shard]:
    """Return shards of QUERIES_PER_PART queries, each with its range of rows in each run; there is at least one."""
    counts = [_rows_per_query(run) for run in runs]
    order = _common_order(runs, counts)
    position = {query: number for number, query in enumerate(order)}
    firsts = range(0, max(len(order), 1), QUERIES_PER_PART)
    rows_RS = np.zeros((len(runs), len(firsts)), np.int64)
    for run, queries in enumerate(counts):
        for query, rows in queries:
            rows_RS[run, position[query] // QUERIES_PER_PART] += rows
    shards = []
    for number, (first, rows_R, ends_R) in enumerate(zip(firsts, rows_RS.T, rows_RS.cumsum(1).T, strict=True)):
        spans = np.stack([ends_R - rows_R, ends_R], axis=1).tolist()
        of = {"queries": order[first : first + QUERIES_PER_PART], "spans": spans}
        files = [counts_file(number), f"{part(number)}.parquet"]
        shards.append(Shard(number, int(rows_R.sum()), files, of))
    return shards


def _common_order(runs: Sequence[Artifact[Run]], counts: Sequence[Sequence[tuple[str, int]]]) -> list[str]:
    """Return the queries of all runs in an order that agrees with each of them."""
    order: TopologicalSorter[str] = TopologicalSorter()
    for queries in counts:
        for query, _ in queries[:1]:
            order.add(query)
        for (earlier, _), (query, _) in pairwise(queries):
            order.add(query, earlier)
    try:
        return list(order.static_order())
    except CycleError as error:
        names = ", ".join(run.reference for run in runs)
        raise UserError(
            f"{names}: the queries are not in one common order with the rows of each query together (see "
            f"{error.args[1][0]!r}); search again, with the same queries for all runs"
        ) from None


def _rows_per_query(run: Artifact[Run]) -> list[tuple[str, int]]:
    """Return each query of a run with its number of rows, in the run's order."""
    groups = groupby(_run_lengths(run), key=lambda length: length[0])
    return [(query, sum(rows for _, rows in lengths)) for query, lengths in groups]


def _run_lengths(run: Artifact[Run]) -> Iterator[tuple[str, int]]:
    """Yield the query of the next rows and their number; neighbours may have the same query."""
    for path in parts(run.path):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=["query_id"]):
                encoded = pc.run_end_encode(batch.column(0))
                rows = np.diff(encoded.run_ends.to_numpy(), prepend=0).tolist()
                yield from zip(encoded.values.to_pylist(), rows, strict=True)
