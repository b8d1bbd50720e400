"""Search an index with a set of queries.

Where several passages of a document match, a list of so many passages has fewer documents, and recall at
a cutoff would be cut short; so each query's list is deepened until it has the documents that are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from storage.artifact import Artifact
from storage.rows import read_table, write_table
from storage.settings import Settings
from storage.tables import Checkpoint, Index, Passages, Queries, Run
from tasks.hits import Hits, Lookup, PassageIds, Searcher, passage_ids, run_rows
from tasks.index import describe, engine
from tasks.progress import bar
from tasks.stage import stage

QUERIES_PER_SHARD = 1024  # a finished shard is never searched again


class Search(Settings):
    """How deep to search."""

    documents: int = Field(gt=0)
    """Different documents that every list has, unless fewer match; it ends with the passage that brings the last."""


@stage(version=1, table=Run)
def search(
    out: Path,
    index: Artifact[Index],
    queries: Artifact[Queries],
    checkpoint: Artifact[Checkpoint] | None,
    passages: Artifact[Passages],
    *,
    settings: Search,
) -> None:
    """Write each query's ranked passages, in the order of the queries; a query that finds nothing has no row."""
    rows, module = read_table(queries, Queries), engine(str(describe(index.path)["engine"]))
    starts = range(0, len(rows), QUERIES_PER_SHARD)
    missing = [start for start in starts if not (out / f"{_part(start)}.parquet").exists()]
    if not missing:
        return
    ids = passage_ids(passages)
    searcher: Searcher = module.open_index(index.path, checkpoint, ids)
    with bar(what=f"searching ({describe(index.path)['engine']})", unit="queries", total=len(rows)) as counter:
        counter.update(sum(len(rows[start : start + QUERIES_PER_SHARD]) for start in starts if start not in missing))
        for start in missing:
            block = rows[start : start + QUERIES_PER_SHARD]
            found = deepened(searcher(block["text"].to_pylist()), len(block), settings.documents, ids)
            write_table(out, Run, run_rows(block["query_id"].to_pylist(), found, ids, module.VIEW), _part(start))
            counter.update(len(block))


def deepened(lookup: Lookup, num_queries: int, documents: int, ids: PassageIds) -> list[Hits]:
    """For each query the best passages of its best `documents` documents, fewer if its list is exhausted."""
    found: list[Hits] = [Hits(ids.descending[:0], ids.descending[:0].astype("float32"))] * num_queries
    waiting: Sequence[int] = range(num_queries)
    depth = first_depth(documents, ids)
    while waiting:
        for query, hits in zip(waiting, lookup(waiting, depth), strict=True):
            found[query] = hits
        short = (query for query in waiting if ids.num_documents(found[query]) < documents)
        waiting = [query for query in short if len(found[query].places) == depth < len(ids)]
        depth *= 2
    return [ids.first_documents(hits, documents) for hits in found]


def first_depth(documents: int, ids: PassageIds) -> int:
    """As many passages as so many documents have on average."""
    num_documents = int(ids.documents.max()) + 1 if len(ids) else 1
    return -(-documents * len(ids) // num_documents) if len(ids) else documents


def _part(start: int) -> str:
    return f"part-{start // QUERIES_PER_SHARD:05d}"
