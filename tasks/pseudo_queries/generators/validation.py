"""Validation of a generator on held-out pairs after every epoch: its loss and the round trip.

The round trip generates one query greedily for each held-out passage and searches with it
(`tasks.pseudo_queries.generators.round_trip_search`). The result of an epoch is a file written atomically, and so is
the folder of its model; a resumed training uses both.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from storage.files import flush, write_atomically
from tasks.pseudo_queries.generators.pair_files import Side
from tasks.pseudo_queries.generators.round_trip_search import CUTOFF, Collection
from tasks.pseudo_queries.generators.sampler import GenerationRequest, Sampler
from tasks.pseudo_queries.generators.seq2seq_batches import Seq2SeqTokenizer
from tasks.pseudo_queries.generators.seq2seq_objective import Seq2SeqObjective
from tasks.runtime.device import Precision, autocast
from tasks.runtime.leftovers import discard, is_intact, record
from tasks.runtime.progress import bar

MODELS = "models"
BATCH_TOKENS = 4096  # passage tokens per batch

Keep = Literal["best", "last"]


@dataclass(frozen=True)
class Greedy:
    """Sampling settings for one query per passage, with the likeliest token at each step."""

    prefix: str
    input_max_tokens: int
    max_new_tokens: int
    seed: int = 0
    """Without effect, since nothing is random."""
    top_k: int = 1
    top_p: float = 1.0
    temperature: float = 1.0
    batch_tokens: int = BATCH_TOKENS
    prompt: str | None = None
    stop: str | None = None
    dtype: Precision | Literal["auto"] = "auto"


@dataclass(frozen=True)
class Epoch:
    """The validation results of a model after an epoch; epoch 0 is the initial model."""

    epoch: int
    step: int
    validation_loss: float
    """Mean negative log-likelihood of a held-out token, in nats."""
    round_trip: float
    """Share of the held-out passages that are among the top 10 for their query."""
    mrr: float
    """Mean reciprocal rank of the own passage, 0 if it is not in the top 10."""

    def logged(self) -> dict[str, float]:
        """Return the values as they are logged with the training losses."""
        names = {"validation_loss": self.validation_loss}
        return names | {f"round_trip@{CUTOFF}": self.round_trip, f"MRR@{CUTOFF}": self.mrr}


def best(epochs: Sequence[Epoch]) -> Epoch:
    """Return the epoch with the best round trip; of equal ones that with the lower loss, then the earlier."""
    return min(epochs, key=lambda epoch: (-epoch.round_trip, epoch.validation_loss, epoch.epoch))


@dataclass(frozen=True)
class ValidationPlan:
    """The epochs of a generator's validation, its numbers of texts, and the model to keep."""

    ends: Mapping[int, int]
    """The epoch that ends after a number of steps."""
    passages: int
    """The number of held-out passages for which a query is generated."""
    rows: int
    """The number of held-out pairs in memory at a time."""
    keep: Keep
    precision: Precision | None = None


class Validation:
    """A probe of the training loop that validates the model at the end of each epoch.

    A validated epoch is not validated again. `objective` is what the loop trains.
    """

    def __init__(
        self, folder: Path, tokenizer: Seq2SeqTokenizer, held_out: Side, collection: Collection, plan: ValidationPlan,
        report: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.folder, self.tokenizer, self.objective = folder, tokenizer, Seq2SeqObjective(tokenizer.model)
        self.held_out, self.collection, self.plan, self.report = held_out, collection, plan, report

    def __call__(self, steps: int) -> dict[str, float]:
        """Return the values to log after `steps` steps; {} if no epoch ends there."""
        if steps not in self.plan.ends:
            return {}
        epoch = self.plan.ends[steps]
        if not is_intact(self.folder, self._record(epoch).name):
            self._save(epoch)
            ranks = self.collection.ranks(self.queries(self._model(epoch)))
            result = Epoch(
                epoch, steps, self.loss(), sum(rank > 0 for rank in ranks) / len(ranks),
                sum(1 / rank for rank in ranks if rank) / len(ranks),
            )  # fmt: skip
            write_atomically(self._record(epoch), json.dumps(asdict(result)))
            record(self.folder, self._record(epoch).name)
            self.report(_line(result, max(self.plan.ends.values())))
        for folder in self._model(epoch).parent.iterdir():
            if folder != self.chosen():
                shutil.rmtree(folder)
        return next(result for result in self.epochs() if result.epoch == epoch).logged()

    def resumes(self, step: int) -> bool:
        """Return whether a training resumed after `step` steps has all earlier results and the kept model.

        Results of later epochs are used if they are intact, else discarded: these epochs are validated again.
        """
        past = [epoch for steps, epoch in self.plan.ends.items() if step and steps <= step]
        damaged = [epoch for epoch in self.plan.ends.values() if not is_intact(self.folder, self._record(epoch).name)]
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
        """Return the results so far."""
        return [Epoch(**json.loads(path.read_text(encoding="utf-8"))) for path in sorted(self.folder.glob("*.json"))]

    def chosen(self) -> Path:
        """Return the folder of the model to keep, of those validated so far."""
        epochs = self.epochs()
        return self._model((best(epochs) if self.plan.keep == "best" else epochs[-1]).epoch)

    def loss(self) -> float:
        """Return the mean negative log-likelihood of a token over the held-out pairs, without dropout."""
        device, training = next(self.objective.parameters()).device, self.objective.training
        pairs = sorted(self.held_out.pairs(range(len(self.held_out.queries))), key=lambda pair: len(pair[0]))
        total, tokens = 0.0, 0
        self.objective.eval()
        with torch.no_grad(), autocast(device, self.plan.precision):
            for first in range(0, len(pairs), self.plan.rows):
                batch = self.tokenizer.batch(pairs[first : first + self.plan.rows]).to(device)
                count = batch.num_terms("cross_entropy")
                total += self.objective.encode(batch)[1]["cross_entropy"].item() * count
                tokens += count
        self.objective.train(training)
        return total / tokens

    def queries(self, checkpoint: Path) -> list[str]:
        """Return the query that the model of a folder generates for each of the first held-out passages."""
        settings, passages = self.tokenizer.settings, self.held_out.passages[: self.plan.passages]
        greedy = Greedy(
            settings.prefix, settings.input_max_tokens, settings.query_max_tokens, dtype=self.plan.precision or "auto"
        )
        device = next(self.objective.parameters()).device
        generated = [""] * len(passages)
        with bar(what="generating held-out queries", unit="queries", total=len(passages)) as counter:
            sampler = Sampler(checkpoint, greedy, device, self.report)
            for batch in sampler([GenerationRequest(text, range(1), draw=0) for text in passages]):
                for index, queries in batch:
                    generated[index] = queries[0]
                counter.update(len(batch))
        return generated

    def _save(self, epoch: int) -> None:
        """Write the model into a folder that appears atomically."""
        target = self._model(epoch)
        building = target.with_name("building")
        for leftover in (building, target):
            shutil.rmtree(leftover, ignore_errors=True)
        building.mkdir(parents=True)
        self.tokenizer.save(building)
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
    """Return the text of validation.json."""
    published = best(epochs) if keep == "best" else epochs[-1]
    content = {
        "best": best(epochs).epoch, "published": published.epoch, "cutoff": CUTOFF, **sides,
        "epochs": [asdict(epoch) for epoch in epochs],
    }  # fmt: skip
    return json.dumps(content, indent=1) + "\n"


def _line(result: Epoch, last: int) -> str:
    values = ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in result.logged().items())
    return f"epoch {result.epoch} of {last}: {values}"
