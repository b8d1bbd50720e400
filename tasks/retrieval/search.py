"""Search an index with a set of queries, by one of its views.

Settings count documents, engines rank passages. Where several passages of a document match, a list of N passages has
fewer than N documents, and recall at a cutoff would be too low; so each query's list is deepened until it has enough
documents.

The queries of a file are encoded together. Exact search on an accelerator reads all passages once for a shard, so a
shard there has several files. `RESULTS_PER_SHARD` bounds the memory of its lists, `BLOCK_BYTES` of exact search that of
its candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from models.representation import Role
from models.retrievers.retriever import SUM
from storage.artifact import Artifact
from storage.errors import UserError
from storage.external.mapped_index import MappedPassageIndex
from storage.row_index import PassageIndex
from storage.rows import num_rows, read_rows, write_table
from storage.settings import Settings
from storage.tables import Index, Passages, Queries, Run, Vectors
from storage.vectors import Encoded, describe_vectors, not_finite
from tasks.retrieval.encode import Model, TextEncoder
from tasks.retrieval.exact_search.upper_bounds import is_accelerator
from tasks.retrieval.index import describe, engine
from tasks.retrieval.ranking import Hits, Lookup, Searcher, first_documents, num_documents, run_rows
from tasks.retrieval.shared_passages import share_passages, shared_passages
from tasks.runtime.device import choose_device, num_model_processes
from tasks.runtime.progress import shares_reported_to
from tasks.runtime.shard import Shard, ShardJob, ShardTask, load_once, part, row_shards
from tasks.runtime.shards import run_shards
from tasks.session import execution
from tasks.stage import stage

QUERIES_PER_PART = 1024  # the queries of a file
PARTS_PER_SHARD = 16  # files for which an accelerator reads all passages once; an interruption costs as many
RESULTS_PER_SHARD = 2**24  # passages of all lists of a shard, which are in memory together; at least one file's


class Search(Settings):
    """The representation to search, and the depth."""

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
    name = str(describe(index.path)["engine"])
    _check(settings.view, name, vectors)
    if not (total := num_rows(queries.path)):
        return
    ids = share_passages(out, passages)
    what, inputs = f"searching ({name}, {settings.view})", (index, vectors, queries, checkpoint)
    job = ShardJob(search_part, out, inputs, settings, what, "queries", on_gpus=settings.view != "bm25")
    is_one_pass = name == "exact" and is_accelerator(choose_device())
    processes = num_model_processes(execution())
    depth = first_depth(settings.documents, ids)
    run_shards(job, query_shards(total, depth, processes) if is_one_pass else _files(total))


def _files(total: int) -> list[Shard]:
    return row_shards(total, QUERIES_PER_PART)


def query_shards(total: int, depth: int, processes: int) -> list[Shard]:
    """Return shards of several files of queries with lists of `depth`, of about equal size, as many for each process.

    The files do not depend on the shards.
    """
    files = _files(total)
    largest = min(PARTS_PER_SHARD, max(1, RESULTS_PER_SHARD // (QUERIES_PER_PART * depth)))
    rounds = -(-len(files) // (largest * processes))
    size = -(-len(files) // (rounds * processes))
    groups = [files[first : first + size] for first in range(0, len(files), size)]
    return [
        Shard(number, sum(file.rows for file in group), [name for file in group for name in file.files],
              [group[0].of[0], group[-1].of[1]])
        for number, group in enumerate(groups)
    ]  # fmt: skip


def search_part(
    task: ShardTask,
    index: Artifact[Index],
    vectors: Artifact[Vectors] | None,
    queries: Artifact[Queries],
    checkpoint: Model | None,
    *,
    settings: Search,
) -> None:
    """Write the ranked passages of a shard's queries."""
    searcher, ids = load_once(_open, index, vectors, checkpoint, settings.view, task.out)
    rows = list(read_rows(queries, Queries, *task.shard.of))
    num_reported = 0

    def report(share: float) -> None:
        nonlocal num_reported
        if (num_done := int(share * len(rows))) > num_reported:  # a later pass, for a few queries, starts again at 0
            task.done(num_done - num_reported)
            num_reported = num_done

    with shares_reported_to(report):
        results = search_documents(searcher([row["text"] for row in rows]), len(rows), settings.documents, ids)
    for first in range(0, len(rows), QUERIES_PER_PART):
        of_part = slice(first, first + QUERIES_PER_PART)
        table = run_rows([row["query_id"] for row in rows[of_part]], results[of_part], ids, settings.view)
        write_table(task.out, Run, table, part((task.shard.of[0] + first) // QUERIES_PER_PART))
    report(1.0)


def _open(
    index: Artifact[Index], vectors: Artifact[Vectors] | None, checkpoint: Model | None, view: str, out: Path
) -> tuple[Searcher, MappedPassageIndex]:
    """Return a searcher of the index, and the passages that `search` shares in the folder `out`."""
    ids = shared_passages(out)
    encode = None if vectors is None else QueryEncoder(vectors, checkpoint)
    return engine(str(describe(index.path)["engine"])).open_index(index.path, vectors, encode, ids, view), ids


class QueryEncoder:
    """Encodes queries with the checkpoint, token limit and precision of stored vectors.

    Queries are encoded file by file: the last digits of a vector depend on the other texts of its batch, so batches
    must not depend on the shard.
    """

    def __init__(self, vectors: Artifact[Vectors], checkpoint: Model | None) -> None:
        if checkpoint is None:
            raise TypeError("vectors are searched with the checkpoint that encoded them")
        stored = describe_vectors(vectors.path)
        self.encoder = TextEncoder(checkpoint.path, stored.get("precision"), stored.get("truncate_dim"))
        self.folder = checkpoint.path
        self.max_tokens: dict[Role, int] = {
            "query": int(stored["query_max_tokens"]), "passage": int(stored["passage_max_tokens"])
        }  # fmt: skip

    def __call__(self, texts: Sequence[str]) -> Encoded:
        """Return all representations of the queries, in their order. Raises UserError for values that are not finite.

        They would have no order, and kernels use comparisons with them as bounds of loops.
        """
        starts, limit = range(0, max(1, len(texts)), QUERIES_PER_PART), self.max_tokens["query"]
        encoded = Encoded.concatenated(
            [self.encoder(texts[start : start + QUERIES_PER_PART], "query", limit) for start in starts]
        )
        for view, _ in not_finite(encoded):
            raise UserError(
                f"search: the {view} representation of a query is not finite; encode with precision bfloat16 or float32"
            )
        return encoded

    def late_tokens(self, text: str, role: Role) -> list[int]:
        """Return the ids of the tokens of a text that late interaction compares, in the order of their vectors."""
        opened, late = self.encoder.opened, getattr(self.encoder.retriever, "late", None)
        if late is None:
            raise TypeError("only a retriever with the late view compares tokens")
        tokens = opened.pad_batch(opened.encode([text], role, self.max_tokens[role])).to(self.encoder.device)
        inputs = late.augmented(tokens, role)
        compared, _ = late.compared(inputs, role)
        ids: list[int] = inputs.ids[compared].tolist()
        return ids


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
