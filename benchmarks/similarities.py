"""MaxSim and lexical scores, exact and by Seismic, beside a naive einsum, SciPy's sparse product and pyseismic-lsr.

Vectors of tokens are random, of length 1, about a direction for each word piece, so that a token is like others of its
word piece. Lexical weights are made like SPLADE's: 150 word pieces of a passage are drawn by a Zipf law, about 136 are
different; a query has about 30, of which two thirds are a passage's. Ours reads from disk by memory map and gives
scores of double precision; the peers hold all in memory and compute in single precision (Seismic: half).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.contest import OURS, Case
from benchmarks.searched import stored
from storage.artifact import Artifact
from storage.vectors import Encoded, SparseRows, TokenRows
from tasks.retrieval.engines import seismic
from tasks.retrieval.engines.exact import ExactSearch
from tasks.retrieval.index import INDEX_JSON
from tasks.retrieval.ranking import Hits, Lookup

DEVICES = ("cpu",)
DIMENSION, QUERY_TOKENS, PASSAGE_TOKENS = 128, 32, 60
VOCABULARY, QUERY_DRAWS, PASSAGE_DRAWS = 30_522, 30, 150
DEPTH = 100
EINSUM, SCIPY, SEISMIC = "einsum over all tokens", "SciPy csr @ csr.T", "pyseismic-lsr"


def cases(device: str, *, small: bool) -> Iterator[Case]:
    """MaxSim of given pairs and as a search; lexical search, exact and by Seismic."""
    yield from _late(4 if small else 16, 100 if small else 2000)
    queries, passages = (16, 2000) if small else (256, 50_000)
    yield from _lexical(queries, passages)
    yield from _seismic(*((queries, passages) if small else (1000, 10_000)))


def _tokens(draw: np.random.Generator, texts: int, length: int, directions: NDArray[np.float32]) -> TokenRows:
    kinds = draw.zipf(1.3, texts * length) % len(directions)
    vectors = directions[kinds] + 0.8 * draw.standard_normal((len(kinds), DIMENSION), dtype=np.float32) / DIMENSION**0.5
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return TokenRows(np.arange(texts + 1) * length, vectors.astype(np.float32), np.empty(0, np.int32))


def _late(queries: int, passages: int) -> Iterator[Case]:
    """Every query with every passage: the scores alone, and the best passages' lists."""
    import torch

    draw = np.random.default_rng(8)
    directions = draw.standard_normal((1000, DIMENSION), dtype=np.float32)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    asked = _tokens(draw, queries, QUERY_TOKENS, directions)
    found = _tokens(draw, passages, PASSAGE_TOKENS, directions)
    queries_QID = torch.from_numpy(asked.vectors).view(queries, QUERY_TOKENS, DIMENSION)
    passages_PTD = torch.from_numpy(found.vectors).view(passages, PASSAGE_TOKENS, DIMENSION)

    def einsum() -> Any:
        return torch.einsum("qid,ptd->qpit", queries_QID, passages_PTD).max(dim=-1).values.sum(dim=-1)

    size = f"{queries} queries x {QUERY_TOKENS} tokens, {passages:,} passages x {PASSAGE_TOKENS} x {DIMENSION}"
    with stored(Encoded(late=found)) as (vectors, ids):
        numbers, places = np.divmod(np.arange(queries * passages, dtype=np.int64), passages)
        yield Case(
            f"MaxSim re-scoring, {size}",
            {OURS: lambda: vectors.scores(Encoded(late=asked), numbers, places), EINSUM: einsum},
            targets={EINSUM: 3.0},
            compared=lambda made: _same_scores(made[OURS], made[EINSUM].numpy().ravel()),
            units={"pairs": queries * passages},
        )
        find = ExactSearch(vectors, ids)
        yield Case(
            f"MaxSim search, {size}, top {DEPTH}",
            {OURS: lambda: find(Encoded(late=asked), DEPTH), EINSUM: lambda: einsum().topk(min(DEPTH, passages))},
            targets={EINSUM: 3.0},
            compared=lambda made: _same_lists(made[OURS], made[EINSUM].values.numpy()),
            units={"queries": queries},
        )


def _weights(draw: np.random.Generator, queries: int, passages: int) -> tuple[SparseRows, SparseRows]:
    """Queries and passages; a query has two thirds of its word pieces from a passage."""
    share = 1 / np.arange(10, VOCABULARY + 10)
    cumulated = np.cumsum(share / share.sum())

    def pieces(texts: int, each: int) -> NDArray[np.int64]:
        drawn = np.minimum(np.searchsorted(cumulated, draw.random(texts * each)), VOCABULARY - 1)
        return drawn + VOCABULARY * np.repeat(np.arange(texts), each)

    found = _rows(draw, pieces(passages, PASSAGE_DRAWS), passages)
    own = found.taken(draw.integers(0, passages, queries))
    kept = draw.random(len(own.ids)) < QUERY_DRAWS * 2 / 3 * queries / len(own.ids)
    numbers = np.repeat(np.arange(queries), np.diff(own.offsets))
    asked = np.concatenate([pieces(queries, QUERY_DRAWS // 3), (own.ids + VOCABULARY * numbers)[kept]])
    return _rows(draw, asked, queries), found


def _rows(draw: np.random.Generator, keys: NDArray[np.int64], texts: int) -> SparseRows:
    """A rare word piece weighs up to twice as much as a common one, and a word piece is there once."""
    numbers, ids = np.divmod(np.unique(keys), VOCABULARY)
    values = draw.lognormal(-1.0, 0.6, len(ids)) * (1 + np.log1p(ids) / np.log(VOCABULARY))
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(numbers, minlength=texts))])
    return SparseRows(offsets, ids.astype(np.int32), values.astype(np.float32))


def _matrix(rows: SparseRows) -> Any:
    from scipy.sparse import csr_matrix

    return csr_matrix((rows.values, rows.ids, rows.offsets.astype(np.int32)), shape=(len(rows), VOCABULARY))


def _lexical(queries: int, passages: int) -> Iterator[Case]:
    asked, found = _weights(np.random.default_rng(8), queries, passages)
    queries_QV, passages_PV = _matrix(asked), _matrix(found)

    def scipy() -> list[NDArray[np.float32]]:
        products = queries_QV @ passages_PV.T
        rows = (products.data[start:end] for start, end in zip(products.indptr[:-1], products.indptr[1:], strict=True))
        return [np.sort(row[np.argpartition(row, -DEPTH)[-DEPTH:]])[::-1] for row in rows]

    with stored(Encoded(lexical=found)) as (vectors, ids):
        find = ExactSearch(vectors, ids)
        yield Case(
            f"lexical search, {queries} queries x {passages:,} passages, top {DEPTH}",
            {OURS: lambda: find(Encoded(lexical=asked), DEPTH), SCIPY: scipy},
            targets={SCIPY: 3.0},
            compared=lambda made: _same_lists(made[OURS], made[SCIPY]),
            units={"queries": queries},
        )


def _seismic(queries: int, passages: int) -> Iterator[Case]:
    """The engine with its defaults, and its package called query by query as its guide says."""
    os.environ["RAYON_NUM_THREADS"] = "1"
    asked, found = _weights(np.random.default_rng(9), queries, passages)
    with stored(Encoded(lexical=found)) as (vectors, ids):
        settings, folder = seismic.Seismic(engine="seismic"), vectors.folder.parent / "index"
        artifact: Artifact[Any] = Artifact("encode", "", vectors.folder)
        seismic.build(folder, Artifact("split_corpus", "", folder), artifact, None, settings)
        (folder / INDEX_JSON).write_text(settings.model_dump_json())
        searcher = seismic.open_index(folder, artifact, lambda texts: Encoded(lexical=asked), ids, "lexical")
        lookup = searcher([""] * queries)
        exact = ExactSearch(vectors, ids)(Encoded(lexical=asked), DEPTH)
        yield Case(
            f"Seismic, {queries} queries x {passages:,} passages, top {DEPTH}",
            {OURS: _by_engine(lookup, queries), SEISMIC: _by_package(folder / seismic.INDEX, asked, settings)},
            targets={SEISMIC: 0.9},
            compared=lambda made: _recall(made, exact),
            units={"queries": queries},
        )


def _by_engine(lookup: Lookup, queries: int) -> Callable[[], list[Hits]]:
    return lambda: lookup(range(queries), DEPTH)


def _by_package(index: Path, asked: SparseRows, settings: seismic.Seismic) -> Callable[[], list[Any]]:
    from seismic import SeismicIndexRaw

    opened = SeismicIndexRaw.load(str(index))
    rows = [asked.rows(number, number + 1) for number in range(len(asked))]
    return lambda: [
        opened.search(row.ids, row.values, DEPTH, settings.query_cut, settings.heap_factor, 0, True) for row in rows
    ]


def _same_scores(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> dict[str, Any]:
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    return {"largest difference of a score, as a share": float(np.abs(theirs / ours - 1).max())}


def _same_lists(ours: Sequence[Hits], scores: Sequence[NDArray[np.float32]]) -> dict[str, Any]:
    for hits, theirs in zip(ours, scores, strict=True):
        np.testing.assert_allclose(hits.scores, theirs, rtol=1e-5)
    return {"lists of equal scores": len(ours)}


def _recall(made: Mapping[str, Any], exact: Sequence[Hits]) -> dict[str, Any]:
    """What share of the exact lists each found; no passage is indexed under another place, as none is empty."""
    ours = [set(hits.rows.tolist()) for hits in made[OURS]]
    theirs = [{place for _, place in hits} for hits in made[SEISMIC]]
    shares = [
        float(np.mean([len(found & set(hits.rows.tolist())) / DEPTH for found, hits in zip(lists, exact, strict=True)]))
        for lists in (ours, theirs)
    ]
    assert shares[0] >= shares[1], shares
    return {f"share of the exact {DEPTH}, ours": round(shares[0], 4), f"share, {SEISMIC}": round(shares[1], 4)}
