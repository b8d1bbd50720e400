"""Fold ranked passages to ranked documents: a document has the score of its best passage.

Everything is numbered: queries by their place among the judged ones, documents in the order of their ids'
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
class Judged:
    """The qrels of one split, and numbers for its queries and all documents."""

    query_ids: pa.Array
    doc_ids: pa.Array
    grades: Matrix
    """Each query's judged documents by falling grade: what ranx takes for the ideal order."""
    passage_ids: pa.ChunkedArray
    documents: NDArray[np.int64]
    """The document of each passage, in the order of `passage_ids`."""


def judged(qrels: pa.Table, passages: pa.Table) -> Judged:
    """Number the queries of the qrels and the documents of both tables."""
    query_ids = qrels["query_id"].combine_chunks().unique()
    doc_ids = pa.concat_arrays([*passages["doc_id"].chunks, *qrels["doc_id"].chunks]).unique()
    doc_ids = doc_ids.take(pc.sort_indices(doc_ids))
    queries = _number(qrels["query_id"], query_ids)
    documents, grades = _number(qrels["doc_id"], doc_ids), qrels["grade"].to_numpy().astype(np.float64)
    order = np.lexsort((documents, -grades, queries))
    matrix = _matrix(queries[order], documents[order], grades[order], len(query_ids))
    return Judged(query_ids, doc_ids, matrix, passages["passage_id"], _number(passages["doc_id"], doc_ids))


def fold(run: pa.Table, judged: Judged, cutoff: int) -> Matrix:
    """Each judged query's `cutoff` best documents, best first; a query that the run lacks has none."""
    queries = pc.index_in(run["query_id"], value_set=judged.query_ids)
    run = run.filter(queries.is_valid())  # queries that nobody judged do not count
    places = pc.index_in(run["passage_id"], value_set=judged.passage_ids)
    if places.null_count:
        missing = run["passage_id"].filter(places.is_null())[0].as_py()
        raise ValueError(f"the run has passage {missing!r}, which the passages lack")
    queries = queries.drop_null().to_numpy().astype(np.int64)
    documents, scores = judged.documents[places.to_numpy()], run["score"].to_numpy()
    order = np.lexsort((-documents, -scores, queries))
    queries, documents, scores = queries[order], documents[order], scores[order]
    _, first = np.unique(queries * len(judged.doc_ids) + documents, return_index=True)
    first.sort()
    best = first[_rank(queries[first]) < cutoff]
    return _matrix(queries[best], documents[best], scores[best], len(judged.query_ids))


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
