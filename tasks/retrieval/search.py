"""Search an index with a set of queries, by one of its views.

Settings count documents, engines rank passages. Where several passages of a document match, a list of N passages has
fewer than N documents, and recall at a cutoff would be too low; so each query's list is deepened until it has enough
documents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import Field

from models.retrievers.retriever import SUM
from storage.artifact import Artifact
from storage.errors import UserError
from storage.row_index import PassageIndex
from storage.rows import read_table, write_table
from storage.settings import Settings
from storage.tables import Index, Passages, Queries, Run, Vectors
from storage.vectors import Encoded, describe_vectors
from tasks.retrieval.encode import Model, TextEncoder
from tasks.retrieval.index import describe, engine
from tasks.retrieval.ranking import Hits, Lookup, Searcher, first_documents, num_documents, run_rows
from tasks.runtime.leftovers import record, unfinished
from tasks.runtime.progress import bar
from tasks.stage import stage

QUERIES_PER_SHARD = 1024  # a finished shard is not searched again after an interruption


class Search(Settings):
    """What to search, and how deep."""

    view: str
    """The representation that ranks, and the lists' name in the run: dense, lexical, late, sum (weighted), or bm25."""
    documents: int = Field(gt=0)
    """Distinct documents in every list, unless fewer match; a list ends with the passage that brings the last one."""


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
    """Write each query's ranked passages, in the order of the queries; a query without results has no row.

    An index of vectors is searched with these vectors and their checkpoint, which encodes the queries.
    """
    rows, name = read_table(queries, Queries), str(describe(index.path)["engine"])
    _check(settings.view, name, vectors)
    starts = range(0, len(rows), QUERIES_PER_SHARD)
    unfinished_files = set(unfinished(out, [f"{_part(start)}.parquet" for start in starts]))
    missing = [start for start in starts if f"{_part(start)}.parquet" in unfinished_files]
    if not missing:
        return
    ids = PassageIndex.read(passages)
    encode = None if vectors is None else query_encoder(vectors, checkpoint)
    searcher: Searcher = engine(name).open_index(index.path, vectors, encode, ids, settings.view)
    with bar(what=f"searching ({name}, {settings.view})", unit="queries", total=len(rows)) as counter:
        counter.update(sum(len(rows[start : start + QUERIES_PER_SHARD]) for start in starts if start not in missing))
        for start in missing:
            block = rows[start : start + QUERIES_PER_SHARD]
            results = search_documents(searcher(block["text"].to_pylist()), len(block), settings.documents, ids)
            write_table(out, Run, run_rows(block["query_id"].to_pylist(), results, ids, settings.view), _part(start))
            record(out, f"{_part(start)}.parquet")
            counter.update(len(block))


def query_encoder(vectors: Artifact[Vectors], checkpoint: Model | None) -> Callable[[Sequence[str]], Encoded]:
    """Return a function that encodes queries with the checkpoint and token limit of the stored vectors."""
    if checkpoint is None:
        raise TypeError("vectors are searched with the checkpoint that encoded them")
    encoder, max_tokens = TextEncoder(checkpoint.path), int(describe_vectors(vectors.path)["query_max_tokens"])
    return lambda texts: encoder(texts, "query", max_tokens)


def _check(view: str, name: str, vectors: Artifact[Vectors] | None) -> None:
    """Refuse a view that the engine does not search or the vectors do not have."""
    views, retriever = engine(name).VIEWS, ""
    if vectors is not None:
        stored = describe_vectors(vectors.path)["views"]
        views = tuple(known for known in views if known in stored or known == SUM)
        retriever = f" and a retriever of {', '.join(stored)}"
    if view not in views:
        raise UserError(f"search.view: expected {' or '.join(views)} for engine {name}{retriever}, found {view}")


def search_documents(lookup: Lookup, num_queries: int, documents: int, ids: PassageIndex) -> list[Hits]:
    """Return each query's best passages up to its `documents`-th document, or its complete list if it has fewer."""
    results: list[Hits] = [Hits(ids.descending[:0], ids.descending[:0].astype("float32"))] * num_queries
    pending: Sequence[int] = range(num_queries)
    depth = first_depth(documents, ids)
    while pending:
        for query, hits in zip(pending, lookup(pending, depth), strict=True):
            results[query] = hits
        too_short = (query for query in pending if num_documents(ids, results[query]) < documents)
        pending = [query for query in too_short if len(results[query].rows) == depth < len(ids)]
        depth *= 2
    return [first_documents(ids, hits, documents) for hits in results]


def first_depth(documents: int, ids: PassageIndex) -> int:
    """Return the mean number of passages of `documents` documents, rounded up."""
    num_documents = int(ids.documents.max()) + 1 if len(ids) else 1
    return -(-documents * len(ids) // num_documents) if len(ids) else documents


def _part(start: int) -> str:
    return f"part-{start // QUERIES_PER_SHARD:05d}"
