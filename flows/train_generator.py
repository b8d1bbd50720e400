"""`pretrieve train-generator`: fine-tune a query generator on query-passage pairs, and write it as a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.table import Table

from flows.chain.given_models import check_models
from flows.chain.model_weights import model_weights
from flows.export.export import export_checkpoint, must_be_free
from flows.terminal import Terminal, out, unwrapped
from storage.errors import UserError
from storage.store.run_notes import noted
from storage.store.store import Store
from tasks.pseudo_queries.finetune_generator import VALIDATION_JSON, GeneratorFinetuning, finetune_generator
from tasks.pseudo_queries.generators.pair_files import pairs_source, split
from tasks.session import Execution, Session, session


def train(
    model: str, pairs: Path, folder: Path, store: Path, settings: GeneratorFinetuning, execution: Execution
) -> None:
    """Train the generator, or take it from the store; write it to `folder` and print loss and round trip by epoch."""
    must_be_free(folder)
    source = pairs_source(pairs)
    console = unwrapped(stderr=True)
    opened = Store.open_or_new(store)
    with session(Session(opened, execution, planning=True)) as plan:
        planned = finetune_generator(start=model_weights(model), pairs=source, settings=settings)
    if not plan.done[planned.reference].cached:
        split(pairs, settings.validation)  # raises UserError for a broken line, before the store is written to
    check_models(plan.jobs, plan)
    with noted(opened, "train-generator", model) as note:
        with session(Session(opened, execution, print_line=console.print, note=note)):
            generator = finetune_generator(start=model_weights(model), pairs=source, settings=settings)
        Terminal().print(curve(json.loads((generator.path / VALIDATION_JSON).read_text(encoding="utf-8"))))
        out.print(export_checkpoint(generator.key, folder, store))
        note.finish()


def settings_of(
    *, round_trips: int, others: int, learning_rate: float, chunk: int | None, **values: Any
) -> GeneratorFinetuning:
    """Return the settings for the command line's values; `values` are those with the same names."""
    optimisation = {
        "learning_rate": learning_rate, "warmup_ratio": 0.1, "weight_decay": 0.0, "max_gradient_norm": 1.0,
        "chunk": chunk,
    }  # fmt: skip
    trip = {"passages": round_trips, "others": others, "bm25": {"engine": "bm25", "k1": 0.9, "b": 0.4}}
    try:
        return GeneratorFinetuning.model_validate({**values, "trip": trip, "fit": optimisation})
    except ValidationError as error:
        first = error.errors()[0]
        option = str(first["loc"][-1]).replace("_", "-")
        raise UserError(f"--{option} {first['input']}: {first['msg']}") from None


def curve(validation: dict[str, Any]) -> Table:
    """Return a table of loss and round trip by epoch."""
    trip, cutoff = validation["round_trip"], validation["cutoff"]
    table = Table(
        title=f"{validation['held_out']['pairs']:,} held-out pairs; {trip['asked']:,} queries searched among "
        f"{trip['searched']:,} passages", title_justify="left",
    )  # fmt: skip
    for name in ("epoch", "validation loss", f"round trip @{cutoff}", f"MRR@{cutoff}"):
        table.add_column(name, justify="right")
    table.add_column("")
    for epoch in validation["epochs"]:
        marks = [name for name in ("best", "published") if validation[name] == epoch["epoch"]]
        values = [f"{epoch[name]:.4f}" for name in ("validation_loss", "round_trip", "mrr")]
        table.add_row(str(epoch["epoch"]), *values, ", ".join(marks))
    return table
