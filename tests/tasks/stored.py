"""Vectors that a test makes up, as `tasks.retrieval.encode` stores them, and what a pair scores, by the formula."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from torch import Tensor

from storage.row_index import PassageIndex
from storage.vectors import VECTORS_JSON, Encoded, SparseRows, TokenRows, write_shard
from tasks.retrieval.exact_search import double_scores, matmul, upper_bounds

VOCABULARY = 40
WEIGHTS = {"dense": 0.5, "late": 3.0, "lexical": 0.25}


def numbers(draw: np.random.Generator, *shape: int) -> np.ndarray:
    """Multiples of 1/1024, so that double precision adds their products without rounding, in any order."""
    return (draw.integers(-(2**13), 2**13, shape) / 1024).astype(np.float32)


def offsets(lengths: Sequence[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def texts(draw: np.random.Generator, count: int, *, words: int = 6, signed: bool = False, ids: bool = True) -> Encoded:
    """Texts of up to so many words and tokens; some have none."""
    lengths = draw.integers(0, words + 1, count)
    chosen = [np.sort(draw.choice(VOCABULARY, length, replace=False)) for length in lengths]
    values, total = numbers(draw, int(lengths.sum())), int(lengths.sum())
    values[values == 0] = 1
    return Encoded(
        dense=numbers(draw, count, 7),
        lexical=SparseRows(
            offsets(lengths), np.concatenate([*chosen, []]).astype(np.int32), values if signed else np.abs(values)
        ),
        late=TokenRows(
            offsets(lengths),
            numbers(draw, total, 5),
            draw.integers(0, 12, total if ids else 0).astype(np.int32),
        ),
    )


def store(folder: Path, passages: Encoded, *, rows: int, exact_match: bool = False) -> Path:
    """Write passages, so many rows a shard, and `vectors.json`."""
    for shard, start in enumerate(range(0, len(passages), rows)):
        write_shard(folder, shard, passages.rows(start, start + rows))
    folder.mkdir(exist_ok=True)
    views = {view: WEIGHTS[view] for view in passages.views}
    description = {"passages": len(passages), "views": views, "exact_match": exact_match, "query_max_tokens": 16}
    (folder / VECTORS_JSON).write_text(json.dumps(description))
    return folder


def names(count: int) -> PassageIndex:
    """Ids whose order is not that of their places: p10 is before p9."""
    results = [f"p{n}" for n in range(count)]
    return PassageIndex.of(pa.table({"passage_id": results, "doc_id": results}))


def pair_score(query: Encoded, passage: Encoded, view: str, exact_match: bool = False) -> float:
    """One query and one passage, in Python's numbers."""
    if view == "sum":
        return sum(WEIGHTS[view] * pair_score(query, passage, view, exact_match) for view in passage.views)
    if view == "dense":
        return dot(query.dense[0], passage.dense[0])
    if view == "lexical":
        q, p = (
            dict(zip(tokens.lexical.ids.tolist(), tokens.lexical.values, strict=True)) for tokens in (query, passage)
        )
        return sum(float(q[word]) * float(p[word]) for word in q if word in p)
    total = 0.0
    for i, q in enumerate(query.late.vectors):
        seen = range(len(passage.late.vectors))
        if exact_match:
            seen = [j for j in seen if passage.late.ids[j] == query.late.ids[i]]
        products = [dot(q, passage.late.vectors[j]) for j in seen]
        total += max([*products, 0.0]) if exact_match else max(products, default=0.0)
    return total


def expected(query: Encoded, passages: Encoded, view: str, exact_match: bool = False) -> Iterator[tuple[int, float]]:
    """Every passage's place and score: greater scores first, then greater ids."""
    scores = [np.float32(pair_score(query, passages.taken([n]), view, exact_match)) for n in range(len(passages))]
    for row in sorted(range(len(passages)), key=lambda n: (scores[n], f"p{n}"), reverse=True):
        yield row, scores[row]


def dot(one: np.ndarray, other: np.ndarray) -> float:
    return sum(float(a) * float(b) for a, b in zip(one, other, strict=True))


def multiply(patch: pytest.MonkeyPatch, *, as_amx: bool) -> None:
    """Compute coarse products as a CPU with AMX does, in bfloat16 with sums in single precision, or as one without.

    It rounds both factors itself, since oneDNN multiplies in single precision where a CPU has no AMX.
    """

    def in_bfloat16(factors_ND: Tensor, others_MD: Tensor, *, coarse: bool) -> Tensor:
        return rounded(factors_ND, coarse) @ rounded(others_MD, coarse).T

    def rounded(values_ND: Tensor, coarse: bool) -> Tensor:
        return values_ND.bfloat16().float() if coarse else values_ND

    patch.setattr(matmul, "multiplies_bfloat16", lambda device: as_amx)
    for module in (matmul, upper_bounds, double_scores) if as_amx else ():
        patch.setattr(module, "inner_products", in_bfloat16)
