"""Fold ranked passages to ranked documents: a document has the score of its best passage (MaxP).

Everything is numbered: queries by their place among those that are measured, documents in the order of their ids'
bytes. Documents are ranked as trec_eval ranks them: by float32 score, falling, and equal scores by document
id, descending, whatever ranks the run gives.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
"""[queries, longest list, 2]: document number and score (or grade); absent places hold document -1."""


@dataclass(frozen=True)
class Numbers:
    """The queries that are measured and all documents, numbered."""

    query_ids: pa.Array
    doc_ids: pa.Array
    passage_ids: pa.ChunkedArray
    documents: NDArray[np.int64]
    """The document of each passage, in the order of `passage_ids`."""


def numbered(query_ids: pa.ChunkedArray, passages: pa.Table, judged: pa.ChunkedArray | None = None) -> Numbers:
    """Number the queries and the documents of the passages, and those that are `judged` though no passage is theirs."""
    doc_ids = pa.concat_arrays([*passages["doc_id"].chunks, *(judged.chunks if judged else [])]).unique()
    doc_ids = doc_ids.take(pc.sort_indices(doc_ids))
    documents = _number(passages["doc_id"], doc_ids)
    return Numbers(query_ids.combine_chunks().unique(), doc_ids, passages["passage_id"], documents)


def graded(qrels: pa.Table, known: Numbers) -> Matrix:
    """Each query's judged documents by falling grade: what ranx takes for the ideal order."""
    queries = _number(qrels["query_id"], known.query_ids)
    documents, grades = _number(qrels["doc_id"], known.doc_ids), qrels["grade"].to_numpy().astype(np.float64)
    order = np.lexsort((documents, -grades, queries))
    return _matrix(queries[order], documents[order], grades[order], len(known.query_ids))


def fold(run: pa.Table, known: Numbers, cutoff: int) -> Matrix:
    """Each query's `cutoff` best documents, best first; a query that the run lacks has none."""
    queries = pc.index_in(run["query_id"], value_set=known.query_ids)
    run = run.filter(queries.is_valid())  # queries that nobody judged do not count
    places = pc.index_in(run["passage_id"], value_set=known.passage_ids)
    if places.null_count:
        missing = run["passage_id"].filter(places.is_null())[0].as_py()
        raise ValueError(f"the run has passage {missing!r}, which the passages lack")
    queries = queries.drop_null().to_numpy().astype(np.int64)
    documents, scores = known.documents[places.to_numpy()], run["score"].to_numpy()
    order = np.lexsort((-documents, -scores, queries))
    queries, documents, scores = queries[order], documents[order], scores[order]
    _, first = np.unique(queries * len(known.doc_ids) + documents, return_index=True)
    first.sort()
    best = first[_rank(queries[first]) < cutoff]
    return _matrix(queries[best], documents[best], scores[best], len(known.query_ids))


def without_identical_ids(run: pa.Table, passages: pa.Table) -> pa.Table:
    """The run without documents that have their query's own id, which are the query itself (as BEIR evaluates)."""
    places = pc.index_in(run["passage_id"], value_set=passages["passage_id"])
    others = pc.not_equal(passages["doc_id"].take(places), run["query_id"])
    return run.filter(pc.fill_null(others, True))  # what the passages lack is for `fold` to name


def _number(values: pa.ChunkedArray, among: pa.Array) -> NDArray[np.int64]:
    numbers: NDArray[np.int64] = pc.index_in(values, value_set=among).to_numpy().astype(np.int64)
    return numbers


def _rank(queries: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of each row among the rows of its query, from 0; rows of a query stand together."""
    starts = np.flatnonzero(np.diff(queries, prepend=-1))
    return np.arange(len(queries)) - np.repeat(starts, np.diff(starts, append=len(queries)))


def _matrix(queries: NDArray[np.int64], documents: NDArray[np.int64], values: NDArray[np.number], num: int) -> Matrix:
    ranks = _rank(queries)
    matrix = np.zeros((num, int(ranks.max(initial=0)) + 1, 2))
    matrix[:, :, 0] = -1
    matrix[queries, ranks, 0] = documents
    matrix[queries, ranks, 1] = values
    return matrix
