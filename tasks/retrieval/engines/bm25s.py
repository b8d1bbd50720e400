"""Lucene's BM25 without Lucene's index: each word's score in each passage is worked out once, and `bm25s` adds them up.

Lù, "BM25S: Orders of magnitude faster lexical search via eager sparse scoring", 2024. Words are those of Anserini's
analysis and scores those of Lucene's arithmetic, which keeps four bits of a passage's length; so lists are the engine
`bm25`'s, to the last bit of a score. (A word that a query has three times or more may change that bit.)
A query looks at all passages that share a word with it, after setting all passages' scores to 0, so its time grows
with the passages, and Lucene's does not so much: faster at 89,000 passages (docs/speed.md), it answers 12.2 queries a
second among MS MARCO's 8.8 million as its authors measured it, where Elasticsearch, which is Lucene, answers 11.9.
Building takes about 60 bytes of memory for each different word of each passage; searching maps 8 of them from disk, and
takes 8 for each passage and thread. The first search of a process compiles for some seconds.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.artifact import Artifact
from storage.errors import UserError
from storage.tables import Passages, PseudoQueries, Vectors
from storage.vectors import Encoded
from tasks.retrieval.engines.bm25 import Bm25, expanded, lists
from tasks.retrieval.lucene.index_reader import Found, analysed
from tasks.retrieval.ranking import Hits, Lookup, PassageIds, Searcher
from tasks.runtime.leftovers import record, unfinished
from tasks.session import execution

VIEWS = ("bm25",)
INDEX = Path("bm25s")
TEXTS_AT_ONCE = 10_000
HITS_AT_ONCE = 2_000_000  # some 100 MB while they are sorted
FETCHED_BESIDES = 32  # hits beyond the depth, to see whether equal scores end within the list


def build(
    out: Path,
    passages: Artifact[Passages],
    vectors: Artifact[Vectors] | None,
    pseudo_queries: Artifact[PseudoQueries] | None,
    settings: Bm25,
) -> None:
    """Score every word of every passage's text, with its pseudo-queries appended where they are given."""
    if vectors is not None:
        raise TypeError("BM25 reads no vectors")
    if not unfinished(out, [str(INDEX)]):
        return
    building = out / "scratch" / INDEX
    shutil.rmtree(building, ignore_errors=True)
    counts, vocabulary = counted(text for _, text in expanded(passages, pseudo_queries))
    index = _package().BM25(k1=settings.k1, b=settings.b, method="lucene", dtype="float64", backend="numba")
    index.scores = {
        "data": scored(counts, settings.k1, settings.b), "indices": counts.indices.astype(np.int32),
        "indptr": counts.indptr.astype(np.int64), "num_docs": counts.shape[0],
    }  # fmt: skip
    index.vocab_dict, index.nonoccurrence_array = vocabulary, None
    index.save(building)
    building.rename(out / INDEX)
    record(out, str(INDEX))


def counted(texts: Iterable[str]) -> tuple[Any, dict[str, int]]:
    """How often each passage has each word, as SciPy's CSC matrix [passages, words], and each word's number."""
    from scipy.sparse import csr_matrix

    vocabulary: dict[str, int] = {}
    numbers, lengths, remaining = [np.zeros(0, np.int32)], [np.zeros(1, np.int64)], iter(texts)
    while block := list(islice(remaining, TEXTS_AT_ONCE)):
        words = pc.split_pattern(pa.array(analysed(block), pa.string()), " ")
        words = pc.if_else(pc.equal(pc.list_element(words, 0), ""), pa.scalar([], pa.list_(pa.string())), words)
        flat = pc.list_flatten(words).dictionary_encode()
        known = [vocabulary.setdefault(word, len(vocabulary)) for word in flat.dictionary.to_pylist()]
        numbers.append(np.array(known, np.int32)[flat.indices.to_numpy()])
        lengths.append(pc.list_value_length(words).to_numpy().astype(np.int64))
    ids, starts = np.concatenate(numbers), np.cumsum(np.concatenate(lengths))
    counts = csr_matrix((np.ones(len(ids), np.float32), ids, starts), (len(starts) - 1, len(vocabulary)))
    counts.sum_duplicates()
    return counts.tocsc(), vocabulary


def scored(counts: Any, k1: float, b: float) -> NDArray[np.float32]:
    """The score of each word in each passage that has it, in the matrix's order and in Lucene's arithmetic.

    `BM25Similarity`: idf - idf / (1 + tf / (k1 (1 - b + b length / average))), all in single precision, with the idf
    ln(1 + (N - n + .5) / (n + .5)) of double precision; N counts the passages that have a word.
    """
    one, k1_, b_ = np.float32(1), np.float32(k1), np.float32(b)
    lengths = np.asarray(counts.sum(axis=1, dtype=np.int64)).ravel()
    passages, having = max(1, int((lengths > 0).sum())), np.diff(counts.indptr)
    idf = np.log(1 + (passages - having + 0.5) / (having + 0.5)).astype(np.float32)
    average = np.float32(max(1, lengths.sum()) / passages)
    with np.errstate(divide="ignore"):  # k1 = 0: how often a word occurs does not count
        inverse = one / (k1_ * ((one - b_) + b_ * rounded_length(lengths).astype(np.float32) / average))
    weight = np.repeat(idf, having)
    found: NDArray[np.float32] = weight - weight / (one + counts.data * inverse[counts.indices])
    return found


def rounded_length(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """What Lucene keeps of a passage's number of words (`SmallFloat.intToByte4`): what is above 24, to four bits."""
    above = np.maximum(lengths - 24, 0)
    dropped = np.maximum(np.frexp(above)[1].astype(np.int64) - 4, 0)
    return np.where(lengths < 24, lengths, 24 + (above >> dropped << dropped))


def open_index(
    path: Path,
    vectors: Artifact[Vectors] | None,
    encode: Callable[[Sequence[str]], Encoded] | None,
    ids: PassageIds,
    view: str,
) -> Searcher:
    """Open an index for search."""
    if vectors is not None or encode is not None:
        raise TypeError("BM25 reads no vectors")
    index = _package().BM25.load(path / INDEX, mmap=True)

    def searcher(texts: Sequence[str]) -> Lookup:
        words = [index.get_tokens_ids(text.split(" ")) for text in analysed(list(texts))]
        return lambda queries, depth: _found(index, [words[query] for query in queries], depth, ids)

    return searcher


def _found(index: Any, words: list[list[int]], depth: int, ids: PassageIds) -> list[Hits]:
    """The best passages of each query, given as numbers of words."""
    found = [Hits(ids.descending[:0], np.zeros(0, np.float32))] * len(words)
    waiting, fetched = [query for query, each in enumerate(words) if each], depth + FETCHED_BESIDES
    while waiting:
        count, tied = min(fetched, len(ids)), list[int]()
        step = max(1, HITS_AT_ONCE // count)
        for some in (waiting[start : start + step] for start in range(0, len(waiting), step)):
            places, scores = _best([words[query] for query in some], index, count, ids)
            # Where the last is as good as the last that counts, one that was not fetched may come before it.
            cut_off = (scores.shape[1] < len(ids)) & (scores[:, -1] > 0) & (scores[:, -1] == scores[:, :depth][:, -1])
            counting = scores[:, :depth] > 0
            each = Found(places[:, :depth][counting], scores[:, :depth][counting], counting.sum(axis=1))
            for query, (numbers, own) in zip(some, lists(each), strict=True):
                found[query] = ids.in_order(numbers, own)
            tied += [query for query, again in zip(some, cut_off, strict=True) if again]
        waiting, fetched = tied, 2 * fetched
    return found


def _best(
    words: list[list[int]], index: Any, count: int, ids: PassageIds
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The `count` best passages of each query and their scores, [Q, K], equal ones by ascending id as Anserini sorts.

    Scores are 0 where no more passages share a word.
    """

    def part(queries: list[list[int]]) -> Any:
        return index.retrieve(queries, k=count, show_progress=False, n_threads=1)  # which lets other threads run

    threads = max(1, execution().threads)
    step = -(-len(words) // threads)
    with ThreadPoolExecutor(threads) as pool:
        parts = list(pool.map(part, (words[start : start + step] for start in range(0, len(words), step))))
    places = np.concatenate([part[0] for part in parts]).astype(np.int64)
    scores = np.concatenate([part[1] for part in parts]).astype(np.float32)
    order = np.lexsort((-ids.descending[places], -scores), axis=-1)
    return np.take_along_axis(places, order, axis=-1), np.take_along_axis(scores, order, axis=-1)


def _package() -> Any:
    try:
        import bm25s
    except ModuleNotFoundError as error:
        raise UserError("bm25s is not installed; install this project with its extra bm25s") from error

    return bm25s
