"""Lucene's BM25 without Lucene's index: `bm25s` precomputes the score of each term in each passage and adds these.

Lù, "BM25S: Orders of magnitude faster lexical search via eager sparse scoring", 2024. Terms come from Anserini's
analysis and scores from Lucene's arithmetic, which encodes a passage's length with four significant bits, so lists are
bit by bit those of the engine `bm25`. (A term that occurs three times or more in a query may change the last bit.)

The time of a query grows with the number of passages, more so than with Lucene: bm25s is faster at 89,000 passages
(docs/speed.md); at the 8.8 million of MS MARCO its authors measured 12.2 queries per second, and 11.9 for
Elasticsearch, which uses Lucene. Building takes about 60 bytes of memory for each distinct term of each passage; a
search memory-maps 8 of these and takes 8 bytes for each passage and thread. The first search of a process takes some
seconds longer, for compilation.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.artifact import Artifact
from storage.errors import UserError
from storage.row_index import PassageIndex
from storage.store.publishing import SCRATCH
from storage.tables import Passages, PseudoQueries, Vectors
from storage.vectors import Encoded
from tasks.retrieval.engines.bm25 import OPEN_INDEXES, Bm25, expanded, lists, modified
from tasks.retrieval.lucene.index_reader import LuceneHits, analysed
from tasks.retrieval.ranking import Hits, Lookup, Searcher, in_order
from tasks.runtime.leftovers import record, unfinished
from tasks.session import execution

VIEWS = ("bm25",)
INDEX = Path("bm25s")
TEXTS_PER_BLOCK = 10_000
HITS_PER_BLOCK = 2_000_000  # about 100 MB while they are sorted
EXTRA_HITS = 32  # beyond the depth, to see whether ties at the end of the list are complete


def build(
    out: Path,
    passages: Artifact[Passages],
    vectors: Artifact[Vectors] | None,
    pseudo_queries: Artifact[PseudoQueries] | None,
    settings: Bm25,
) -> None:
    """Score every term of every passage's text, followed by its pseudo-queries if there are any."""
    if vectors is not None:
        raise TypeError("BM25 reads no vectors")
    if not unfinished(out, [str(INDEX)]):
        return
    building = out / SCRATCH / INDEX
    shutil.rmtree(building, ignore_errors=True)
    counts, vocabulary = term_counts(text for _, text in expanded(passages, pseudo_queries))
    index = _package().BM25(k1=settings.k1, b=settings.b, method="lucene", dtype="float64", backend="numba")
    index.scores = {
        "data": term_scores(counts, settings.k1, settings.b), "indices": counts.indices.astype(np.int32),
        "indptr": counts.indptr.astype(np.int64), "num_docs": counts.shape[0],
    }  # fmt: skip
    index.vocab_dict, index.nonoccurrence_array = vocabulary, None
    index.save(building)
    building.rename(out / INDEX)
    record(out, str(INDEX))


def term_counts(texts: Iterable[str]) -> tuple[Any, dict[str, int]]:
    """Return term frequencies as a SciPy CSC matrix [passages, terms], and the number of each term."""
    from scipy.sparse import csr_matrix

    vocabulary: dict[str, int] = {}
    term_numbers, lengths, remaining = [np.zeros(0, np.int32)], [np.zeros(1, np.int64)], iter(texts)
    while block := list(islice(remaining, TEXTS_PER_BLOCK)):
        terms = pc.split_pattern(pa.array(analysed(block), pa.string()), " ")
        terms = pc.if_else(pc.equal(pc.list_element(terms, 0), ""), pa.scalar([], pa.list_(pa.string())), terms)
        flat = pc.list_flatten(terms).dictionary_encode()
        numbers = [vocabulary.setdefault(term, len(vocabulary)) for term in flat.dictionary.to_pylist()]
        term_numbers.append(np.array(numbers, np.int32)[flat.indices.to_numpy()])
        lengths.append(pc.list_value_length(terms).to_numpy().astype(np.int64))
    ids, starts = np.concatenate(term_numbers), np.cumsum(np.concatenate(lengths))
    counts = csr_matrix((np.ones(len(ids), np.float32), ids, starts), (len(starts) - 1, len(vocabulary)))
    counts.sum_duplicates()
    return counts.tocsc(), vocabulary


def term_scores(counts: Any, k1: float, b: float) -> NDArray[np.float32]:
    """Return the score of each term in each passage that has it, in the matrix's order and in Lucene's arithmetic.

    `BM25Similarity`: idf - idf / (1 + tf / (k1 (1 - b + b length / average))), all in single precision, with the idf
    ln(1 + (N - n + 0.5) / (n + 0.5)) in double precision; N is the number of passages with at least one term.
    """
    one, k1_, b_ = np.float32(1), np.float32(k1), np.float32(b)
    lengths = np.asarray(counts.sum(axis=1, dtype=np.int64)).ravel()
    passages, document_frequency = max(1, int((lengths > 0).sum())), np.diff(counts.indptr)
    idf = np.log(1 + (passages - document_frequency + 0.5) / (document_frequency + 0.5)).astype(np.float32)
    average = np.float32(max(1, lengths.sum()) / passages)
    with np.errstate(divide="ignore"):  # k1 = 0: term frequencies do not count
        inverse = one / (k1_ * ((one - b_) + b_ * rounded_length(lengths).astype(np.float32) / average))
    weight = np.repeat(idf, document_frequency)
    scores: NDArray[np.float32] = weight - weight / (one + counts.data * inverse[counts.indices])
    return scores


def rounded_length(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return lengths as Lucene encodes them (`SmallFloat.intToByte4`): what exceeds 24 keeps its four highest bits."""
    above = np.maximum(lengths - 24, 0)
    dropped = np.maximum(np.frexp(above)[1].astype(np.int64) - 4, 0)
    return np.where(lengths < 24, lengths, 24 + (above >> dropped << dropped))


def open_index(
    path: Path,
    vectors: Artifact[Vectors] | None,
    encode: Callable[[Sequence[str]], Encoded] | None,
    ids: PassageIndex,
    view: str,
) -> Searcher:
    """Return a searcher of the index."""
    if vectors is not None or encode is not None:
        raise TypeError("BM25 reads no vectors")
    index = _opened(path, modified(path / INDEX))

    def searcher(texts: Sequence[str]) -> Lookup:
        terms = [index.get_tokens_ids(text.split(" ")) for text in analysed(list(texts))]
        return lambda queries, depth: _retrieve(index, [terms[query] for query in queries], depth, ids)

    return searcher


def term_contributions(
    path: Path, terms: Sequence[str], passage_ids: list[str], ids: PassageIndex
) -> list[list[float]]:
    """Return what one occurrence of each term adds to the score of each passage, a list for each term."""
    index, rows = _opened(path, modified(path / INDEX)), ids.rows(pa.array(passage_ids, pa.string()))
    scores = []
    for term in terms:
        number = index.vocab_dict.get(term)
        start, end = (0, 0) if number is None else index.scores["indptr"][number : number + 2]
        of_passage = dict(
            zip(index.scores["indices"][start:end].tolist(), index.scores["data"][start:end], strict=True)
        )
        scores.append([of_passage.get(row, 0.0) for row in rows.tolist()])
    return scores


@lru_cache(maxsize=OPEN_INDEXES)
def _opened(path: Path, modified: int) -> Any:
    return _package().BM25.load(path / INDEX, mmap=True)


def _retrieve(index: Any, terms: list[list[int]], depth: int, ids: PassageIndex) -> list[Hits]:
    """Return the best passages of each query, given by the numbers of its terms."""
    results = [Hits(ids.descending[:0], np.zeros(0, np.float32))] * len(terms)
    pending, requested = [query for query, numbers in enumerate(terms) if numbers], depth + EXTRA_HITS
    while pending:
        count, incomplete = min(requested, len(ids)), list[int]()
        step = max(1, HITS_PER_BLOCK // count)
        for block in (pending[start : start + step] for start in range(0, len(pending), step)):
            rows, scores = _best([terms[query] for query in block], index, count, ids)
            # If the last score retrieved ties with the last of the list, passages not retrieved may belong to the list.
            lowest = scores[:, -1]
            ends_in_tie = (scores.shape[1] < len(ids)) & (lowest > 0) & (lowest == scores[:, :depth][:, -1])
            matches = scores[:, :depth] > 0
            hits = LuceneHits(rows[:, :depth][matches], scores[:, :depth][matches], matches.sum(axis=1))
            for query, (query_rows, query_scores) in zip(block, lists(hits), strict=True):
                results[query] = in_order(ids, query_rows, query_scores)
            incomplete += [query for query, again in zip(block, ends_in_tie, strict=True) if again]
        pending, requested = incomplete, 2 * requested
    return results


def _best(
    terms: list[list[int]], index: Any, count: int, ids: PassageIndex
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return rows and scores of each query's `count` best passages, [Q, K], ties by ascending id as Anserini sorts.

    Scores are 0 for passages that share no term with the query.
    """

    def retrieve(queries: list[list[int]]) -> Any:
        return index.retrieve(queries, k=count, show_progress=False, n_threads=1)  # releases the GIL

    threads = max(1, execution().threads)
    step = -(-len(terms) // threads)
    with ThreadPoolExecutor(threads) as pool:
        parts = list(pool.map(retrieve, (terms[start : start + step] for start in range(0, len(terms), step))))
    rows = np.concatenate([part[0] for part in parts]).astype(np.int64)
    scores = np.concatenate([part[1] for part in parts]).astype(np.float32)
    order = np.lexsort((-ids.descending[rows], -scores), axis=-1)
    return np.take_along_axis(rows, order, axis=-1), np.take_along_axis(scores, order, axis=-1)


def _package() -> Any:
    try:
        import bm25s
    except ModuleNotFoundError as error:
        raise UserError("bm25s is not installed; install this project with its extra bm25s") from error

    return bm25s
