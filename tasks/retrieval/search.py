"""Search an index with a set of queries, by one of its views.

Where several passages of a document match, a list of so many passages has fewer documents, and recall at
a cutoff would be cut short; so each query's list is search_documents until it has the documents that are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import Field

from models.retrievers.retriever import SUM
from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import read_table, write_table
from storage.settings import Settings
from storage.tables import Index, Passages, Queries, Run, Vectors
from storage.vectors import Encoded, describe_vectors
from tasks.retrieval.encode import Model, TextEncoder
from tasks.retrieval.index import describe, engine
from tasks.retrieval.ranking import Hits, Lookup, PassageIds, Searcher, passage_ids, run_rows
from tasks.runtime.leftovers import record, unfinished
from tasks.runtime.progress import bar
from tasks.stage import stage

QUERIES_PER_SHARD = 1024  # a finished shard is never searched again


class Search(Settings):
    """What to search, and how deep."""

    view: str
    """What the lists are made by, and their name in the run: dense, lexical, late, their weighted sum, or bm25."""
    documents: int = Field(gt=0)
    """Different documents that every list has, unless fewer match; it ends with the passage that brings the last."""


@stage(version=3, table=Run, gpu=lambda settings: settings.view != "bm25")
def search(
    out: Path,
    index: Artifact[Index],
    vectors: Artifact[Vectors] | None,
    queries: Artifact[Queries],
    checkpoint: Model | None,
    passages: Artifact[Passages],
    *,
    settings: Search,
) -> None:
    """Write each query's ranked passages, in the order of the queries; a query that finds nothing has no row.

    An index of vectors is searched with these and the model that made them, which encodes the queries.
    """
    rows, name = read_table(queries, Queries), str(describe(index.path)["engine"])
    _check(settings.view, name, vectors)
    starts = range(0, len(rows), QUERIES_PER_SHARD)
    lacking = set(unfinished(out, [f"{_part(start)}.parquet" for start in starts]))
    missing = [start for start in starts if f"{_part(start)}.parquet" in lacking]
    if not missing:
        return
    ids = passage_ids(passages)
    encode = None if vectors is None else query_encoder(vectors, checkpoint)
    searcher: Searcher = engine(name).open_index(index.path, vectors, encode, ids, settings.view)
    with bar(what=f"searching ({name}, {settings.view})", unit="queries", total=len(rows)) as counter:
        counter.update(sum(len(rows[start : start + QUERIES_PER_SHARD]) for start in starts if start not in missing))
        for start in missing:
            block = rows[start : start + QUERIES_PER_SHARD]
            found = search_documents(searcher(block["text"].to_pylist()), len(block), settings.documents, ids)
            write_table(out, Run, run_rows(block["query_id"].to_pylist(), found, ids, settings.view), _part(start))
            record(out, f"{_part(start)}.parquet")
            counter.update(len(block))


def query_encoder(vectors: Artifact[Vectors], checkpoint: Model | None) -> Callable[[Sequence[str]], Encoded]:
    """What makes vectors of queries as the stored ones of passages were made."""
    if checkpoint is None:
        raise TypeError("vectors are searched with the checkpoint that made them")
    encoder, max_tokens = TextEncoder(checkpoint.path), int(describe_vectors(vectors.path)["query_max_tokens"])
    return lambda texts: encoder(texts, "query", max_tokens)


def _check(view: str, name: str, vectors: Artifact[Vectors] | None) -> None:
    """Refuse a view that the engine does not search or the vectors do not have."""
    found, among = engine(name).VIEWS, ""
    if vectors is not None:
        stored = describe_vectors(vectors.path)["views"]
        found = tuple(each for each in found if each in stored or each == SUM)
        among = f" and a retriever of {', '.join(stored)}"
    if view not in found:
        raise UserError(f"search.view: expected {' or '.join(found)} for engine {name}{among}, found {view}")


def search_documents(lookup: Lookup, num_queries: int, documents: int, ids: PassageIds) -> list[Hits]:
    """For each query the best passages of its best `documents` documents, fewer if its list is exhausted."""
    found: list[Hits] = [Hits(ids.descending[:0], ids.descending[:0].astype("float32"))] * num_queries
    waiting: Sequence[int] = range(num_queries)
    depth = first_depth(documents, ids)
    while waiting:
        for query, hits in zip(waiting, lookup(waiting, depth), strict=True):
            found[query] = hits
        short = (query for query in waiting if ids.num_documents(found[query]) < documents)
        waiting = [query for query in short if len(found[query].rows) == depth < len(ids)]
        depth *= 2
    return [ids.first_documents(hits, documents) for hits in found]


def first_depth(documents: int, ids: PassageIds) -> int:
    """As many passages as so many documents have on average."""
    num_documents = int(ids.documents.max()) + 1 if len(ids) else 1
    return -(-documents * len(ids) // num_documents) if len(ids) else documents


def _part(start: int) -> str:
    return f"part-{start // QUERIES_PER_SHARD:05d}"
