"""How a generator is doing on pairs that it does not learn from, after every epoch: its loss, and the round trip.

The round trip: for each held-out passage it writes one query, greedily, and BM25 looks for that among the held-out
passages and others. What an epoch gave is a file that appears whole, and so is its model's folder; a training that
was killed goes on with both.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from storage.artifact import Artifact
from storage.files import flush, write_atomically
from storage.rows import write_rows
from storage.settings import Settings
from storage.tables import Index, Passages
from tasks.pseudo_queries.generators.pair_files import Side
from tasks.pseudo_queries.generators.sampler import Asked, open_sampler
from tasks.pseudo_queries.generators.seq2seq_batches import Teacher
from tasks.pseudo_queries.generators.seq2seq_objective import Writer
from tasks.retrieval.engines import bm25
from tasks.retrieval.index import index
from tasks.retrieval.ranking import Searcher, passage_ids
from tasks.runtime.leftovers import discard, is_intact, record
from tasks.runtime.progress import bar

CUTOFF = 10
MODELS = "models"
BATCH_TOKENS = 4096  # passage tokens that are written for at a time

Keep = Literal["best", "last"]


class Trip(Settings):
    """What the round trip is made of."""

    passages: int = Field(gt=0)
    """Held-out passages that a query is written for, at most."""
    others: int = Field(ge=0)
    """Passages of the other pairs, at most, that are searched beside all those held out."""
    bm25: bm25.Bm25


@dataclass(frozen=True)
class Greedy:
    """One query a passage, the likeliest token each time."""

    prefix: str
    input_max_tokens: int
    max_new_tokens: int
    seed: int = 0
    """Nothing is drawn."""
    top_k: int = 1
    top_p: float = 1.0
    temperature: float = 1.0
    batch_tokens: int = BATCH_TOKENS
    prompt: str | None = None
    stop: str | None = None
    dtype: Literal["auto"] = "auto"


@dataclass(frozen=True)
class Epoch:
    """What is known of a model after an epoch; epoch 0 is the start."""

    epoch: int
    step: int
    validation_loss: float
    """Mean negative log-likelihood of a held-out token, in nats."""
    round_trip: float
    """Share of the held-out passages that their query finds among the first ten."""
    mrr: float
    """Mean of one over the passage's rank, 0 where it is not among the first ten."""

    def logged(self) -> dict[str, float]:
        """As it stands beside the losses."""
        names = {"validation_loss": self.validation_loss}
        return names | {f"round_trip@{CUTOFF}": self.round_trip, f"MRR@{CUTOFF}": self.mrr}


def best(epochs: Sequence[Epoch]) -> Epoch:
    """The one with the best round trip; of equal ones that of the lower loss, then the earlier."""
    return min(epochs, key=lambda each: (-each.round_trip, each.validation_loss, each.epoch))


class Collection:
    """The passages that queries are looked for in: those that are asked about come first."""

    def __init__(self, folder: Path, texts: Sequence[str], settings: bm25.Bm25) -> None:
        self.folder, self.texts, self.settings = folder, texts, settings

    def ranks(self, queries: Sequence[str]) -> list[int]:
        """Of each query's own passage, the one of its number; 0 where it is not among the first ten."""
        found = self._searcher(queries)(range(len(queries)), CUTOFF)
        own = [np.flatnonzero(hits.rows == number) for number, hits in enumerate(found)]
        return [int(place[0]) + 1 if len(place) else 0 for place in own]

    @cached_property
    def _searcher(self) -> Searcher:
        """Java starts when it is first asked for."""
        rows = (
            {"passage_id": f"{number:09d}", "doc_id": f"{number:09d}", "title": "", "text": text, "start": 0,
             "end": len(text), "num_tokens": 0}
            for number, text in enumerate(self.texts)
        )  # fmt: skip
        write_rows(self.folder / "passages", Passages, rows)
        passages: Artifact[Passages] = Artifact("validation", "passages", self.folder / "passages")
        made: Artifact[Index] = Artifact("validation", "index", self.folder / "index")
        made.path.mkdir(exist_ok=True)
        index.body(made.path, passages, None, None, settings=self.settings)
        return bm25.open_index(made.path, None, None, passage_ids(passages), "bm25")


class Validation:
    """Called with the steps done, looks at the model where an epoch ends; {} elsewhere.

    `ends` says after which steps which epoch ends. An epoch that has been looked at is not looked at again.
    """

    def __init__(
        self, folder: Path, writer: Writer, teacher: Teacher, held_out: Side, collection: Collection, *,
        ends: dict[int, int], asked: int, rows: int, keep: Keep, tell: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.folder, self.writer, self.teacher = folder, writer, teacher
        self.held_out, self.collection = held_out, collection
        self.ends, self.asked, self.rows, self.keep, self.tell = ends, asked, rows, keep, tell

    def __call__(self, steps: int) -> dict[str, float]:
        """What is to be logged beside the losses of a step."""
        if steps not in self.ends:
            return {}
        epoch = self.ends[steps]
        if not is_intact(self.folder, self._record(epoch).name):
            self._save(epoch)
            ranks = self.collection.ranks(self.queries(self._model(epoch)))
            found = Epoch(
                epoch, steps, self.loss(), sum(rank > 0 for rank in ranks) / len(ranks),
                sum(1 / rank for rank in ranks if rank) / len(ranks),
            )  # fmt: skip
            write_atomically(self._record(epoch), json.dumps(asdict(found)))
            record(self.folder, self._record(epoch).name)
            self.tell(_line(found, max(self.ends.values())))
        for folder in self._model(epoch).parent.iterdir():
            if folder != self.chosen():
                shutil.rmtree(folder)
        return next(each for each in self.epochs() if each.epoch == epoch).logged()

    def resumes(self, step: int) -> bool:
        """Whether a training that resumes after so many steps has all that was found until then, and the kept model.

        What later epochs have left is used where it is intact, and else discarded: they come again.
        """
        past = [epoch for steps, epoch in self.ends.items() if step and steps <= step]
        damaged = [epoch for epoch in self.ends.values() if not is_intact(self.folder, self._record(epoch).name)]
        for epoch in damaged:
            discard(self.folder, self._record(epoch).name)
        if not set(past).isdisjoint(damaged):
            return False
        if self.epochs() and not is_intact(self.folder, f"{MODELS}/{self.chosen().name}"):
            lost = int(self.chosen().name)
            discard(self.folder, self._record(lost).name)
            return lost not in past
        return True

    def epochs(self) -> list[Epoch]:
        """What has been found so far."""
        return [Epoch(**json.loads(path.read_text())) for path in sorted(self.folder.glob("*.json"))]

    def chosen(self) -> Path:
        """The folder of the model that is kept, of those looked at."""
        epochs = self.epochs()
        return self._model((best(epochs) if self.keep == "best" else epochs[-1]).epoch)

    def loss(self) -> float:
        """Mean negative log-likelihood of a token over the held-out pairs, without dropout."""
        device, training = next(self.writer.parameters()).device, self.writer.training
        pairs = sorted(self.held_out.pairs(range(len(self.held_out.written))), key=lambda pair: len(pair[0]))
        total, tokens = 0.0, 0
        self.writer.eval()
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16, enabled=device.type == "cuda"):
            for first in range(0, len(pairs), self.rows):
                batch = self.teacher.batch(pairs[first : first + self.rows]).to(device)
                count = batch.num_terms("cross_entropy")
                total += self.writer.encode(batch)[1]["cross_entropy"].item() * count
                tokens += count
        self.writer.train(training)
        return total / tokens

    def queries(self, checkpoint: Path) -> list[str]:
        """What the model of a folder writes for the first of the held-out passages."""
        settings, passages = self.teacher.settings, self.held_out.passages[: self.asked]
        greedy = Greedy(settings.prefix, settings.input_max_tokens, settings.query_max_tokens)
        device = next(self.writer.parameters()).device
        written = [""] * len(passages)
        with bar(what="writing held-out queries", unit="queries", total=len(passages)) as counter:
            sampler = open_sampler(checkpoint, greedy, device, self.tell)
            for batch in sampler([Asked(text, range(1), draw=0) for text in passages]):
                for place, queries in batch:
                    written[place] = queries[0]
                counter.update(len(batch))
        return written

    def _save(self, epoch: int) -> None:
        """Write the model as a folder that appears whole."""
        target = self._model(epoch)
        building = target.with_name("building")
        for left in (building, target):
            shutil.rmtree(left, ignore_errors=True)
        building.mkdir(parents=True)
        self.teacher.save(building)
        for file in (*building.iterdir(), building):
            flush(file)
        record(self.folder, f"{MODELS}/{target.name}", at=building)
        os.rename(building, target)
        flush(target.parent)

    def _record(self, epoch: int) -> Path:
        return self.folder / f"{epoch:03d}.json"

    def _model(self, epoch: int) -> Path:
        return self.folder / MODELS / f"{epoch:03d}"


def summary(epochs: Sequence[Epoch], keep: Keep, sides: dict[str, Any]) -> str:
    """The text of validation.json."""
    published = best(epochs) if keep == "best" else epochs[-1]
    found = {
        "best": best(epochs).epoch, "published": published.epoch, "cutoff": CUTOFF, **sides,
        "epochs": [asdict(each) for each in epochs],
    }  # fmt: skip
    return json.dumps(found, indent=1) + "\n"


def _line(found: Epoch, last: int) -> str:
    values = ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in found.logged().items())
    return f"epoch {found.epoch} of {last}: {values}"
