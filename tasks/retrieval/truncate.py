"""Truncate the stored dense vectors of all passages: a measurement with fewer dimensions encodes no passage again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from pydantic import Field

from models.representation import Representation
from models.retrievers import load
from models.retrievers.nested_vectors import truncated
from storage.artifact import Artifact
from storage.files import write_atomically
from storage.settings import Settings
from storage.tables import Vectors
from storage.vectors import VECTORS_JSON, bytes_per_passage, describe_vectors, num_shards, read_shard, write_shard
from tasks.retrieval.encode import Model, as_rows
from tasks.stage import stage


class Truncation(Settings):
    """The number of dimensions that are kept of a dense vector."""

    truncate_dim: int = Field(gt=0)
    """Stored with the vectors, so that a search truncates its queries, too."""


@stage(version=1, table=Vectors)
def truncate(out: Path, vectors: Artifact[Vectors], checkpoint: Model, *, settings: Truncation) -> None:
    """Write the first dimensions of every vector, normalised again if the checkpoint's are, and `vectors.json`."""
    normalise, dim = load.read_settings(checkpoint.path).normalises, settings.truncate_dim
    for shard in range(num_shards(vectors.path)):
        dense = Representation(dense=torch.from_numpy(np.array(read_shard(vectors.path, shard, "dense").dense)))
        write_shard(out, shard, as_rows(truncated(dense, dim, normalise=normalise)))
    description = {
        **describe_vectors(vectors.path),
        **settings.model_dump(),
        "bytes_per_passage": bytes_per_passage(out),
    }
    write_atomically(out / VECTORS_JSON, json.dumps(description, indent=1, sort_keys=True) + "\n")
