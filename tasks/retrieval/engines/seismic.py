"""Seismic: an inverted index of the lexical view that skips clusters of passages which cannot score high enough.

Bruch, Nardini, Rulli and Venturini, "Efficient Inverted Indexes for Approximate Retrieval over Learned Sparse
Representations", SIGIR 2024, through the package pyseismic-lsr (MIT; its authors request a citation of the paper). The
posting list of a WordPiece token holds the passages where its weight is highest, in clusters, each with a summary of
the largest weights; a search reads the posting lists of the query's heaviest tokens. The candidates are then scored
exactly, since Seismic keeps weights in half precision.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from storage.artifact import Artifact
from storage.errors import UserError
from storage.files import writing
from storage.row_index import PassageIndex
from storage.store.publishing import SCRATCH
from storage.tables import Passages, PseudoQueries, Vectors
from storage.vectors import Encoded, Numbers, SparseRows
from tasks.retrieval.exact_search.double_scores import StoredVectors
from tasks.retrieval.index import EngineSettings, describe
from tasks.retrieval.ranking import Indices, Searcher, ranges
from tasks.retrieval.two_stage import two_stage_searcher, vectors_folder
from tasks.runtime.device import num_host_threads
from tasks.runtime.leftovers import record, unfinished
from tasks.session import execution

VIEWS = ("lexical",)
INDEX = "index.seismic"
MAX_TOKENS = 2**16  # Seismic numbers vocabulary tokens, and the clusters of a posting list, in 16 bits


class Seismic(EngineSettings):
    """The lexical view in a Seismic index; the defaults are those of the package and of its guidelines for search."""

    engine: Literal["seismic"]
    n_postings: int = Field(default=3500, gt=0)
    """Mean length of a posting list; a list keeps the passages where its token's weight is highest."""
    max_fraction: float = Field(default=1.5, ge=1)
    """The longest posting list, as a multiple of `n_postings`."""
    centroid_fraction: float = Field(default=0.1, gt=0, le=1)
    """Clusters of a posting list, as a share of its length."""
    min_cluster_size: int = Field(default=2, gt=0)
    """Smaller clusters are merged into larger ones."""
    summary_energy: float = Field(default=0.4, gt=0, le=1)
    """The share of its weight that a cluster's summary keeps."""
    doc_cut: int = Field(default=15, gt=0)
    """A passage's heaviest tokens that are used for clustering."""
    query_cut: int = Field(default=10, gt=0)
    """A query's heaviest tokens whose posting lists are read."""
    heap_factor: float = Field(default=0.8, ge=0, le=1)
    """A cluster is skipped if its summary scores less than this share of the worst result so far; 0 skips none."""
    refine: int = Field(default=1, gt=0)
    """Candidates that are scored exactly, as a multiple of the length of a list."""

    @model_validator(mode="after")
    def _clusters_can_be_counted(self) -> Self:
        if self.n_postings * self.max_fraction * self.centroid_fraction >= MAX_TOKENS:
            raise ValueError("n_postings x max_fraction x centroid_fraction: expected less than 65,536 clusters a list")
        return self


def build(
    out: Path,
    passages: Artifact[Passages],
    vectors: Artifact[Vectors] | None,
    pseudo_queries: Artifact[PseudoQueries] | None,
    settings: Seismic,
) -> None:
    """Write a Seismic index of all passages with at least one token, in the order of the table."""
    folder = vectors_folder(vectors, pseudo_queries, "lexical")
    if not unfinished(out, [str(INDEX)]):
        return
    rows = out / SCRATCH / "rows.bin"
    write_rows(rows, StoredVectors(folder, "lexical"))
    build_settings = settings.model_dump(exclude={"engine", "query_cut", "heap_factor", "refine"})
    with writing(out / INDEX) as temporary, _without_stdout():
        _seismic().build(str(rows), **build_settings).save(str(temporary))
    record(out, str(INDEX))


def write_rows(path: Path, stored: StoredVectors) -> None:
    """Write all non-empty rows in Seismic's input format: their number, then length, ids and values of each row."""
    with writing(path) as temporary, temporary.open("wb") as file:
        file.write(np.array(len(non_empty_rows(stored)), "<u4").tobytes())
        for start, shard in stored.shards():
            assert shard.lexical is not None
            _check(shard.lexical, start)
            file.write(_as_seismic(shard.lexical).tobytes())


def non_empty_rows(stored: StoredVectors) -> Indices:
    """Return the rows of the passages with at least one token; the others are not indexed.

    Seismic identifies a row by its offset, and an empty row has the same offset as the next one.
    """
    shards = ((start, shard.lexical) for start, shard in stored.shards())
    parts = [start + np.flatnonzero(np.diff(rows.offsets)) for start, rows in shards if rows is not None]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _check(rows: SparseRows, start: int) -> None:
    if rows.values.min(initial=0.0) < 0:
        row = start + int(np.searchsorted(rows.offsets, rows.values.argmin(), side="right")) - 1
        raise UserError(
            f"index.engine: passage {row} has a token of weight {rows.values.min():.3g}, and Seismic indexes no"
            " weights below 0 (activation none gives them); search with {engine: exact}"
        )
    if rows.ids.max(initial=0) >= MAX_TOKENS:
        raise UserError(
            f"index.engine: Seismic indexes {MAX_TOKENS:,} tokens, the vocabulary has more; search with"
            " {engine: exact}"
        )


def _as_seismic(rows: SparseRows) -> NDArray[np.uint32]:
    """Return length, ids and the values' bits of each non-empty row, one row after the other."""
    lengths = np.diff(rows.offsets)
    is_filled = lengths > 0
    # Before a row there are two 32-bit words for each weight of earlier rows, and one for each earlier row.
    starts = (2 * rows.offsets[:-1] + np.cumsum(is_filled) - is_filled)[is_filled]
    words = np.empty(2 * len(rows.ids) + len(starts), "<u4")
    words[starts] = lengths[is_filled]
    ids_at = ranges(starts + 1, lengths[is_filled])
    words[ids_at] = rows.ids
    words[ids_at + np.repeat(lengths, lengths)] = rows.values.astype("<f4").view("<u4")
    return words


def open_index(
    path: Path,
    vectors: Artifact[Vectors] | None,
    encode: Callable[[Sequence[str]], Encoded] | None,
    ids: PassageIndex,
    view: str,
) -> Searcher:
    """Return a searcher of the index, which scores candidates by the vectors it was built from."""
    if vectors is None or encode is None or view not in VIEWS:
        raise TypeError("a Seismic index is searched by the lexical view, with its vectors and an encoder of queries")
    stored, described = StoredVectors(vectors.path, view, num_host_threads()), describe(path)
    filled = non_empty_rows(stored)
    with _without_stdout():
        index = _seismic().load(str(path / INDEX))
    if index.len != len(filled):
        raise ValueError(f"{path / INDEX} holds {index.len} passages; expected {len(filled)}, those with a token")
    query_cut, heap_factor = int(str(described["query_cut"])), float(str(described["heap_factor"]))

    def propose(queries: Encoded, count: int) -> list[Indices]:
        assert queries.lexical is not None
        ids, values = queries.lexical.ids, queries.lexical.values
        spans = pairwise(queries.lexical.offsets.tolist())
        return [candidates(ids[start:stop], values[start:stop], count) for start, stop in spans]

    def candidates(ids: Numbers, values: NDArray[np.float32], count: int) -> Indices:
        # Seismic refuses tokens beyond its vocabulary. Tokens with weights below 0 only lower scores.
        usable = (ids < index.dim) & (values > 0)
        if not usable.any():
            return filled[:0]
        hits = index.search(ids[usable], values[usable], count, query_cut, heap_factor, 0, True)
        return filled[[row for _, row in hits]]

    return two_stage_searcher(encode, propose, stored, ids, int(str(described["refine"])))


@contextlib.contextmanager
def _without_stdout() -> Iterator[None]:
    """Discard standard output of the process, to which Seismic's native code prints its progress."""
    stdout, null = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 1)
        yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
        os.close(null)


def _seismic() -> Any:
    os.environ.setdefault("RAYON_NUM_THREADS", str(execution().threads))
    try:
        import seismic
    except ModuleNotFoundError as error:
        raise UserError("Seismic is not installed; install this project with its extra seismic") from error

    return seismic.SeismicIndexRaw
