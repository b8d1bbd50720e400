"""Pre-train an encoder on pairs of a passage and its contexts: `paper: cot_mae` means `models/cot_mae.py`."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from models import bert
from models.encoder import load_pooling
from models.objective import Batch
from models.tokens import Tokenizer
from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import read_table
from storage.settings import Settings
from storage.tables import Checkpoint, Pairs
from tasks.fit import Fitting, fit
from tasks.initialise import save_checkpoint
from tasks.stage import stage

P = TypeVar("P")


class Pretraining(Settings, Generic[P]):
    """A paper's objective and how it is optimised."""

    paper: str
    """A file of `models`."""
    objective: P
    """The paper's own settings."""
    steps: int = Field(gt=0)
    batch: int = Field(gt=0)
    """Pairs a step."""
    fit: Fitting
    seed: int


@stage(version=1, table=Checkpoint)
def pretrain(out: Path, pairs: Artifact[Pairs], start: Artifact[Checkpoint], *, settings: Pretraining[object]) -> None:
    """Write the pre-trained encoder; the decoder is dropped, the vocabulary head stays."""
    paper, tokenizer = import_module(f"models.{settings.paper}"), Tokenizer.load(start.path)
    model, pooling = bert.load(start.path), load_pooling(start.path)
    rows = read_table(pairs, Pairs, ["text", "contexts"]).combine_chunks()
    if not len(rows):
        raise UserError(f"{pairs.reference}: expected pairs to pre-train on, found none")

    def batch_of(step: int) -> Batch:
        chosen = rows.take(visited(step, settings.batch, len(rows), settings.seed)).to_pydict()
        random = np.random.default_rng((settings.seed, step))
        drawn = [contexts[random.integers(len(contexts))] for contexts in chosen["contexts"]]
        texts, contexts = tokenizer.pieces(chosen["text"]), tokenizer.pieces(drawn)
        made: Batch = paper.make_batch(texts, contexts, tokenizer, settings.objective, random)
        return made

    torch.manual_seed(settings.seed)
    try:
        objective = paper.Pretraining(model, settings.objective, pooling)
    except ValueError as error:
        raise UserError(f"pretrain.objective: {error}") from None
    fit(objective, batch_of, settings.steps, out=out, settings=settings.fit, seed=settings.seed)
    save_checkpoint(model, out, pooling=pooling, tokenizer=start.path)


def visited(step: int, batch: int, num_rows: int, seed: int) -> list[int]:
    """The rows of a step: every row once an epoch, each epoch in an order of its own; batches may cross epochs."""
    first = step * batch
    rows: list[int] = []
    while len(rows) < batch:
        epoch, place = divmod(first + len(rows), num_rows)
        rows += _order(epoch, num_rows, seed)[place : place + batch - len(rows)].tolist()
    return rows


@lru_cache(maxsize=2)
def _order(epoch: int, num_rows: int, seed: int) -> NDArray[np.int64]:
    """The rows in the order of an epoch."""
    return np.random.default_rng((seed, epoch, num_rows)).permutation(num_rows)
