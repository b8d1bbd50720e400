"""Fine-tune a query generator on your own query-passage pairs, as docT5query was fine-tuned from T5.

The generator is any Hugging Face seq2seq model with its tokenizer; one of `train_generator` is such a model too.
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from storage.artifact import Source
from storage.files import write_atomically, writing
from storage.settings import Seed, Settings
from storage.store.publishing import SCRATCH
from storage.tables import Checkpoint
from tasks.pseudo_queries.generators.pair_files import Side, split
from tasks.pseudo_queries.generators.round_trip_search import Collection, Trip
from tasks.pseudo_queries.generators.seq2seq_batches import Seq2SeqTokenizer
from tasks.pseudo_queries.generators.seq2seq_objective import Batch
from tasks.pseudo_queries.generators.validation import Keep, Validation, ValidationPlan, summary
from tasks.runtime.device import choose_device
from tasks.runtime.work_folder import CHECKPOINTS
from tasks.session import print_line
from tasks.stage import stage
from tasks.training.checkpoints import newest_intact
from tasks.training.epochs import rows_of_step
from tasks.training.loop import fit
from tasks.training.optimiser import OptimisationSettings

VALIDATION_JSON = "validation.json"


class GeneratorFinetuning(Settings):
    """The settings for training a generator on pairs and validating it."""

    prefix: str
    """Put before each passage; generate with the same prefix."""
    input_max_tokens: Annotated[int, Field(ge=2)]
    """Tokens of prefix and passage, with special tokens; the rest is truncated."""
    query_max_tokens: Annotated[int, Field(ge=2)]
    """Tokens of a query, with its end; a longer one is truncated."""
    epochs: Annotated[int, Field(ge=1)]
    batch: Annotated[int, Field(ge=1)]
    """Pairs per step; all pairs if there are fewer."""
    validation: Annotated[float, Field(gt=0, lt=1)]
    """Share of the passages that are held out with all their queries; at least one is."""
    trip: Trip
    keep: Keep
    """The epoch whose model is published; `best` is that with the best round trip, possibly the initial model."""
    fit: OptimisationSettings
    seed: Seed

    @model_validator(mode="after")
    def _publishes_the_validated_weights(self) -> GeneratorFinetuning:
        if self.fit.average is not None:
            raise ValueError("fit.average: a generator's validated weights are published, not their average; use null")
        return self


@stage(version=1, table=Checkpoint, gpu=True)
def finetune_generator(out: Path, start: Source, pairs: Source, *, settings: GeneratorFinetuning) -> None:
    """Write the trained model, and `validation.json`: loss and round trip on held-out pairs after every epoch."""
    train, held_out = split(pairs.path, settings.validation)
    sides = {"train": sizes(train), "held_out": sizes(held_out)}
    print_line(", ".join(f"{name.replace('_', ' ')}: {side['pairs']:,} pairs of {side['passages']:,} passages"
                   for name, side in sides.items()))  # fmt: skip
    tokenizer, batch = Seq2SeqTokenizer(start.path, settings, choose_device()), min(settings.batch, len(train.queries))
    texts = [*held_out.passages, *train.passages[: settings.trip.others]]
    folder, num_passages = out / SCRATCH / "validation", settings.trip.passages
    collection = Collection(folder / "search", texts, settings.trip.bm25)
    plan = ValidationPlan(
        ends_of_epochs(len(train.queries), batch, settings.epochs), num_passages, settings.fit.chunk or batch,
        settings.keep, settings.fit.precision,
    )  # fmt: skip
    validation = Validation(folder, tokenizer, held_out, collection, plan, print_line)

    def batch_of(step: int) -> Batch:
        return tokenizer.batch(train.pairs(rows_of_step(step, batch, len(train.queries), settings.seed)))

    if not validation.resumes(int(newest_intact(out) or 0)):
        print_line(f"{out.name}: the validation of an earlier epoch is damaged or incomplete; training starts again")
        for leftover in (folder, out / CHECKPOINTS):
            shutil.rmtree(leftover, ignore_errors=True)
    fit(validation.objective, batch_of, max(plan.ends), out=out, settings=settings.fit, seed=settings.seed,
        probe=validation)  # fmt: skip
    sides["round_trip"] = {"asked": min(num_passages, len(held_out.passages)), "searched": len(texts)}
    for file in sorted(validation.chosen().iterdir()):
        with writing(out / file.name) as temporary:
            shutil.copyfile(file, temporary)
    write_atomically(out / VALIDATION_JSON, summary(validation.epochs(), settings.keep, sides))


def ends_of_epochs(pairs: int, batch: int, epochs: int) -> dict[int, int]:
    """Return, by number of steps, the epoch that ends there: when every pair has been visited that often."""
    return {math.ceil(epoch * pairs / batch): epoch for epoch in range(epochs + 1)}


def sizes(side: Side) -> dict[str, int]:
    """Return the numbers of passages and pairs of one side of the split."""
    return {"passages": len(side.passages), "pairs": len(side.queries)}
