"""Vectors of passages on disk: one float32 `.npy` file a shard, in the order of the table's rows.

A shard's file is whole or absent, so encoding that was cut off goes on with the first missing one.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from storage.files import writing

Vectors = NDArray[np.float32]


def vectors_path(folder: Path, shard: int) -> Path:
    """Where a shard's vectors lie."""
    return folder / f"{shard:05d}.npy"


def write_vectors(folder: Path, shard: int, vectors_PD: Vectors) -> None:
    """Write one shard, [passages, dimension]; vectors that are not finite are refused."""
    if not np.isfinite(vectors_PD).all():
        raise ValueError(f"shard {shard} has vectors that are not finite: the encoder's weights are broken")
    with writing(vectors_path(folder, shard)) as temporary, temporary.open("wb") as file:
        np.save(file, np.ascontiguousarray(vectors_PD, dtype=np.float32), allow_pickle=False)


def read_vectors(folder: Path, shard: int) -> Vectors:
    """One shard, [passages, dimension]."""
    vectors_PD: Vectors = np.load(vectors_path(folder, shard), allow_pickle=False)
    return vectors_PD
