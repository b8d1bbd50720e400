"""Texts to vectors with a retriever: what all its views make of every passage, written once and searched by any engine.

What shares a batch is decided by the texts alone, never by how the run is executed: padding and the shape of
a product move the last bits of a vector, and equal builds must be equal to the byte.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from models.representation import Representation, Role
from models.retrievers import load
from models.retrievers.load import LoadedRetriever
from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.files import write_atomically
from storage.rows import num_rows, read_rows
from storage.settings import Settings
from storage.tables import Checkpoint, Passages, Vectors, passage_text
from storage.vectors import VECTORS_JSON, Encoded, SparseRows, TokenRows, bytes_per_passage, shard_files, write_shard
from tasks.runtime.device import choose_device
from tasks.runtime.shard import Shard, ShardJob, load_once, row_shards
from tasks.runtime.shards import run_shards
from tasks.runtime.token_batches import TOKENS_PER_BATCH, batches
from tasks.stage import stage

LEXICAL_TOKENS_PER_BATCH = {"cpu": 1024, "cuda": 16_384}  # each token has a weight for every word piece first
PASSAGES_PER_SHARD = {"dense": 8192, "lexical": 2048, "late": 512}  # the least of a retriever's views: some 100 MB


class Encoding(Settings):
    """How much of a text a retriever reads."""

    query_max_tokens: int = Field(gt=2)
    """With [CLS] and [SEP]; not yet used when passages are encoded, but queries must be read as the vectors say."""
    passage_max_tokens: int = Field(gt=2)


Model = Artifact[Checkpoint] | Source
"""A checkpoint of the store, or a model from outside it, which is read where it lies."""


class TextEncoder:
    """What a folder's retriever makes of texts, on the device of the run; on a GPU in bfloat16, as it was trained."""

    def __init__(self, folder: Path) -> None:
        self.device, self.opened = choose_device(), opened(folder)
        self.retriever = self.opened.retriever.to(self.device)
        limits = LEXICAL_TOKENS_PER_BATCH if "lexical" in self.retriever.views else TOKENS_PER_BATCH
        self.tokens_per_batch = limits[self.device.type]

    def __call__(
        self, texts: Sequence[str], role: Role, max_tokens: int, done: Callable[[int], object] = lambda number: None
    ) -> Encoded:
        """All views of the texts, in their order; `done` is told of each batch's size."""
        ids = self.opened.encode(texts, role, max_tokens)
        encoded: list[Encoded] = []
        order: list[int] = []
        for batch in batches([len(each) for each in ids], self.tokens_per_batch):
            encoded.append(self._encoded([ids[place] for place in batch], role))
            order += batch
            done(len(batch))
        return Encoded.concatenated(encoded).taken(np.argsort(order))

    @torch.inference_mode()
    def _encoded(self, ids: list[list[int]], role: Role) -> Encoded:
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=self.device.type == "cuda"):
            return as_rows(self.retriever(self.opened.pad_batch(ids).to(self.device), role))


def opened(folder: Path) -> LoadedRetriever:
    """The retriever of a folder. One that is broken, or none, is a `UserError`."""
    try:
        return load.load(folder)
    except ValueError as error:
        raise UserError(f"not a retriever that can be read: {error}") from None


def reads(folder: Path) -> tuple[tuple[str, ...], int]:
    """The views of a folder's retriever, and how many tokens of a text it reads at most."""
    try:
        return load.read_settings(folder).views, load.max_tokens(folder)
    except ValueError as error:
        raise UserError(f"not a retriever that can be read: {error}") from None


def as_rows(made: Representation) -> Encoded:
    """A batch's views as they are stored: no weight that is 0, no token that is never compared."""
    dense = None if made.dense is None else made.dense.float().cpu().numpy()
    lexical = None if made.lexical is None else _sparse(made.lexical.float())
    late = None if made.tokens is None else _tokens(made.tokens.float(), made.token_mask, made.token_ids)
    return Encoded(dense, lexical, late)


def _sparse(weights_BV: Tensor) -> SparseRows:
    rows, ids = weights_BV.nonzero(as_tuple=True)  # in the order of rows, and of word pieces within one
    values = weights_BV[rows, ids].cpu().numpy()
    return SparseRows(_offsets((weights_BV != 0).sum(1)), ids.cpu().numpy().astype(np.int32), values)


def _tokens(vectors_BLD: Tensor, mask_BL: Tensor | None, ids_BL: Tensor | None) -> TokenRows:
    if mask_BL is None:
        raise ValueError("the retriever does not say which of its tokens are compared")
    ids = np.empty(0, np.int32) if ids_BL is None else ids_BL[mask_BL].cpu().numpy().astype(np.int32)
    return TokenRows(_offsets(mask_BL.sum(1)), vectors_BLD[mask_BL].cpu().numpy(), ids)


def _offsets(counts_B: Tensor) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.concatenate([np.zeros(1, np.int64), counts_B.cumsum(0).cpu().numpy()])


@stage(version=2, table=Vectors, gpu=True)
def encode(out: Path, passages: Artifact[Passages], checkpoint: Model, *, settings: Encoding) -> None:
    """Write what the checkpoint's retriever makes of every passage, shard by shard, and `vectors.json`."""
    _check(checkpoint.path, settings)
    made_by, total = load.read_settings(checkpoint.path), num_rows(passages.path)
    shards = _shards(total, made_by.views)
    job = ShardJob(write_part, out, (passages, checkpoint), settings, what="encoding", unit="passages", on_gpus=True)
    run_shards(job, shards)
    description = {
        "passages": total,
        "shards": len(shards),
        "views": {view: getattr(made_by, view).weight for view in made_by.views},
        "exact_match": made_by.late is not None and made_by.late.exact_match,
        **settings.model_dump(),
        "bytes_per_passage": bytes_per_passage(out),
    }
    write_atomically(out / VECTORS_JSON, json.dumps(description, indent=1, sort_keys=True) + "\n")


def write_part(
    out: Path, shard: Shard, done: Callable[[int], object], passages: Artifact[Passages],
    checkpoint: Model, *, settings: Encoding,
) -> None:  # fmt: skip
    """Write all views of a shard's passages."""
    encoder = load_once(_encoder, checkpoint)
    texts = [passage_text(row["title"], row["text"]) for row in read_rows(passages, Passages, *shard.of)]
    write_shard(out, shard.number, encoder(texts, "passage", settings.passage_max_tokens, done))


def _encoder(checkpoint: Model) -> TextEncoder:
    return TextEncoder(checkpoint.path)


def _shards(total: int, views: Sequence[str]) -> list[Shard]:
    found = row_shards(total, min(PASSAGES_PER_SHARD[view] for view in views))
    return [dataclasses.replace(each, files=shard_files(each.number, views)) for each in found]


def _check(checkpoint: Path, settings: Encoding) -> None:
    """Refuse more tokens than the encoder has positions."""
    limit = load.max_tokens(checkpoint)
    for name, tokens in settings.model_dump().items():
        if tokens > limit:
            raise UserError(f"{name}: the checkpoint reads at most {limit} tokens, found {tokens}; set it to so many")
