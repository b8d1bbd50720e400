"""Fold ranked passages to ranked documents: the score of a document is that of its best passage (MaxP).

Queries and documents are numbered; ids are compared only where scores tie. Documents are ranked as by trec_eval: by
descending float32 score, and ties by descending document id, whatever ranks the run gives. Most runs are in that order
already, and only rows that are not are sorted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.retrieval.ranking import ranges

Matrix = NDArray[np.float64]
"""[queries, longest list, 2]: document number and score (or grade); shorter lists are padded with document -1."""
Rows = NDArray[np.int64] | NDArray[np.bool_] | slice
ALL = slice(None)  # selects all rows without a copy


@dataclass(frozen=True)
class Numbers:
    """The queries that are measured and all documents, numbered."""

    query_ids: pa.Array
    doc_ids: pa.Array
    passage_ids: pa.ChunkedArray
    documents: NDArray[np.int64]
    """The document of each passage, in the order of `passage_ids`."""
    judged: NDArray[np.int64]
    """The document of each judgement."""


def numbered(query_ids: pa.ChunkedArray, passages: pa.Table, judged: pa.ChunkedArray | None = None) -> Numbers:
    """Number the queries and the documents of the passages, and those that are `judged` though no passage is theirs."""
    found = pa.concat_arrays([*passages["doc_id"].chunks, *(judged.chunks if judged else [])]).dictionary_encode()
    numbers = found.indices.to_numpy().astype(np.int64)
    documents, of_judged = numbers[: len(passages)], numbers[len(passages) :]
    return Numbers(query_ids.combine_chunks().unique(), found.dictionary, passages["passage_id"], documents, of_judged)


def graded(qrels: pa.Table, known: Numbers) -> Matrix:
    """Return each query's judged documents by descending grade, which ranx takes as the ideal order."""
    queries = pc.index_in(qrels["query_id"], value_set=known.query_ids).to_numpy().astype(np.int64)
    grades = qrels["grade"].to_numpy().astype(np.float64)
    order = np.lexsort((-grades, queries))
    queries = queries[order]
    return _matrix(queries, _ranks(queries), known.judged[order], grades[order], len(known.query_ids))


def fold(run: pa.Table, known: Numbers, cutoff: int) -> Matrix:
    """Return each query's `cutoff` best documents, best first; none for a query that the run lacks."""
    numbers = pc.index_in(run["query_id"], value_set=known.query_ids)
    if numbers.null_count:  # queries without judgements do not count
        run, numbers = run.filter(numbers.is_valid()), numbers.drop_null()
    rows = pc.index_in(run["passage_id"], value_set=known.passage_ids)
    if rows.null_count:
        missing = run["passage_id"].filter(rows.is_null())[0].as_py()
        raise ValueError(f"the run has passage {missing!r}, which the passages lack")
    queries, scores = numbers.to_numpy().astype(np.int64), run["score"].to_numpy()
    documents = known.documents[rows.to_numpy()]
    order = _ranked(queries, scores, documents, known.doc_ids)
    queries, documents, scores = queries[order], documents[order], scores[order]
    first = _first(queries, documents)
    queries, documents, scores = queries[first], documents[first], scores[first]
    ranks = _ranks(queries)
    best = ranks < cutoff if ranks.max(initial=0) >= cutoff else ALL
    return _matrix(queries[best], ranks[best], documents[best], scores[best], len(known.query_ids))


def without_identical_ids(run: pa.Table, passages: pa.Table) -> pa.Table:
    """Return the run without documents that have the id of their query, as BEIR evaluates."""
    rows = pc.index_in(run["passage_id"], value_set=passages["passage_id"])
    is_other = pc.not_equal(passages["doc_id"].take(rows), run["query_id"])
    return run.filter(pc.fill_null(is_other, True))  # `fold` reports passages that are missing


def _ranked(
    queries: NDArray[np.int64], scores: NDArray[np.float32], documents: NDArray[np.int64], doc_ids: pa.Array
) -> Rows:
    """Return the order of rows by query, descending score and descending document id."""
    same = queries[1:] == queries[:-1]
    in_order = bool(((queries[1:] > queries[:-1]) | (same & (scores[1:] <= scores[:-1]))).all())
    equal = same & (scores[1:] == scores[:-1])
    if in_order and not equal.any():
        return ALL
    order = np.arange(len(queries)) if in_order else np.lexsort((-scores, queries))
    queries, scores = queries[order], scores[order]
    equal = (queries[1:] == queries[:-1]) & (scores[1:] == scores[:-1])
    tied = np.append(equal, False) | np.append(False, equal)
    rows = order[tied]
    distinct, inverse = np.unique(documents[rows], return_inverse=True)
    id_ranks = np.empty(len(distinct), np.int64)
    id_ranks[pc.sort_indices(doc_ids.take(pa.array(distinct)))] = np.arange(len(distinct))
    order[tied] = rows[np.lexsort((-id_ranks[inverse], -scores[tied], queries[tied]))]
    return order


def _first(queries: NDArray[np.int64], documents: NDArray[np.int64]) -> Rows:
    """Return the rows with the first occurrence of their document in their query; rows of a query are adjacent."""
    bits = len(queries).bit_length()
    packed = np.sort(documents << bits | np.arange(len(queries)))  # faster than an argsort
    rows = packed & ((1 << bits) - 1)
    queries = queries[rows]
    repeated = (np.diff(packed >> bits) == 0) & (queries[1:] == queries[:-1])
    if not repeated.any():
        return ALL
    first = np.ones(len(rows), bool)
    first[rows[1:][repeated]] = False
    return first


def _ranks(queries: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rank of each row among the rows of its query, from 0; queries ascend."""
    counts = np.bincount(queries)
    return ranges(np.zeros_like(counts), counts)


def _matrix(
    queries: NDArray[np.int64], ranks: NDArray[np.int64], documents: NDArray[np.int64], values: NDArray[np.number],
    num: int,
) -> Matrix:  # fmt: skip
    longest = int(ranks.max(initial=0)) + 1
    matrix = np.zeros((num * longest, 2))
    matrix[:, 0] = -1
    cells = queries * longest + ranks
    matrix[cells, 0] = documents
    matrix[cells, 1] = values
    return matrix.reshape(num, longest, 2)
