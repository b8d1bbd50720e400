"""Pre-train an encoder on pairs of a passage and its contexts: `paper: cot_mae` means `models/cot_mae.py`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import torch
from pydantic import Field

from models import bert
from models.encoder import load_pooling
from models.objective import Batch
from models.tokens import Tokenizer
from storage.artifact import Artifact
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
    rows = read_table(pairs, Pairs)
    texts = tokenizer.pieces(rows["text"].to_pylist())
    contexts = [tokenizer.pieces(each) for each in rows["contexts"].to_pylist()]

    def batch_of(step: int) -> Batch:
        chosen = visited(step, settings.batch, len(texts), settings.seed)
        random = np.random.default_rng((settings.seed, step))
        drawn = [contexts[row][random.integers(len(contexts[row]))] for row in chosen]
        made: Batch = paper.make_batch([texts[row] for row in chosen], drawn, tokenizer, settings.objective, random)
        return made

    torch.manual_seed(settings.seed)
    objective = paper.Pretraining(model, settings.objective, pooling)
    fit(objective, batch_of, settings.steps, out=out, settings=settings.fit, seed=settings.seed)
    save_checkpoint(model, out, pooling=pooling, tokenizer=start.path)


def visited(step: int, batch: int, num_rows: int, seed: int) -> list[int]:
    """The rows of a step: every row once an epoch, each epoch in an order of its own; batches may cross epochs."""
    first, rows = step * batch, []
    while len(rows) < batch:
        epoch, place = divmod(first + len(rows), num_rows)
        order = np.random.default_rng((seed, epoch, num_rows)).permutation(num_rows)
        rows += order[place : place + batch - len(rows)].tolist()
    return rows
