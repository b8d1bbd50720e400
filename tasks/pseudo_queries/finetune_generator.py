"""Go on training a query generator on own pairs of passage and query, as docT5query was made of T5.

Any Hugging Face seq2seq model, with its own tokenizer; what `train_generator` makes of nothing is one too.
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Annotated

from pydantic import Field

from storage.artifact import Source
from storage.files import write_atomically, writing
from storage.settings import Seed, Settings
from storage.store.store import SCRATCH
from storage.tables import Checkpoint
from tasks.pseudo_queries.generators.pair_files import Side, split
from tasks.pseudo_queries.generators.seq2seq_batches import Teacher
from tasks.pseudo_queries.generators.seq2seq_objective import Batch, Writer
from tasks.pseudo_queries.generators.validation import Collection, Keep, Trip, Validation, summary
from tasks.runtime.device import choose_device
from tasks.session import tell
from tasks.stage import stage
from tasks.training.epochs import visited
from tasks.training.loop import STATE, Fitting, fit, newest

VALIDATION_JSON = "validation.json"


class GeneratorFinetuning(Settings):
    """How a generator is trained on pairs, and how it is looked at meanwhile."""

    prefix: str
    """Put before each passage; generate with the same."""
    input_max_tokens: Annotated[int, Field(ge=2)]
    """Tokens read of prefix and passage, with special tokens; the rest is cut."""
    query_max_tokens: Annotated[int, Field(ge=2)]
    """Tokens of a query, with its end; a longer one is cut."""
    epochs: Annotated[int, Field(ge=1)]
    batch: Annotated[int, Field(ge=1)]
    """Pairs a step; all of them where there are fewer."""
    validation: Annotated[float, Field(gt=0, lt=1)]
    """Share of the passages that are held out with all their queries, one at least."""
    trip: Trip
    keep: Keep
    """Which epoch's model is published; `best` is the one with the best round trip, be it the start."""
    fit: Fitting
    seed: Seed


@stage(version=1, table=Checkpoint, gpu=True)
def finetune_generator(out: Path, start: Source, pairs: Source, *, settings: GeneratorFinetuning) -> None:
    """Write the trained model, and `validation.json`: loss and round trip on held-out pairs after every epoch."""
    train, held_out = split(pairs.path, settings.validation)
    sides = {"train": sizes(train), "held_out": sizes(held_out)}
    tell(", ".join(f"{name.replace('_', ' ')}: {each['pairs']:,} pairs of {each['passages']:,} passages"
                   for name, each in sides.items()))  # fmt: skip
    teacher, batch = Teacher(start.path, settings, choose_device()), min(settings.batch, len(train.written))
    writer = Writer(teacher.model)
    texts = [*held_out.passages, *train.passages[: settings.trip.others]]
    folder, asked = out / SCRATCH / "validation", settings.trip.passages
    watch = Validation(
        folder, writer, teacher, held_out, Collection(folder / "search", texts, settings.trip.bm25),
        ends=ends_of_epochs(len(train.written), batch, settings.epochs), asked=asked, rows=settings.fit.chunk or batch,
        keep=settings.keep, tell=tell,
    )  # fmt: skip

    def batch_of(step: int) -> Batch:
        return teacher.batch(train.pairs(visited(step, batch, len(train.written), settings.seed)))

    if not watch.resumes(int(newest(out) or 0)):
        tell(f"{out.name}: the validation of an earlier epoch is damaged or incomplete; the training starts anew")
        for left in (folder, out / STATE):
            shutil.rmtree(left, ignore_errors=True)
    fit(writer, batch_of, max(watch.ends), out=out, settings=settings.fit, seed=settings.seed, probing=watch)
    sides["round_trip"] = {"asked": min(asked, len(held_out.passages)), "searched": len(texts)}
    for file in sorted(watch.chosen().iterdir()):
        with writing(out / file.name) as temporary:
            shutil.copyfile(file, temporary)
    write_atomically(out / VALIDATION_JSON, summary(watch.epochs(), settings.keep, sides))


def ends_of_epochs(pairs: int, batch: int, epochs: int) -> dict[int, int]:
    """After how many steps each epoch ends: with the step in which the last of the pairs has come so often."""
    return {math.ceil(epoch * pairs / batch): epoch for epoch in range(epochs + 1)}


def sizes(side: Side) -> dict[str, int]:
    """How much a side of the split holds."""
    return {"passages": len(side.passages), "pairs": len(side.written)}
