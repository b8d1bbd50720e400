"""FAISS: an approximate index of the dense view.

FAISS proposes candidates by approximate inner product, as its factory string says; the candidates are then scored
exactly. `Flat` compares all vectors in single precision; for guaranteed exact lists, use the engine `exact`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from storage.artifact import Artifact
from storage.errors import UserError
from storage.files import writing
from storage.row_index import PassageIndex
from storage.rows import num_rows
from storage.tables import Passages, PseudoQueries, Vectors
from storage.vectors import Encoded, num_shards, read_shard
from tasks.retrieval.exact_search.double_scores import StoredVectors
from tasks.retrieval.index import EngineSettings, describe
from tasks.retrieval.ranking import Indices, Searcher
from tasks.retrieval.two_stage import two_stage_searcher, vectors_folder
from tasks.runtime.device import num_host_threads
from tasks.runtime.leftovers import record, unfinished
from tasks.runtime.progress import bar
from tasks.session import execution

VIEWS = ("dense",)
INDEX = "index.faiss"
TRAINING_VECTORS = 262_144  # the largest sample for a factory with a training step (IVF, PQ)
GPU_DEPTH = 2048  # FAISS's limit on GPUs; deeper lists are searched on the CPU


class Factory(EngineSettings):
    """A kind of FAISS index, and its search parameters."""

    factory: str
    """The factory string of the index: Flat, HNSW32, IVF256,Flat, IVF64,PQ8 and others."""
    ef_search: int | None = Field(gt=0)
    """The size of the candidate queue of a graph search (HNSW); null for other kinds."""
    nprobe: int | None = Field(gt=0)
    """The number of cells (IVF) that are searched; null for other kinds."""

    @model_validator(mode="after")
    def _fits_the_factory(self) -> Self:
        cells = re.search(r"(?:IVF|IMI)(\d+)", self.factory)
        for name, value, applies in (
            ("ef_search", self.ef_search, "HNSW" in self.factory),
            ("nprobe", self.nprobe, cells),
        ):
            if (value is not None) != bool(applies):
                expected = "a number" if applies else "null"
                raise ValueError(f"{name}: expected {expected} for factory {self.factory!r}")
        if "NSG" in self.factory:
            raise ValueError("factory: an NSG graph cannot be built shard by shard; use HNSW32")
        if cells and "IVF" in cells[0] and self.nprobe is not None and self.nprobe > int(cells[1]):
            raise ValueError(f"nprobe: {self.nprobe} is more cells than factory {self.factory!r} has")
        return self


class Faiss(Factory):
    """The dense view in a FAISS index."""

    engine: Literal["faiss"]
    refine: int = Field(gt=0)
    """Candidates that are scored exactly, as a multiple of the length of a list."""


def build(
    out: Path,
    passages: Artifact[Passages],
    vectors: Artifact[Vectors] | None,
    pseudo_queries: Artifact[PseudoQueries] | None,
    settings: Faiss,
) -> None:
    """Write one FAISS index of all passages' vectors in the order of the table."""
    folder = vectors_folder(vectors, pseudo_queries, "dense")

    def read(shard: int) -> NDArray[np.float32]:
        dense = read_shard(folder, shard, "dense").dense
        assert dense is not None
        return dense

    write_index(out, read, num_shards(folder), settings.factory, num_rows(passages.path))


def write_index(out: Path, read: Callable[[int], NDArray[np.float32]], shards: int, factory: str, total: int) -> None:
    """Write a FAISS index of the vectors [N, D] of all shards, `total` in all, unless it is finished already."""
    if not unfinished(out, [str(INDEX)]):
        return
    if not total:
        raise UserError("index: there are no vectors to index; FAISS needs at least one")
    index = _trained(read, shards, factory)
    with bar(what="indexing", unit="vectors", total=total) as counter:
        for shard in range(shards):
            vectors_ND = read(shard)
            index.add(vectors_ND)
            counter.update(len(vectors_ND))
    if index.ntotal != total:
        raise ValueError(f"expected {total} vectors to index, found {index.ntotal}")
    with writing(out / INDEX) as temporary:
        _faiss().write_index(index, str(temporary))
    record(out, str(INDEX))


def _trained(read: Callable[[int], NDArray[np.float32]], shards: int, factory: str) -> Any:
    """Return an empty index by inner product, trained on a sample of the vectors where its factory needs that."""
    faiss, dimension = _faiss(), read(0).shape[1]
    if "HNSW" in factory:
        # Graphs grow differently each time when threads add to them; _faiss() would reset it, so nothing may call it
        # before all vectors are added.
        faiss.omp_set_num_threads(1)
    try:
        index = faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise UserError(
            f"index.factory: FAISS cannot build {factory!r} for vectors of {dimension} dimensions ({_reason(error)});"
            " try Flat, HNSW32 or IVF256,Flat"
        ) from error
    if not index.is_trained:
        sample_ND = _sample(read, shards)
        try:
            index.train(sample_ND)
        except RuntimeError as error:
            raise UserError(
                f"index.factory: {factory!r} cannot be trained on {len(sample_ND)} vectors ({_reason(error)});"
                " use fewer cells (the number after IVF), codes without clusters, Flat or HNSW32"
            ) from error
    return index


def _sample(read: Callable[[int], NDArray[np.float32]], shards: int) -> NDArray[np.float32]:
    """Return about TRAINING_VECTORS vectors, evenly from all shards."""
    per_shard = -(-TRAINING_VECTORS // shards)
    return np.concatenate([block[:: -(-len(block) // per_shard) or 1] for block in map(read, range(shards))])


def _reason(error: RuntimeError) -> str:
    """Return the message of FAISS without the position in its source code."""
    return re.sub(r"^Error in .*? at \S+:\d+: (Error: '.*?' failed: )?", "", str(error)).strip()


def open_index(
    path: Path,
    vectors: Artifact[Vectors] | None,
    encode: Callable[[Sequence[str]], Encoded] | None,
    ids: PassageIndex,
    view: str,
) -> Searcher:
    """Return a searcher of the index, which scores candidates by the vectors it was built from."""
    if vectors is None or encode is None or view not in VIEWS:
        raise TypeError("a FAISS index is searched by the dense view, with its vectors and an encoder of queries")
    opened = Opened(path, len(ids))

    def propose(queries: Encoded, count: int) -> list[Indices]:
        assert queries.dense is not None
        _, rows_QK = opened.nearest(queries.dense, count)
        return [rows[rows >= 0] for rows in rows_QK]  # FAISS pads with -1

    stored = StoredVectors(vectors.path, view, num_host_threads())
    return two_stage_searcher(encode, propose, stored, ids, int(str(describe(path)["refine"])))


class Opened:
    """An index on disk, with the search parameters of `index.json`."""

    def __init__(self, path: Path, expected: int) -> None:
        faiss, described = _faiss(), describe(path)
        self.index = faiss.read_index(str(path / INDEX))
        if self.index.ntotal != expected:
            raise ValueError(f"{path / INDEX} holds {self.index.ntotal} vectors; expected {expected}")
        for name, parameter in (("nprobe", "nprobe"), ("ef_search", "efSearch")):
            if (value := described[name]) is not None:
                faiss.ParameterSpace().set_index_parameter(self.index, parameter, int(str(value)))
        self.on_gpus = _on_gpus(self.index)

    def nearest(self, queries_QD: NDArray[np.float32], count: int) -> tuple[NDArray[np.float32], Indices]:
        """Return the approximate scores and the rows of each query's nearest vectors, [Q, K], padded with -1."""
        count = min(count, self.index.ntotal)
        index = self.on_gpus if self.on_gpus is not None and count <= GPU_DEPTH else self.index
        nearest: tuple[NDArray[np.float32], Indices] = index.search(np.ascontiguousarray(queries_QD), count)
        return nearest


def _on_gpus(index: Any) -> Any | None:
    """Return a copy of the index on the run's GPUs, or None; the CPU builds it, so that its bytes do not vary."""
    faiss, device = _faiss(), execution().device
    if device == "cpu" or not faiss.get_num_gpus() or not isinstance(index, (faiss.IndexFlat, faiss.IndexIVF)):
        return None
    if ":" in device:
        return faiss.index_cpu_to_gpus_list(index, gpus=[int(device.partition(":")[2])])
    return faiss.index_cpu_to_all_gpus(index)


def _faiss() -> Any:
    try:
        import faiss
    except ModuleNotFoundError as error:
        raise UserError("FAISS is not installed; install this project with its extra cpu or gpu") from error

    faiss.omp_set_num_threads(execution().threads)
    return faiss
