"""Fold ranked passages to ranked documents: a document has the score of its best passage (MaxP).

Everything is numbered, queries by their place among those that are measured; ids are compared only where scores are
equal. Documents are ranked as trec_eval ranks them: by float32 score, falling, and equal scores by document id,
descending, whatever ranks the run gives. Runs mostly lie in that order already, so nothing is sorted but what does not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
"""[queries, longest list, 2]: document number and score (or grade); absent places hold document -1."""
Rows = NDArray[np.int64] | NDArray[np.bool_] | slice
ALL = slice(None)  # of rows: as they are, without a copy


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
    """Each query's judged documents by falling grade: what ranx takes for the ideal order."""
    queries = pc.index_in(qrels["query_id"], value_set=known.query_ids).to_numpy().astype(np.int64)
    grades = qrels["grade"].to_numpy().astype(np.float64)
    order = np.lexsort((-grades, queries))
    queries = queries[order]
    return _matrix(queries, _rank(queries), known.judged[order], grades[order], len(known.query_ids))


def fold(run: pa.Table, known: Numbers, cutoff: int) -> Matrix:
    """Each query's `cutoff` best documents, best first; a query that the run lacks has none."""
    numbers = pc.index_in(run["query_id"], value_set=known.query_ids)
    if numbers.null_count:  # queries that nobody judged do not count
        run, numbers = run.filter(numbers.is_valid()), numbers.drop_null()
    places = pc.index_in(run["passage_id"], value_set=known.passage_ids)
    if places.null_count:
        missing = run["passage_id"].filter(places.is_null())[0].as_py()
        raise ValueError(f"the run has passage {missing!r}, which the passages lack")
    queries, scores = numbers.to_numpy().astype(np.int64), run["score"].to_numpy()
    documents = known.documents[places.to_numpy()]
    order = _ranked(queries, scores, documents, known.doc_ids)
    queries, documents, scores = queries[order], documents[order], scores[order]
    first = _first(queries, documents)
    queries, documents, scores = queries[first], documents[first], scores[first]
    ranks = _rank(queries)
    best = ranks < cutoff if ranks.max(initial=0) >= cutoff else ALL
    return _matrix(queries[best], ranks[best], documents[best], scores[best], len(known.query_ids))


def without_identical_ids(run: pa.Table, passages: pa.Table) -> pa.Table:
    """The run without documents that have their query's own id, which are the query itself (as BEIR evaluates)."""
    places = pc.index_in(run["passage_id"], value_set=passages["passage_id"])
    others = pc.not_equal(passages["doc_id"].take(places), run["query_id"])
    return run.filter(pc.fill_null(others, True))  # what the passages lack is for `fold` to name


def _ranked(
    queries: NDArray[np.int64], scores: NDArray[np.float32], documents: NDArray[np.int64], doc_ids: pa.Array
) -> Rows:
    """The order of rows by query, falling score and descending id of the document."""
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
    among, inverse = np.unique(documents[rows], return_inverse=True)
    by_id = np.empty(len(among), np.int64)
    by_id[pc.sort_indices(doc_ids.take(pa.array(among)))] = np.arange(len(among))
    order[tied] = rows[np.lexsort((-by_id[inverse], -scores[tied], queries[tied]))]
    return order


def _first(queries: NDArray[np.int64], documents: NDArray[np.int64]) -> Rows:
    """The rows that name their document for the first time in their query; rows of a query stand together."""
    bits = len(queries).bit_length()
    packed = np.sort(documents << bits | np.arange(len(queries)))  # by document, then by row: several times an argsort
    rows = packed & ((1 << bits) - 1)
    queries = queries[rows]
    again = (np.diff(packed >> bits) == 0) & (queries[1:] == queries[:-1])
    if not again.any():
        return ALL
    first = np.ones(len(rows), bool)
    first[rows[1:][again]] = False
    return first


def _rank(queries: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of each row among the rows of its query, from 0; rows of a query stand together."""
    starts = np.flatnonzero(np.diff(queries, prepend=-1))
    return np.arange(len(queries)) - np.repeat(starts, np.diff(starts, append=len(queries)))


def _matrix(
    queries: NDArray[np.int64], ranks: NDArray[np.int64], documents: NDArray[np.int64], values: NDArray[np.number],
    num: int,
) -> Matrix:  # fmt: skip
    longest = int(ranks.max(initial=0)) + 1
    matrix = np.zeros((num * longest, 2))
    matrix[:, 0] = -1
    places = queries * longest + ranks
    matrix[places, 0] = documents
    matrix[places, 1] = values
    return matrix.reshape(num, longest, 2)
