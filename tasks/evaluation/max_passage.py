"""Fold ranked passages to ranked documents: the score of a document is that of its best passage (MaxP).

Queries and documents are numbered; ids are compared only where scores tie. Documents are ranked as by trec_eval: by
descending float32 score, and ties by descending document id, whatever ranks the run gives. Most runs are in that order
already, and only rows that are not are sorted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.row_index import PassageIndex, RowIndex
from tasks.retrieval.ranking import ranges

Matrix = NDArray[np.float64]
"""[queries, longest list, 2]: document number and score (or grade); shorter lists are padded with document -1."""
ALL = slice(None)  # selects all rows without a copy
DOCUMENTS_PER_BLOCK = 2**18  # that are looked up among the judged ones at a time


def graded(qrels: pa.Table, queries: RowIndex, passages: PassageIndex) -> Matrix:
    """Return each query's judged documents by descending grade, which ranx takes as the ideal order.

    A judged document without passages has a number above those of the passages' documents.
    """
    rows = queries.rows(qrels["query_id"])
    grades = qrels["grade"].to_numpy().astype(np.float64)
    judged = RowIndex(qrels["doc_id"].unique())  # mostly few: faster than an index of all documents
    numbers = len(passages.doc_ids) + np.arange(len(judged))
    for start in range(0, len(passages.doc_ids), DOCUMENTS_PER_BLOCK):
        judged_of_document = judged.rows(passages.doc_ids[start : start + DOCUMENTS_PER_BLOCK])
        is_judged = judged_of_document >= 0
        numbers[judged_of_document[is_judged]] = start + np.flatnonzero(is_judged)
    documents = numbers[judged.rows(qrels["doc_id"])]
    order = np.lexsort((-grades, rows))
    rows = rows[order]
    return _matrix(rows, _ranks(rows), documents[order], grades[order], len(queries))


def fold(run: pa.Table, queries: RowIndex, passages: PassageIndex, cutoff: int) -> Matrix:
    """Return each query's `cutoff` best documents, best first; none for a query that the run lacks."""
    rows = queries.rows(run["query_id"])
    if (rows < 0).any():  # queries without judgements do not count
        run, rows = run.filter(pa.array(rows >= 0)), rows[rows >= 0]
    documents = passages.documents[passages.require(run["passage_id"], _unknown_passage)].astype(np.int64)
    scores = run["score"].to_numpy()
    order = _ranked(rows, scores, documents, passages.doc_ids)
    rows, documents, scores = rows[order], documents[order], scores[order]
    first = _first(rows, documents)
    rows, documents, scores = rows[first], documents[first], scores[first]
    ranks = _ranks(rows)
    best = ranks < cutoff if ranks.max(initial=0) >= cutoff else ALL
    return _matrix(rows[best], ranks[best], documents[best], scores[best], len(queries))


def fold_blocks(
    blocks: Iterable[pa.Table], queries: RowIndex, passages: PassageIndex, cutoff: int
) -> Iterator[tuple[NDArray[np.int64], Matrix]]:
    """Yield the rows of a block's queries in `queries`, and the `cutoff` best documents of each of them, best first.

    A block has all rows of its queries. Queries that `queries` lacks are left out.
    """
    is_read = np.zeros(len(queries), bool)
    for block in blocks:
        ids = block["query_id"].unique()
        rows = queries.rows(ids)
        ids, rows = ids.filter(pa.array(rows >= 0)), rows[rows >= 0]
        if is_read[rows].any():
            apart = ids[int(is_read[rows].argmax())].as_py()
            raise ValueError(f"the run has rows of query {apart!r} in several places; expected them together")
        is_read[rows] = True
        yield rows, fold(block, RowIndex(ids), passages, cutoff)


def without_identical_ids(run: pa.Table, passages: PassageIndex) -> pa.Table:
    """Return the run without documents that have the id of their query, as BEIR evaluates."""
    rows = passages.rows(run["passage_id"])
    own_documents = passages.document_index.rows(run["query_id"])
    return run.filter(pa.array((rows < 0) | (passages.documents[rows] != own_documents)))  # `fold` reports row -1


def _unknown_passage(passage_id: str) -> ValueError:
    return ValueError(f"the run has passage {passage_id!r}, which the passages lack")


def _ranked(
    queries: NDArray[np.int64], scores: NDArray[np.float32], documents: NDArray[np.int64], doc_ids: pa.Array
) -> NDArray[np.int64] | NDArray[np.bool_] | slice:
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


def _first(queries: NDArray[np.int64], documents: NDArray[np.int64]) -> NDArray[np.int64] | NDArray[np.bool_] | slice:
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
