"""Late interaction in two stages: a FAISS index of all passages' tokens proposes candidates, exact MaxSim ranks them.

Each query token retrieves its nearest tokens, and these their passages. A passage's approximate score is the sum, over
the query tokens, of its greatest retrieved similarity. Where a query token retrieved none of the passage's tokens, the
missing similarity is at most the lowest that it retrieved, and that is imputed (Lee et al., "Rethinking the Role of
Token Retrieval in Multi-Vector Retrieval", 2023). The best candidates by this score are compared token by token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from storage.artifact import Artifact
from storage.errors import UserError
from storage.row_index import PassageIndex
from storage.tables import Passages, PseudoQueries, Vectors
from storage.vectors import Encoded, Offsets, describe_vectors, num_shards, read_shard
from tasks.retrieval.engines.faiss import Factory, Opened, write_index
from tasks.retrieval.exact_search.double_scores import StoredVectors
from tasks.retrieval.index import describe
from tasks.retrieval.ranking import Indices, Searcher, in_order
from tasks.retrieval.two_stage import two_stage_searcher, vectors_folder
from tasks.runtime.device import num_host_threads

VIEWS = ("late",)


class Candidates(Factory):
    """The late view: FAISS over tokens, then MaxSim over the candidate passages."""

    engine: Literal["candidates"]
    tokens_per_query_token: int = Field(gt=0)
    """Nearest tokens, among those of all passages, that each query token retrieves."""
    candidates: int = Field(gt=0)
    """Passages that are scored exactly; no list is longer."""


def build(
    out: Path,
    passages: Artifact[Passages],
    vectors: Artifact[Vectors] | None,
    pseudo_queries: Artifact[PseudoQueries] | None,
    settings: Candidates,
) -> None:
    """Write one FAISS index of all passages' tokens, in the order of the table and of the text."""
    folder = vectors_folder(vectors, pseudo_queries, "late")
    if describe_vectors(folder)["exact_match"]:
        raise UserError(
            "index.engine: a late view with exact_match compares equal WordPiece tokens only, which are not the"
            " nearest ones; search it with {engine: exact}"
        )

    def read(shard: int) -> NDArray[np.float32]:
        late = read_shard(folder, shard, "late").late
        assert late is not None
        return late.vectors

    shards = num_shards(folder)
    write_index(out, read, shards, settings.factory, sum(len(read(shard)) for shard in range(shards)))


def open_index(
    path: Path,
    vectors: Artifact[Vectors] | None,
    encode: Callable[[Sequence[str]], Encoded] | None,
    ids: PassageIndex,
    view: str,
) -> Searcher:
    """Return a searcher of the index, which scores candidates by the vectors it was built from."""
    if vectors is None or encode is None or view not in VIEWS:
        raise TypeError("an index of tokens is searched by the late view, with its vectors and an encoder of queries")
    stored = StoredVectors(vectors.path, view, num_host_threads())
    offsets, described = token_offsets(stored), describe(path)
    opened, nearest_tokens = Opened(path, int(offsets[-1])), int(str(described["tokens_per_query_token"]))
    candidates = int(str(described["candidates"]))

    def propose(queries: Encoded, count: int) -> list[Indices]:
        assert queries.late is not None
        tokens, spans = queries.late.vectors, pairwise(queries.late.offsets.tolist())
        return [
            best_candidates(*opened.nearest(tokens[start:end], nearest_tokens), offsets, ids, candidates)
            for start, end in spans
        ]

    return two_stage_searcher(encode, propose, stored, ids, refine=1)


def token_offsets(stored: StoredVectors) -> Offsets:
    """Return the offset of each passage's tokens among those of all passages, and their total number, [P + 1]."""
    lengths = [np.diff(shard.late.offsets) for _, shard in stored.shards() if shard.late is not None]
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate([np.zeros(0, np.int64), *lengths]))])


def best_candidates(
    scores_LK: NDArray[np.float32], tokens_LK: Indices, offsets: Offsets, ids: PassageIndex, candidates: int
) -> Indices:
    """Return the passages of the tokens that a query's L tokens retrieved, the best `candidates` by approximate score.

    Scores are counted from each query token's lowest retrieved one: a passage that it did not retrieve has 0 there, and
    what is subtracted is the same for all passages.
    """
    retrieved = tokens_LK >= 0  # FAISS pads with -1
    lowest_L1 = np.where(retrieved, scores_LK, np.inf).min(axis=1, keepdims=True, initial=np.inf)
    query_tokens, _ = np.nonzero(retrieved)
    passage_of_token = np.searchsorted(offsets, tokens_LK[retrieved], side="right") - 1
    passages, columns = np.unique(passage_of_token, return_inverse=True)
    above_LP = np.zeros((len(scores_LK), len(passages)))
    np.maximum.at(above_LP, (query_tokens, columns), (scores_LK - lowest_L1)[retrieved])
    return in_order(ids, passages, above_LP.sum(axis=0).astype(np.float32)).rows[:candidates]
