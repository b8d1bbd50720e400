"""Encode all passages with a retriever: its representations are written once, and any engine searches them.

Batches depend on the texts only, never on how the run is executed: padding and the shape of a matrix product change
the last bits of a vector, and equal builds must be equal byte by byte.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from models import backbones
from models.layers.bert_config import CONFIG
from models.representation import Representation, Role
from models.retrievers import load
from models.retrievers.load import LoadedRetriever
from models.retrievers.nested_vectors import truncated
from models.settings import omitted_at
from models.tokens import Tokens
from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.files import write_atomically
from storage.rows import num_rows, read_rows
from storage.settings import Settings
from storage.tables import Checkpoint, Passages, Vectors, passage_text
from storage.vectors import VECTORS_JSON, Encoded, SparseRows, TokenRows, bytes_per_passage, shard_files, write_shard
from tasks.runtime.ahead import made_ahead
from tasks.runtime.device import Precision, autocast, choose_device
from tasks.runtime.shard import Shard, ShardJob, ShardTask, load_once, row_shards
from tasks.runtime.shards import run_shards
from tasks.runtime.token_batches import TOKENS_PER_BATCH, batches
from tasks.stage import stage

LEXICAL_TOKENS_PER_BATCH = {"cpu": 1024, "cuda": 16_384}  # fewer, since a token has a weight for every vocabulary id
PASSAGES_PER_SHARD = {"dense": 8192, "lexical": 2048, "late": 512}  # about 100 MB; the smallest of a retriever's views
PARTS, BATCHES_AHEAD = 4, 4  # on a GPU: of the texts, which are tokenised one after another, and of a part's batches


class Encoding(Settings):
    """The numbers of tokens at which texts are truncated, and the precision in which they are encoded."""

    query_max_tokens: int = Field(gt=2)
    """With [CLS] and [SEP]. Passages are encoded without it; it is stored for searches, which encode queries."""
    passage_max_tokens: int = Field(gt=2)
    precision: Annotated[Precision | None, omitted_at(None)] = None
    """The number format of the layers' products; vectors are stored in float32. Null, as before this setting, is
    bfloat16 on a GPU and float32 on a CPU, so that equal keys can have different contents."""

    @property
    def limits(self) -> dict[str, int]:
        """The numbers of tokens, by name."""
        return {"query_max_tokens": self.query_max_tokens, "passage_max_tokens": self.passage_max_tokens}


Model = Artifact[Checkpoint] | Source
"""A checkpoint of the store, or a model outside it, which is read in place."""


class TextEncoder:
    """Encodes texts with the retriever of a folder on the run's device; `truncate_dim` is that of `Truncation`."""

    def __init__(self, folder: Path, precision: Precision | None = None, truncate_dim: int | None = None) -> None:
        self.truncate_dim = truncate_dim
        self.device, self.opened, self.precision = choose_device(), open_retriever(folder), precision
        self.retriever = self.opened.retriever.to(self.device)
        limits = LEXICAL_TOKENS_PER_BATCH if "lexical" in self.retriever.views else TOKENS_PER_BATCH
        self.tokens_per_batch = limits["cpu" if self.device.type == "cpu" else "cuda"]

    def __call__(
        self, texts: Sequence[str], role: Role, max_tokens: int, done: Callable[[int], object] = lambda number: None
    ) -> Encoded:
        """Return all representations of the texts, in their order; `done` is called with the size of each batch."""
        encoded: list[Encoded] = []
        order: list[int] = []
        on_cpu = self.device.type == "cpu"  # a second thread would only take time from the first
        prepared = self._batches(texts, role, max_tokens, parts=1 if on_cpu else PARTS)
        with nullcontext(prepared) if on_cpu else made_ahead(prepared, BATCHES_AHEAD) as given:
            for rows, tokens in given:
                encoded.append(self._encode_batch(tokens, role))
                order += rows
                done(len(rows))
        return Encoded.concatenated(encoded).taken(np.argsort(order))

    def _batches(
        self, texts: Sequence[str], role: Role, max_tokens: int, parts: int
    ) -> Iterator[tuple[list[int], Tokens]]:
        """Yield padded batches with the indexes of their texts; each part of the texts is tokenised when it is due."""
        size = -(-len(texts) // parts)
        for first in range(0, len(texts), max(1, size)):
            ids = self.opened.encode(texts[first : first + size], role, max_tokens)
            for rows in batches([len(tokens) for tokens in ids], self.tokens_per_batch):
                yield [first + row for row in rows], self.opened.pad_batch([ids[row] for row in rows])

    @torch.inference_mode()
    def _encode_batch(self, tokens: Tokens, role: Role) -> Encoded:
        with autocast(self.device, self.precision):
            representation: Representation = self.retriever(tokens.to(self.device), role)
        if self.truncate_dim is not None:
            normalise = self.retriever.settings.normalises
            representation = truncated(representation, self.truncate_dim, normalise=normalise)
        return as_rows(representation)


def open_retriever(folder: Path) -> LoadedRetriever:
    """Return the retriever of a folder. Raises UserError where it is broken or missing."""
    try:
        return load.load(folder)
    except ValueError as error:
        raise UserError(f"not a retriever that can be read: {error}") from None


def views_and_max_tokens(folder: Path) -> tuple[tuple[str, ...], int]:
    """Return the views of a folder's retriever, and the maximum number of tokens of a text."""
    try:
        return load.read_settings(folder).views, load.max_tokens(folder)
    except ValueError as error:
        raise UserError(f"not a retriever that can be read: {error}") from None


def check_dimensions(location: str, dims: Sequence[int], dense_dim: int | None, backbone: Path) -> None:
    """Raise UserError for vectors that are not longer than the dimensions to which they are to be truncated.

    `dense_dim` is that of a projection; without one it is the hidden size of the backbone, if its folder is present.
    """
    if not dims or (dense_dim is None and not (backbone / CONFIG).is_file()):
        return
    check_below(location, dims, dense_dim or backbones.sizes(backbone).hidden_size)


def check_below(location: str, dims: Sequence[int], size: int) -> None:
    """Raise UserError unless all dimensions are below the size of the vectors."""
    if dims and max(dims) >= size:
        raise UserError(f"{location}: expected dimensions below the vectors' {size}, found {max(dims)}")


def as_rows(batch: Representation) -> Encoded:
    """Return a batch's representations as they are stored: without zero weights and tokens that are not compared."""
    dense = None if batch.dense is None else batch.dense.float().cpu().numpy()
    lexical = None if batch.lexical is None else _sparse(batch.lexical.float())
    late = None if batch.tokens is None else _tokens(batch.tokens.float(), batch.token_mask, batch.token_ids)
    return Encoded(dense, lexical, late)


def _sparse(weights_BV: Tensor) -> SparseRows:
    rows, ids = weights_BV.nonzero(as_tuple=True)  # ordered by row, then by token id
    values = weights_BV[rows, ids].cpu().numpy()
    return SparseRows(_offsets((weights_BV != 0).sum(1)), ids.cpu().numpy().astype(np.int32), values)


def _tokens(vectors_BLD: Tensor, mask_BL: Tensor | None, ids_BL: Tensor | None) -> TokenRows:
    if mask_BL is None:
        raise ValueError("the retriever gives no mask of the tokens that are compared")
    ids = np.empty(0, np.int32) if ids_BL is None else ids_BL[mask_BL].cpu().numpy().astype(np.int32)
    return TokenRows(_offsets(mask_BL.sum(1)), vectors_BLD[mask_BL].cpu().numpy(), ids)


def _offsets(counts_B: Tensor) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.concatenate([np.zeros(1, np.int64), counts_B.cumsum(0).cpu().numpy()])


@stage(version=2, table=Vectors, gpu=True)
def encode(out: Path, passages: Artifact[Passages], checkpoint: Model, *, settings: Encoding) -> None:
    """Write the representations of every passage by the checkpoint's retriever, shard by shard, and `vectors.json`."""
    _check(checkpoint.path, settings)
    retriever, total = load.read_settings(checkpoint.path), num_rows(passages.path)
    shards = _shards(total, retriever.views)
    job = ShardJob(write_part, out, (passages, checkpoint), settings, what="encoding", unit="passages", on_gpus=True)
    run_shards(job, shards)
    description = {
        "passages": total,
        "shards": len(shards),
        "views": {view: getattr(retriever, view).weight for view in retriever.views},
        "exact_match": retriever.late is not None and retriever.late.exact_match,
        **settings.model_dump(),
        "bytes_per_passage": bytes_per_passage(out),
    }
    write_atomically(out / VECTORS_JSON, json.dumps(description, indent=1, sort_keys=True) + "\n")


def write_part(
    task: ShardTask,
    passages: Artifact[Passages],
    checkpoint: Model,
    *,
    settings: Encoding,
) -> None:
    """Write all representations of a shard's passages."""
    encoder = load_once(_encoder, checkpoint, settings.precision)
    texts = [passage_text(row["title"], row["text"]) for row in read_rows(passages, Passages, *task.shard.of)]
    write_shard(task.out, task.shard.number, encoder(texts, "passage", settings.passage_max_tokens, task.done))


def _encoder(checkpoint: Model, precision: Precision | None) -> TextEncoder:
    return TextEncoder(checkpoint.path, precision)


def _shards(total: int, views: Sequence[str]) -> list[Shard]:
    shards = row_shards(total, min(PASSAGES_PER_SHARD[view] for view in views))
    return [dataclasses.replace(shard, files=shard_files(shard.number, views)) for shard in shards]


def _check(checkpoint: Path, settings: Encoding) -> None:
    """Raise UserError where more tokens are requested than the encoder has positions."""
    limit = load.max_tokens(checkpoint)
    for name, tokens in settings.limits.items():
        if tokens > limit:
            raise UserError(
                f"{name}: the checkpoint reads at most {limit} tokens, found {tokens}; set it to {limit} or less"
            )
