"""MaxSim and lexical scores, exact and by Seismic, compared with einsum, SciPy's sparse product and pyseismic-lsr.

Token vectors are random unit vectors around a direction for each WordPiece token, so that equal tokens are similar.
Lexical weights are distributed like SPLADE's: a passage samples 150 tokens by a Zipf law, about 136 of them distinct; a
query has about 30, two thirds of them from a passage. Ours memory-maps vectors from disk and returns scores of double
precision; the baselines hold all data in memory and compute in single precision (Seismic: half precision).
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
    """Yield MaxSim re-scoring and search, then lexical search, exact and by Seismic."""
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
    """Yield the cases of all pairs: re-scoring, and search."""
    import torch

    draw = np.random.default_rng(8)
    directions = draw.standard_normal((1000, DIMENSION), dtype=np.float32)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    query_rows = _tokens(draw, queries, QUERY_TOKENS, directions)
    passage_rows = _tokens(draw, passages, PASSAGE_TOKENS, directions)
    queries_QID = torch.from_numpy(query_rows.vectors).view(queries, QUERY_TOKENS, DIMENSION)
    passages_PTD = torch.from_numpy(passage_rows.vectors).view(passages, PASSAGE_TOKENS, DIMENSION)

    def einsum() -> Any:
        return torch.einsum("qid,ptd->qpit", queries_QID, passages_PTD).max(dim=-1).values.sum(dim=-1)

    size = f"{queries} queries x {QUERY_TOKENS} tokens, {passages:,} passages x {PASSAGE_TOKENS} x {DIMENSION}"
    with stored(Encoded(late=passage_rows)) as (vectors, ids):
        pairs = np.divmod(np.arange(queries * passages, dtype=np.int64), passages)
        yield Case(
            f"MaxSim re-scoring, {size}",
            {OURS: lambda: vectors.scores(Encoded(late=query_rows), *pairs), EINSUM: einsum},
            targets={EINSUM: 3.0},
            compared=lambda results: _same_scores(results[OURS], results[EINSUM].numpy().ravel()),
            units={"pairs": queries * passages},
        )
        search = ExactSearch(vectors, ids)
        yield Case(
            f"MaxSim search, {size}, top {DEPTH}",
            {
                OURS: lambda: search(Encoded(late=query_rows), DEPTH),
                EINSUM: lambda: einsum().topk(min(DEPTH, passages)),
            },
            targets={EINSUM: 3.0},
            compared=lambda results: _same_lists(results[OURS], results[EINSUM].values.numpy()),
            units={"queries": queries},
        )


def _weights(draw: np.random.Generator, queries: int, passages: int) -> tuple[SparseRows, SparseRows]:
    """Return queries and passages; two thirds of a query's tokens are from a passage."""
    share = 1 / np.arange(10, VOCABULARY + 10)
    cumulated = np.cumsum(share / share.sum())

    def tokens(texts: int, per_text: int) -> NDArray[np.int64]:
        sample = np.minimum(np.searchsorted(cumulated, draw.random(texts * per_text)), VOCABULARY - 1)
        return sample + VOCABULARY * np.repeat(np.arange(texts), per_text)

    passage_rows = _rows(draw, tokens(passages, PASSAGE_DRAWS), passages)
    own = passage_rows.taken(draw.integers(0, passages, queries))
    kept = draw.random(len(own.ids)) < QUERY_DRAWS * 2 / 3 * queries / len(own.ids)
    numbers = np.repeat(np.arange(queries), np.diff(own.offsets))
    keys = np.concatenate([tokens(queries, QUERY_DRAWS // 3), (own.ids + VOCABULARY * numbers)[kept]])
    return _rows(draw, keys, queries), passage_rows


def _rows(draw: np.random.Generator, keys: NDArray[np.int64], texts: int) -> SparseRows:
    """Return rows of distinct tokens; rare tokens weigh up to twice as much as common ones."""
    numbers, ids = np.divmod(np.unique(keys), VOCABULARY)
    values = draw.lognormal(-1.0, 0.6, len(ids)) * (1 + np.log1p(ids) / np.log(VOCABULARY))
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(numbers, minlength=texts))])
    return SparseRows(offsets, ids.astype(np.int32), values.astype(np.float32))


def _matrix(rows: SparseRows) -> Any:
    from scipy.sparse import csr_matrix

    return csr_matrix((rows.values, rows.ids, rows.offsets.astype(np.int32)), shape=(len(rows), VOCABULARY))


def _lexical(queries: int, passages: int) -> Iterator[Case]:
    query_rows, passage_rows = _weights(np.random.default_rng(8), queries, passages)
    queries_QV, passages_PV = _matrix(query_rows), _matrix(passage_rows)

    def scipy() -> list[NDArray[np.float32]]:
        products = queries_QV @ passages_PV.T
        rows = (products.data[start:end] for start, end in zip(products.indptr[:-1], products.indptr[1:], strict=True))
        return [np.sort(row[np.argpartition(row, -DEPTH)[-DEPTH:]])[::-1] for row in rows]

    with stored(Encoded(lexical=passage_rows)) as (vectors, ids):
        search = ExactSearch(vectors, ids)
        yield Case(
            f"lexical search, {queries} queries x {passages:,} passages, top {DEPTH}",
            {OURS: lambda: search(Encoded(lexical=query_rows), DEPTH), SCIPY: scipy},
            targets={SCIPY: 3.0},
            compared=lambda results: _same_lists(results[OURS], results[SCIPY]),
            units={"queries": queries},
        )


def _seismic(queries: int, passages: int) -> Iterator[Case]:
    """Yield the engine with its defaults, compared with its package called query by query as its guide says."""
    os.environ["RAYON_NUM_THREADS"] = "1"
    query_rows, passage_rows = _weights(np.random.default_rng(9), queries, passages)
    with stored(Encoded(lexical=passage_rows)) as (vectors, ids):
        settings, folder = seismic.Seismic(engine="seismic"), vectors.folder.parent / "index"
        artifact: Artifact[Any] = Artifact("encode", "", vectors.folder)
        seismic.build(folder, Artifact("split_corpus", "", folder), artifact, None, settings)
        (folder / INDEX_JSON).write_text(settings.model_dump_json())
        searcher = seismic.open_index(folder, artifact, lambda texts: Encoded(lexical=query_rows), ids, "lexical")
        lookup = searcher([""] * queries)
        exact = ExactSearch(vectors, ids)(Encoded(lexical=query_rows), DEPTH)
        yield Case(
            f"Seismic, {queries} queries x {passages:,} passages, top {DEPTH}",
            {OURS: _by_engine(lookup, queries), SEISMIC: _by_package(folder / seismic.INDEX, query_rows, settings)},
            targets={SEISMIC: 0.9},
            compared=lambda results: _recall(results, exact),
            units={"queries": queries},
        )


def _by_engine(lookup: Lookup, queries: int) -> Callable[[], list[Hits]]:
    return lambda: lookup(range(queries), DEPTH)


def _by_package(index: Path, queries: SparseRows, settings: seismic.Seismic) -> Callable[[], list[Any]]:
    from seismic import SeismicIndexRaw

    opened = SeismicIndexRaw.load(str(index))
    rows = [queries.rows(number, number + 1) for number in range(len(queries))]
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


def _recall(results: Mapping[str, Any], exact: Sequence[Hits]) -> dict[str, Any]:
    """Return the recall of the exact lists. Row numbers are comparable, since no passage is empty."""
    ours = [set(hits.rows.tolist()) for hits in results[OURS]]
    theirs = [{row for _, row in hits} for hits in results[SEISMIC]]
    shares = [
        float(np.mean([len(rows & set(hits.rows.tolist())) / DEPTH for rows, hits in zip(lists, exact, strict=True)]))
        for lists in (ours, theirs)
    ]
    assert shares[0] >= shares[1], shares
    return {f"share of the exact {DEPTH}, ours": round(shares[0], 4), f"share, {SEISMIC}": round(shares[1], 4)}
