"""Seismic: an inverted index of the lexical view that skips blocks of passages which cannot score high enough.

Bruch, Nardini, Rulli and Venturini, "Efficient Inverted Indexes for Approximate Retrieval over Learned Sparse
Representations", SIGIR 2024, through the package pyseismic-lsr (MIT; who uses it is asked to cite the paper). A word
piece's list holds the passages where it weighs most, in clusters, each with a summary of the largest weights; a search
reads the lists of the query's heaviest word pieces. What it proposes is scored again, exactly: Seismic itself keeps
weights in half precision.
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
from storage.tables import Passages, PseudoQueries, Vectors
from storage.vectors import Encoded, Numbers, SparseRows
from storage.vectors import Vectors as Weights
from tasks.retrieval.exact_search.double_scores import StoredVectors
from tasks.retrieval.index import EngineSettings, describe
from tasks.retrieval.ranking import Indices, PassageIds, Searcher
from tasks.retrieval.two_stage import folder_of, searcher
from tasks.runtime.leftovers import record, unfinished
from tasks.session import execution

VIEWS = ("lexical",)
INDEX = "index.seismic"
WORD_PIECES = 2**16  # Seismic counts them and a list's clusters in 16 bits


class Seismic(EngineSettings):
    """The lexical view in a Seismic index; the defaults are the package's, and those of its guidelines for search."""

    engine: Literal["seismic"]
    n_postings: int = Field(default=3500, gt=0)
    """How many passages a word piece's list keeps on average, those where it weighs most."""
    max_fraction: float = Field(default=1.5, ge=1)
    """How many times that number the longest list may keep."""
    centroid_fraction: float = Field(default=0.1, gt=0, le=1)
    """Clusters of a list, as a share of its length."""
    min_cluster_size: int = Field(default=2, gt=0)
    """Smaller clusters are given to larger ones."""
    summary_energy: float = Field(default=0.4, gt=0, le=1)
    """The share of its weight that a cluster's summary keeps."""
    doc_cut: int = Field(default=15, gt=0)
    """How many of a passage's heaviest word pieces clustering looks at."""
    query_cut: int = Field(default=10, gt=0)
    """How many of a query's heaviest word pieces have their lists read."""
    heap_factor: float = Field(default=0.8, ge=0, le=1)
    """A cluster is skipped whose summary scores less than this share of the worst that is kept; 0 skips none."""
    refine: int = Field(default=1, gt=0)
    """How many times as many passages as a list holds are fetched and scored again."""

    @model_validator(mode="after")
    def _clusters_can_be_counted(self) -> Self:
        if self.n_postings * self.max_fraction * self.centroid_fraction >= WORD_PIECES:
            raise ValueError("n_postings x max_fraction x centroid_fraction: expected less than 65,536 clusters a list")
        return self


def build(
    out: Path,
    passages: Artifact[Passages],
    vectors: Artifact[Vectors] | None,
    pseudo_queries: Artifact[PseudoQueries] | None,
    settings: Seismic,
) -> None:
    """Write a Seismic index of all passages that have a word piece, in the order of the table."""
    folder = folder_of(vectors, pseudo_queries, "lexical")
    if not unfinished(out, [str(INDEX)]):
        return
    rows = out / "scratch" / "rows.bin"
    write_rows(rows, StoredVectors(folder, "lexical"))
    chosen = settings.model_dump(exclude={"engine", "query_cut", "heap_factor", "refine"})
    with writing(out / INDEX) as temporary, _in_silence():
        _seismic().build(str(rows), **chosen).save(str(temporary))
    record(out, str(INDEX))


def write_rows(path: Path, stored: StoredVectors) -> None:
    """All rows that are not empty, as Seismic reads them: their number; for each its length, ids and values."""
    with writing(path) as temporary, temporary.open("wb") as file:
        file.write(np.array(len(filled_places(stored)), "<u4").tobytes())
        for start, shard in stored.shards():
            assert shard.lexical is not None
            _check(shard.lexical, start)
            file.write(_as_seismic(shard.lexical).tobytes())


def filled_places(stored: StoredVectors) -> Indices:
    """The places of the passages that have a word piece; the others are not indexed.

    Seismic names a row by where it begins, and an empty row begins where the next one does.
    """
    shards = ((start, shard.lexical) for start, shard in stored.shards())
    parts = [start + np.flatnonzero(np.diff(rows.offsets)) for start, rows in shards if rows is not None]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _check(rows: SparseRows, start: int) -> None:
    if rows.values.min(initial=0.0) < 0:
        place = start + int(np.searchsorted(rows.offsets, rows.values.argmin(), side="right")) - 1
        raise UserError(
            f"index.engine: passage {place} has a word piece of weight {rows.values.min():.3g}, and Seismic indexes no"
            " weights below 0 (activation none gives them); search with {engine: exact}"
        )
    if rows.ids.max(initial=0) >= WORD_PIECES:
        raise UserError(
            f"index.engine: Seismic indexes {WORD_PIECES:,} word pieces, the vocabulary has more; search with"
            " {engine: exact}"
        )


def _as_seismic(rows: SparseRows) -> NDArray[np.uint32]:
    """Length, ids and the values' bits of each row that is not empty, one after the other."""
    lengths = np.diff(rows.offsets)
    filled = lengths > 0
    begins = (2 * rows.offsets[:-1] + np.cumsum(filled) - filled)[filled]  # two words a weight and one a row before
    found = np.empty(2 * len(rows.ids) + len(begins), "<u4")
    found[begins] = lengths[filled]
    within = np.arange(len(rows.ids)) - np.repeat(rows.offsets[:-1], lengths)
    ids_at = np.repeat(begins + 1, lengths[filled]) + within
    found[ids_at] = rows.ids
    found[ids_at + np.repeat(lengths, lengths)] = rows.values.astype("<f4").view("<u4")
    return found


def open_index(
    path: Path,
    vectors: Artifact[Vectors] | None,
    encode: Callable[[Sequence[str]], Encoded] | None,
    ids: PassageIds,
    view: str,
) -> Searcher:
    """Open an index for search beside the vectors that it was made of."""
    if vectors is None or encode is None or view not in VIEWS:
        raise TypeError("a Seismic index is searched by the lexical view, with its vectors and what encodes queries")
    stored, described = StoredVectors(vectors.path, view), describe(path)
    filled = filled_places(stored)
    with _in_silence():
        index = _seismic().load(str(path / INDEX))
    if index.len != len(filled):
        raise ValueError(f"{path / INDEX} holds {index.len} passages; expected {len(filled)} that have a word piece")
    query_cut, heap_factor = int(str(described["query_cut"])), float(str(described["heap_factor"]))

    dimension = index.dim

    def propose(queries: Encoded, count: int) -> list[Indices]:
        assert queries.lexical is not None
        ids, values = queries.lexical.ids, queries.lexical.values
        bounds = pairwise(queries.lexical.offsets.tolist())
        return [found(ids[start:stop], values[start:stop], count) for start, stop in bounds]

    def found(ids: Numbers, values: Weights, count: int) -> Indices:
        # Word pieces that no passage has are an error to Seismic; those that take from a score propose nothing.
        read = (ids < dimension) & (values > 0)
        if not read.all():
            ids, values = ids[read], values[read]
        if not len(ids):
            return filled[:0]
        hits = index.search(ids, values, count, query_cut, heap_factor, 0, True)
        return filled[[place for _, place in hits]]

    return searcher(encode, propose, stored, ids, int(str(described["refine"])))


@contextlib.contextmanager
def _in_silence() -> Iterator[None]:
    """Seismic prints what it does to the process's standard output; throw that away."""
    kept = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _seismic() -> Any:
    os.environ.setdefault("RAYON_NUM_THREADS", str(execution().threads))
    try:
        import seismic
    except ModuleNotFoundError as error:
        raise UserError("Seismic is not installed; install this project with its extra seismic") from error

    return seismic.SeismicIndexRaw
