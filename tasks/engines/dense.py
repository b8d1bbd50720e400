"""Dense vectors and FAISS: passages and queries become one vector each, the score is their inner product.

The `Flat` index is searched exactly: FAISS proposes, the proposed passages are scored again in double
precision, and ties go by passage id. So scores depend on the two vectors alone, not on how many queries are
searched together, and a list is the same whole or in shards. Other FAISS factories are searched as FAISS does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from storage.artifact import Artifact
from storage.errors import UserError
from storage.files import writing
from storage.rows import num_rows, read_rows
from storage.tables import Checkpoint, Passages, PseudoQueries, passage_text
from storage.vectors import Vectors, read_vectors, vectors_path, write_vectors
from tasks.encode import TextEncoder
from tasks.hits import Hits, Lookup, PassageIds, Searcher
from tasks.index import EngineSettings, describe
from tasks.progress import bar
from tasks.stage import execution

VIEW = "dense"
INDEX = "index.faiss"
PASSAGES_PER_SHARD = 8192  # a finished shard is never encoded again; it decides what shares a batch, so it is fixed
TRAINING_VECTORS = 262_144  # what a factory with a training step (IVF, PQ) sees at most
FETCHED_BESIDES = 32  # proposals beyond the depth, among which rounding may have hidden a better one


class Dense(EngineSettings):
    """One vector a passage, searched with FAISS."""

    engine: Literal["dense"]
    factory: str
    """FAISS's name of the kind of index: Flat is exact; IVF256,Flat, HNSW32 and others are not."""
    query_max_tokens: int = Field(gt=2)
    """With [CLS] and [SEP]."""
    passage_max_tokens: int = Field(gt=2)


def build(
    out: Path,
    passages: Artifact[Passages],
    checkpoint: Artifact[Checkpoint] | None,
    pseudo_queries: Artifact[PseudoQueries] | None,
    settings: Dense,
) -> None:
    """Encode all passages, shard by shard, and write them as one FAISS index in the order of the table."""
    if checkpoint is None or pseudo_queries is not None:
        raise TypeError("a dense index needs a checkpoint and reads no pseudo-queries")
    if (out / INDEX).exists():
        return
    folder = out / "scratch" / "vectors"
    shards = encode_passages(folder, passages, checkpoint, settings.passage_max_tokens)
    with writing(out / INDEX) as temporary:
        _faiss().write_index(build_index(folder, shards, settings.factory), str(temporary))


def encode_passages(
    folder: Path, passages: Artifact[Passages], checkpoint: Artifact[Checkpoint], max_tokens: int
) -> int:
    """Write every passage's vector, `PASSAGES_PER_SHARD` a file, skipping finished files; return their number."""
    total, rows = num_rows(passages.path), read_rows(passages, Passages)
    encoder, shard = TextEncoder(checkpoint.path), 0
    with bar(what="encoding", unit="passages", total=total) as counter:
        while block := list(islice(rows, PASSAGES_PER_SHARD)):
            if vectors_path(folder, shard).exists():
                counter.update(len(block))
            else:
                texts = [passage_text(row["title"], row["text"]) for row in block]
                write_vectors(folder, shard, encoder(texts, "passage", max_tokens, counter.update))
            shard += 1
    return shard


def build_index(folder: Path, shards: int, factory: str) -> Any:
    """A FAISS index of all shards' vectors, by inner product."""
    faiss = _faiss()
    if "HNSW" in factory or "NSG" in factory:
        faiss.omp_set_num_threads(1)  # graphs grow differently each time when threads add to them
    dimension = read_vectors(folder, 0).shape[1]
    try:
        index = faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise UserError(f"index.factory: FAISS does not know {factory!r}; try Flat, HNSW32 or IVF256,Flat") from error
    if not index.is_trained:
        index.train(_sample(folder, shards))
    for shard in range(shards):
        index.add(read_vectors(folder, shard))
    return index


def _sample(folder: Path, shards: int) -> Vectors:
    each = -(-TRAINING_VECTORS // shards)
    vectors = (read_vectors(folder, shard) for shard in range(shards))
    return np.concatenate([block[:: max(1, len(block) // each)] for block in vectors])


def open_index(path: Path, checkpoint: Artifact[Checkpoint] | None, ids: PassageIds) -> Searcher:
    """Open an index for search with the checkpoint that made it."""
    if checkpoint is None:
        raise TypeError("a dense index is searched with the checkpoint that made it")
    faiss, encoder = _faiss(), TextEncoder(checkpoint.path)
    index = faiss.read_index(str(path / INDEX))
    if index.ntotal != len(ids):
        raise ValueError(f"{path / INDEX} holds {index.ntotal} vectors, the passages are {len(ids)}")
    max_tokens = int(str(describe(path)["query_max_tokens"]))
    find = Exact(index, ids) if isinstance(index, faiss.IndexFlat) else Approximate(index, ids)

    def searcher(texts: Sequence[str]) -> Lookup:
        queries_QD = encoder(texts, "query", max_tokens)
        return lambda queries, depth: list(find(queries_QD[list(queries)], depth))

    return searcher


class Approximate:
    """A FAISS index that proposes what it finds, with FAISS's scores."""

    def __init__(self, index: Any, ids: PassageIds) -> None:
        self.index, self.ids = index, ids

    def __call__(self, queries_QD: Vectors, depth: int) -> Iterator[Hits]:
        """Each query's hits, at most `depth`."""
        scores_QK, places_QK = self.index.search(queries_QD, min(depth, self.index.ntotal))
        for scores, places in zip(scores_QK, places_QK, strict=True):
            found = places >= 0  # FAISS fills up with -1
            yield self.ids.in_order(places[found], scores[found])


class Exact:
    """A Flat index whose lists are those of double precision, rounded to float32."""

    def __init__(self, index: Any, ids: PassageIds) -> None:
        self.index, self.ids = index, ids
        size = index.ntotal * index.d
        self.vectors: Vectors = _faiss().rev_swig_ptr(index.get_xb(), size).reshape(index.ntotal, index.d)
        self.longest = max((float(np.linalg.norm(block, axis=1).max()) for block in _blocks(self.vectors)), default=0.0)

    def __call__(self, queries_QD: Vectors, depth: int) -> Iterator[Hits]:
        """Each query's `depth` best passages, or all."""
        fetched = min(depth + FETCHED_BESIDES, self.index.ntotal)
        scores_QK, places_QK = self.index.search(queries_QD, fetched)
        for query_D, scores, places in zip(queries_QD, scores_QK, places_QK, strict=True):
            yield self._certain(query_D, depth, scores, places)

    def _certain(self, query_D: Vectors, depth: int, scores: NDArray[np.float32], places: NDArray[np.int64]) -> Hits:
        """The `depth` best, fetching more while one that was not fetched might belong to them."""
        while True:
            hits = self.ids.in_order(places, self._scores(query_D, places))
            if len(places) == self.index.ntotal or scores[-1] + self._error(query_D) < hits.scores[depth - 1]:
                return Hits(hits.places[:depth], hits.scores[:depth])
            more = min(2 * len(places), self.index.ntotal)
            scores, places = (found[0] for found in self.index.search(query_D[None], more))

    def _scores(self, query_D: Vectors, places: NDArray[np.int64]) -> NDArray[np.float32]:
        products = self.vectors[places].astype(np.float64) * query_D.astype(np.float64)
        scores: NDArray[np.float32] = products.sum(axis=1).astype(np.float32)
        return scores

    def _error(self, query_D: Vectors) -> float:
        """The most by which FAISS's sum in single precision and the float32 it is compared with may be wrong."""
        unit = float(np.finfo(np.float32).eps)
        return float((self.index.d + 2) * unit * np.linalg.norm(query_D) * self.longest)


def _blocks(vectors: Vectors) -> Iterator[Vectors]:
    return (vectors[start : start + 65_536] for start in range(0, len(vectors), 65_536))


def _faiss() -> Any:
    try:
        import faiss
    except ModuleNotFoundError as error:
        raise UserError("FAISS is not installed; install this project with its extra cpu or gpu") from error

    faiss.omp_set_num_threads(execution().threads)
    return faiss
