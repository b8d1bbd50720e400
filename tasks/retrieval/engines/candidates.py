"""Late interaction by candidates: a FAISS index of all passages' tokens proposes, exact MaxSim decides.

Each query token brings its nearest tokens, and these their passages. A passage's approximate score is the sum, over
the query tokens, of its best similarity that was found; where none was, it is at most the worst that was (Lee et al.,
"Rethinking the Role of Token Retrieval in Multi-Vector Retrieval", 2023, missing similarity imputation), and that is
taken for it. The best candidates by this score are compared token by token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from storage.artifact import Artifact
from storage.errors import UserError
from storage.tables import Passages, PseudoQueries
from storage.tables import Vectors as VectorsTable
from storage.vectors import Encoded, Offsets, Vectors, describe_vectors, num_shards, read_shard
from tasks.retrieval.engines.faiss import Factory, Opened, write_index
from tasks.retrieval.exact_search.double_scores import StoredVectors
from tasks.retrieval.index import describe
from tasks.retrieval.ranking import Indices, PassageIds, Searcher
from tasks.retrieval.two_stage import folder_of, searcher

VIEWS = ("late",)


class Candidates(Factory):
    """The late view: FAISS over tokens, then MaxSim over the passages that it proposes."""

    engine: Literal["candidates"]
    tokens_per_query_token: int = Field(gt=0)
    """How many of the nearest tokens of all passages each query token fetches."""
    candidates: int = Field(gt=0)
    """How many passages are scored exactly; no list is longer."""


def build(
    out: Path,
    passages: Artifact[Passages],
    vectors: Artifact[VectorsTable] | None,
    pseudo_queries: Artifact[PseudoQueries] | None,
    settings: Candidates,
) -> None:
    """Write one FAISS index of the tokens of all passages, in the order of the table and of the tokens in a text."""
    folder = folder_of(vectors, pseudo_queries, "late")
    if describe_vectors(folder)["exact_match"]:
        raise UserError(
            "index.engine: a late view with exact_match compares equal word pieces only, and the nearest tokens are"
            " others; search it with {engine: exact}"
        )

    def read(shard: int) -> Vectors:
        found = read_shard(folder, shard, "late").late
        assert found is not None
        return found.vectors

    shards = num_shards(folder)
    write_index(out, read, shards, settings.factory, sum(len(read(shard)) for shard in range(shards)))


def open_index(
    path: Path,
    vectors: Artifact[VectorsTable] | None,
    encode: Callable[[Sequence[str]], Encoded] | None,
    ids: PassageIds,
    view: str,
) -> Searcher:
    """Open an index for search beside the vectors that it was made of."""
    if vectors is None or encode is None or view not in VIEWS:
        raise TypeError("an index of tokens is searched by the late view, with its vectors and what encodes queries")
    stored = StoredVectors(vectors.path, view)
    offsets, described = token_offsets(stored), describe(path)
    opened, fetched = Opened(path, int(offsets[-1])), int(str(described["tokens_per_query_token"]))
    candidates = int(str(described["candidates"]))

    def propose(queries: Encoded, count: int) -> list[Indices]:
        assert queries.late is not None
        bounds = zip(queries.late.offsets[:-1], queries.late.offsets[1:], strict=True)
        return [
            proposed(*opened.nearest(queries.late.vectors[start:end], fetched), offsets, ids, candidates)
            for start, end in bounds
        ]

    return searcher(encode, propose, stored, ids, refine=1)


def token_offsets(stored: StoredVectors) -> Offsets:
    """Where each passage's tokens begin among all passages', and after them their number, [P + 1]."""
    lengths = [np.diff(shard.late.offsets) for _, shard in stored.shards() if shard.late is not None]
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate([np.zeros(0, np.int64), *lengths]))])


def proposed(scores_LK: Vectors, tokens_LK: Indices, offsets: Offsets, ids: PassageIds, candidates: int) -> Indices:
    """The passages of the tokens that a query's tokens found, the best `candidates` of them by approximate score."""
    found = tokens_LK >= 0  # FAISS fills up with -1
    worst_L1 = np.where(found, scores_LK, np.inf).min(axis=1, keepdims=True, initial=np.inf)
    rows, _ = np.nonzero(found)
    owners = np.searchsorted(offsets, tokens_LK[found], side="right") - 1
    places, columns = np.unique(owners, return_inverse=True)
    # Above the worst, so that a passage which a query token did not find has 0 there; what is left out is one number
    # for all passages.
    above_LP = np.zeros((len(scores_LK), len(places)))
    np.maximum.at(above_LP, (rows, columns), (scores_LK - worst_L1)[found])
    return ids.in_order(places, above_LP.sum(axis=0).astype(np.float32)).rows[:candidates]
