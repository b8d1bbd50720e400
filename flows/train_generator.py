"""`pretrieve train-generator`: go on training a query generator on own pairs, and write it as a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.table import Table

from flows.export import export_checkpoint, must_be_free
from flows.terminal import Terminal, unwrapped
from storage.errors import UserError
from storage.store.run_notes import noted
from storage.store.sources import weights
from storage.store.store import Store
from tasks.pseudo_queries.finetune_generator import VALIDATION_JSON, GeneratorFinetuning, finetune_generator
from tasks.pseudo_queries.generators.pair_files import pairs_source
from tasks.session import Execution, Session, session


def train(
    model: str, pairs: Path, folder: Path, store: Path, settings: GeneratorFinetuning, execution: Execution
) -> None:
    """Train, or take from the store what an equal run has trained; write it to `folder` and print its curve."""
    must_be_free(folder)
    given = pairs_source(pairs)
    console = unwrapped(stderr=True)
    opened = Store.open_or_new(store)
    with noted(opened, "train-generator", model) as note:
        with session(Session(opened, execution, print_line=console.print, note=note)):
            made = finetune_generator(start=weights(model), pairs=given, settings=settings)
        Terminal().print(curve(json.loads((made.path / VALIDATION_JSON).read_text())))
        export_checkpoint(made.key, folder, store)
        note.finish()


def settings_of(
    *, round_trips: int, others: int, learning_rate: float, chunk: int | None, **values: Any
) -> GeneratorFinetuning:
    """The settings that the command line's values stand for; `values` are those that have the same names."""
    fitting = {
        "learning_rate": learning_rate, "warmup_ratio": 0.1, "weight_decay": 0.0, "max_gradient_norm": 1.0,
        "chunk": chunk,
    }  # fmt: skip
    trip = {"passages": round_trips, "others": others, "bm25": {"engine": "bm25", "k1": 0.9, "b": 0.4}}
    try:
        return GeneratorFinetuning.model_validate({**values, "trip": trip, "fit": fitting})
    except ValidationError as error:
        first = error.errors()[0]
        option = str(first["loc"][-1]).replace("_", "-")
        raise UserError(f"--{option} {first['input']}: {first['msg']}") from None


def curve(validation: dict[str, Any]) -> Table:
    """Loss and round trip by epoch."""
    asked, cutoff = validation["round_trip"], validation["cutoff"]
    made = Table(
        title=f"{validation['held_out']['pairs']:,} held-out pairs; {asked['asked']:,} queries looked for among "
        f"{asked['searched']:,} passages", title_justify="left",
    )  # fmt: skip
    for name in ("epoch", "validation loss", f"round trip @{cutoff}", f"MRR@{cutoff}"):
        made.add_column(name, justify="right")
    made.add_column("")
    for each in validation["epochs"]:
        marks = [name for name in ("best", "published") if validation[name] == each["epoch"]]
        values = [f"{each[name]:.4f}" for name in ("validation_loss", "round_trip", "mrr")]
        made.add_row(str(each["epoch"]), *values, ", ".join(marks))
    return made
