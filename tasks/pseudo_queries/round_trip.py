"""The round trip of pseudo-queries: does BM25 retrieve the passage that a query was generated from?

The rank of the own passage in the query's BM25 list is the query's score. Only ranks are stored.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from pydantic import Field

from storage.artifact import Artifact
from storage.row_index import PassageIndex, RowIndex
from storage.settings import Settings
from storage.tables import Index, Passages, PseudoQueries
from tasks.pseudo_queries.column_rewrite import file_shards, is_empty, rewrite, unknown
from tasks.retrieval.index import describe, engine
from tasks.retrieval.ranking import Hits, Indices, Searcher
from tasks.retrieval.shared_passages import share_passages, shared_passages
from tasks.runtime.shard import ShardJob, ShardTask, load_once
from tasks.runtime.shards import run_shards
from tasks.stage import stage

QUERIES_AT_ONCE = 1000  # between two updates of the progress bar


class RoundTrip(Settings):
    """The depth of the search for a query's own passage."""

    depth: int = Field(gt=0)
    """Passages of a list, including duplicates; an own passage below it has rank 0."""


@stage(version=1, table=PseudoQueries)
def round_trip(
    out: Path, pseudo_queries: Artifact[PseudoQueries], passages: Artifact[Passages], index: Artifact[Index], *,
    settings: RoundTrip,
) -> None:  # fmt: skip
    """Write the pseudo-queries with `round_trip`: the rank of the own passage, from 1, in BM25's list for the query.

    It is 0 if the passage is not in the list, and null if the query is empty. Of passages with the same text only the
    own one counts (Anserini orders equal scores by id). `index` is the BM25 index of the unexpanded passages: in one
    expanded with these queries, each would find its passage.
    """
    share_passages(out, passages)
    job = ShardJob(rank_part, out, (pseudo_queries, passages, index), settings, what="round trips", unit="queries")
    run_shards(job, file_shards(pseudo_queries, passages))


def rank_part(
    task: ShardTask,
    pseudo_queries: Artifact[PseudoQueries],
    passages: Artifact[Passages],
    index: Artifact[Index],
    *,
    settings: RoundTrip,
) -> None:
    """Write a shard's queries with their ranks."""
    searcher, ids = load_once(_opened, index, task.out)
    first, last = task.shard.of
    nearby = RowIndex(ids.ids.slice(first, last - first))

    def change(block: pa.Table) -> dict[str, pa.Array]:
        own = nearby.require(block["passage_id"], lambda passage: unknown(passage, pseudo_queries, passages))
        ranks, rows, empty = np.zeros(len(block), np.int32), first + own, is_empty(block)
        for start in range(0, len(block), QUERIES_AT_ONCE):
            few = slice(start, start + QUERIES_AT_ONCE)
            ranks[few] = _ranks(searcher, block["query"][few], rows[few], settings.depth)
            task.done(len(ranks[few]))
        return {"round_trip": pa.array(ranks, mask=empty)}

    rewrite(task.out, task.shard, pseudo_queries, change)


def _opened(index: Artifact[Index], out: Path) -> tuple[Searcher, PassageIndex]:
    ids = shared_passages(out)
    return engine(str(describe(index.path)["engine"])).open_index(index.path, None, None, ids, "bm25"), ids


def _ranks(searcher: Searcher, queries: pa.ChunkedArray, rows: Indices, depth: int) -> list[int]:
    """Return the rank of each query's own passage; equal queries are searched once."""
    encoded = queries.combine_chunks().dictionary_encode()
    results = searcher(encoded.dictionary.to_pylist())(range(len(encoded.dictionary)), depth)
    pairs = zip(encoded.indices.to_pylist(), rows, strict=True)
    return [_rank(results[number], row) for number, row in pairs]


def _rank(hits: Hits, row: int) -> int:
    at = np.flatnonzero(hits.rows == row)
    return int(at[0]) + 1 if len(at) else 0
