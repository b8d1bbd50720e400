"""Exact top-k of dense vectors, from stored vectors to sorted lists, beside FAISS's IndexFlatIP.

Ours reads the vectors from disk by memory map, as `search` does, and gives lists of double precision; FAISS holds a
copy in memory that is made outside the clock, and gives lists of single precision. Scores are compared with double
precision, and the lists are counted in which FAISS has another order. `as random` vectors fill the space evenly. `as a
BERT's` lie about a common direction and have a falling spectrum, so that scores are nearer each other than the vectors'
lengths suggest, which is hard on whoever searches with rounded numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from benchmarks.contest import OURS, Case
from benchmarks.searched import stored
from storage.vectors import Encoded, Vectors
from tasks.retrieval.engines.exact import ExactSearch

DEVICES = ("cpu",)
DIMENSION = 768
PEER = "FAISS IndexFlatIP"


def cases(device: str, *, small: bool) -> Iterator[Case]:
    """The two kinds of vectors."""
    queries, passages, depth = (16, 3000, 20) if small else (256, 100_000, 200)
    size = f"{queries} queries x {passages:,} x {DIMENSION}, top {depth}"
    for kind, made in (("random", _even), ("a BERT's", _about_a_direction)):
        vectors_ND = made(np.random.default_rng(8), queries + passages)
        yield from _case(f"{size}, as {kind}", vectors_ND[:queries], vectors_ND[queries:], depth)


def _even(draw: np.random.Generator, count: int) -> Vectors:
    """Vectors of equal length in all directions."""
    found = draw.standard_normal((count, DIMENSION), dtype=np.float32)
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    return found


def _about_a_direction(draw: np.random.Generator, count: int) -> Vectors:
    """Vectors of lengths about 10 and cosines about 0.7; the n-th direction's variance falls with n."""
    spectrum = np.arange(1, DIMENSION + 1, dtype=np.float32) ** -0.5
    found = draw.standard_normal((count, DIMENSION), dtype=np.float32)
    found *= 5.5 * spectrum / np.linalg.norm(spectrum)
    found += draw.standard_normal(DIMENSION, dtype=np.float32) * np.float32(8.4 / DIMENSION**0.5)
    return found


def _case(name: str, queries_QD: Vectors, passages_PD: Vectors, depth: int) -> Iterator[Case]:
    import faiss

    faiss.omp_set_num_threads(1)
    flat = faiss.IndexFlatIP(DIMENSION)
    flat.add(passages_PD)
    with stored(Encoded(dense=passages_PD)) as (vectors, ids):
        find = ExactSearch(vectors, ids)
        yield Case(
            name,
            {OURS: lambda: find(Encoded(dense=queries_QD), depth), PEER: lambda: flat.search(queries_QD, depth)},
            targets={PEER: 2.0},
            compared=lambda made: _compared(made, queries_QD, passages_PD),
            units={"queries": len(queries_QD)},
        )


def _compared(made: Mapping[str, Any], queries_QD: Vectors, passages_PD: Vectors) -> dict[str, Any]:
    """Ours are scores of double precision; those of FAISS are equal to single precision, in this or another order."""
    as_ours = 0
    for query_D, hits, scores, places in zip(queries_QD, made[OURS], *made[PEER], strict=True):
        exact = passages_PD[hits.rows].astype(np.float64) @ query_D.astype(np.float64)
        np.testing.assert_allclose(hits.scores, exact, rtol=1e-7)
        np.testing.assert_allclose(hits.scores, scores, rtol=1e-5, atol=1e-5 * float(np.abs(scores).max()))
        as_ours += bool(np.array_equal(hits.rows, places))
    return {"lists": len(queries_QD), "lists that rounding gave another order in FAISS": len(queries_QD) - as_ours}
