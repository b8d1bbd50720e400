"""Exact top-k of dense vectors, from stored vectors to ranked lists, compared with FAISS's IndexFlatIP.

Ours memory-maps the vectors from disk, as `search` does, and returns lists of double precision. FAISS searches a copy
in memory, whose construction is not timed, and returns lists of single precision. Scores are checked in double
precision, and lists in which FAISS has another order are counted. Vectors "as random" are distributed evenly. Vectors
"as a BERT's" have a common direction and a decaying spectrum, so that differences of scores are small compared with the
vectors' lengths, which is the hard case for rounded products.

On a GPU the baseline multiplies blocks of the vectors, which are in the GPU's memory before the clock starts, and keeps
the best of each block; ours begins with the vectors in the file system's cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.contest import OURS, Case
from benchmarks.encoders import on_one_thread
from benchmarks.searched import stored
from storage.vectors import Encoded
from tasks.retrieval.engines.exact import ExactSearch

DEVICES = ("cpu", "cuda")
DIMENSION = 768
BASELINE, ON_GPU = "FAISS IndexFlatIP", "matmul and topk in float32"
ROWS = 65_536  # that the baseline on a GPU multiplies at a time


def cases(device: str, *, small: bool) -> Iterator[Case]:
    """Yield a case for each of the two kinds of vectors."""
    large = (4096, 1_000_000, 200) if device == "cuda" else (256, 100_000, 200)
    queries, passages, depth = (16, 3000, 20) if small else large
    size = f"{queries} queries x {passages:,} x {DIMENSION}, top {depth}"
    kinds = {"random": _random_vectors, "a BERT's": bert_like_vectors}
    if device == "cuda":
        del kinds["random"]  # the easier one
    for kind, sample in kinds.items():
        vectors_ND = sample(np.random.default_rng(8), queries + passages)
        case = _on_gpu if device == "cuda" else _case
        yield from case(f"{size}, as {kind}", vectors_ND[:queries], vectors_ND[queries:], depth)


def _random_vectors(draw: np.random.Generator, count: int) -> NDArray[np.float32]:
    """Return unit vectors in random directions."""
    vectors = draw.standard_normal((count, DIMENSION), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def bert_like_vectors(draw: np.random.Generator, count: int) -> NDArray[np.float32]:
    """Return vectors of lengths of about 10 and cosines of about 0.7; the variance of direction n decays with n."""
    spectrum = np.arange(1, DIMENSION + 1, dtype=np.float32) ** -0.5
    vectors = draw.standard_normal((count, DIMENSION), dtype=np.float32)
    vectors *= 5.5 * spectrum / np.linalg.norm(spectrum)
    vectors += draw.standard_normal(DIMENSION, dtype=np.float32) * np.float32(8.4 / DIMENSION**0.5)
    return vectors


def _case(name: str, queries_QD: NDArray[np.float32], passages_PD: NDArray[np.float32], depth: int) -> Iterator[Case]:
    import faiss

    faiss.omp_set_num_threads(1)
    flat = faiss.IndexFlatIP(DIMENSION)
    flat.add(passages_PD)
    with stored(Encoded(dense=passages_PD)) as (vectors, ids):
        search = ExactSearch(vectors, ids)
        yield Case(
            name,
            {OURS: lambda: search(Encoded(dense=queries_QD), depth), BASELINE: lambda: flat.search(queries_QD, depth)},
            targets={BASELINE: 2.0},
            compared=lambda results: _compare(results, queries_QD, passages_PD),
            units={"queries": len(queries_QD)},
        )


def _on_gpu(name: str, queries_QD: NDArray[np.float32], passages_PD: NDArray[np.float32], depth: int) -> Iterator[Case]:
    on_device_QD, on_device_PD = (torch.from_numpy(rows).to("cuda") for rows in (queries_QD, passages_PD))

    def plain() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        best, rows = torch.empty(len(queries_QD), 0).to("cuda"), torch.empty(len(queries_QD), 0).long().to("cuda")
        for start in range(0, len(passages_PD), ROWS):
            scores, places = (on_device_QD @ on_device_PD[start : start + ROWS].T).topk(depth)
            best, order = torch.cat([best, scores], 1).topk(depth)
            rows = torch.cat([rows, places + start], 1).gather(1, order)
        return best.cpu().numpy(), rows.cpu().numpy()

    with stored(Encoded(dense=passages_PD)) as (vectors, ids), on_one_thread("cuda"):
        search = ExactSearch(vectors, ids)
        yield Case(
            name, {OURS: lambda: search(Encoded(dense=queries_QD), depth), ON_GPU: plain}, {}, repeats=3,
            compared=lambda results: _compare(results, queries_QD, passages_PD, ON_GPU),
            units={"queries": len(queries_QD)},
        )  # fmt: skip


def _compare(
    results: Mapping[str, Any],
    queries_QD: NDArray[np.float32],
    passages_PD: NDArray[np.float32],
    baseline: str = BASELINE,
) -> dict[str, Any]:
    """Check our scores against double precision, and those of the baseline against ours to single precision."""
    equal_lists = 0
    for query_D, hits, scores, rows in zip(queries_QD, results[OURS], *results[baseline], strict=True):
        exact = passages_PD[hits.rows].astype(np.float64) @ query_D.astype(np.float64)
        np.testing.assert_allclose(hits.scores, exact, rtol=1e-7)
        np.testing.assert_allclose(hits.scores, scores, rtol=1e-5, atol=1e-5 * float(np.abs(scores).max()))
        equal_lists += bool(np.array_equal(hits.rows, rows))
    other = f"lists that rounding gave another order in {baseline.split()[0]}"
    return {"lists": len(queries_QD), other: len(queries_QD) - equal_lists}
