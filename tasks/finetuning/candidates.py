"""Candidates for negatives: each query's ranked lists, its positives, and the shards of queries that are mined."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import blocks_with_keys
from storage.store.publishing import SCRATCH
from storage.tables import Passages
from tasks.finetuning.miners import Row
from tasks.retrieval.run_lists import QUERIES_PER_BLOCK, Rows, RunLists
from tasks.runtime.shard import Shard, part

T = TypeVar("T")

QUERIES_PER_PART = 10_000


def ranked_lists(runs: Sequence[RunLists], query_ids: Sequence[str]) -> Iterator[tuple[str, list[list[Row]]]]:
    """Yield each of these queries with its ranked list in each run; a run may lack queries.

    Reading is fastest in the order of the runs, as `query_shards` gives it.
    """
    ids = pa.array(query_ids, pa.string())
    indices = [pc.index_in(ids, value_set=run.query_ids).fill_null(-1).to_numpy() for run in runs]
    for start in range(0, len(query_ids), QUERIES_PER_BLOCK):
        block = query_ids[start : start + QUERIES_PER_BLOCK]
        lists_RQ = [
            _rows_of_queries(block, run.read(lists_Q[start : start + len(block)], None))
            for run, lists_Q in zip(runs, indices, strict=True)
        ]
        for number, query_id in enumerate(block):
            yield query_id, [lists_Q[number] for lists_Q in lists_RQ]


def _rows_of_queries(query_ids: Sequence[str], rows: Rows) -> list[list[Row]]:
    """Return the list of each query in a block of a run."""
    lists: list[list[Row]] = [[] for _ in query_ids]
    columns = (rows.queries.tolist(), rows.passage_ids.to_pylist(), rows.ranks.tolist(), rows.scores.tolist())
    for query, passage_id, rank, score in zip(*columns, strict=True):
        lists[query].append({"query_id": query_ids[query], "passage_id": passage_id, "rank": rank, "score": score})
    return lists


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


def query_shards(runs: Sequence[RunLists]) -> list[Shard]:
    """Return shards of QUERIES_PER_PART queries, whose ids are their content; there is at least one."""
    order = _common_order(runs)
    rows: Counter[str] = Counter()
    for run in runs:
        rows.update(dict(zip(run.query_ids.to_pylist(), run.lengths.tolist(), strict=True)))
    shards = []
    for number, first in enumerate(range(0, max(len(order), 1), QUERIES_PER_PART)):
        queries = order[first : first + QUERIES_PER_PART]
        files = [counts_file(number), f"{part(number)}.parquet"]
        shards.append(Shard(number, sum(rows[query] for query in queries), files, queries))
    return shards


def _common_order(runs: Sequence[RunLists]) -> list[str]:
    """Return the queries of all runs in an order that agrees with each of them."""
    order: TopologicalSorter[str] = TopologicalSorter()
    for run in runs:
        queries = run.query_ids.to_pylist()
        for query in queries[:1]:
            order.add(query)
        for earlier, query in pairwise(queries):
            order.add(query, earlier)
    try:
        return list(order.static_order())
    except CycleError as error:
        names = ", ".join(run.reference for run in runs)
        raise UserError(
            f"{names}: the queries are not in one common order with the rows of each query together (see "
            f"{error.args[1][0]!r}); search again, with the same queries for all runs"
        ) from None
