"""`pretrieve evaluate MODEL...`: its arguments. What the command needs is imported when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.command_options import DEFAULT_STORE, StoreFolder, complete_suite


def register(app: typer.Typer, panel: str) -> None:
    """Add `evaluate` to the command line, in a panel of its help."""
    example = "Example: pretrieve evaluate bm25 minilm=checkpoints/minilm --suite small"
    app.command(rich_help_panel=panel, epilog=example)(evaluate)


def evaluate(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="bm25, a checkpoint's key, a folder, package:NAME/FOLDER or a hub name; NAME=MODEL names its row.",
        ),
    ],
    suite: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The name of a shipped suite, or a suite file.", autocompletion=complete_suite
        ),
    ] = None,
    collection: Annotated[
        str | None, typer.Option(metavar="DIR", help="A collection in place of a suite, in BEIR's layout.")
    ] = None,
    split: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="With --collection: a split, such as test; repeatable.")
    ] = None,
    reader: Annotated[str, typer.Option(metavar="NAME", help="With --collection: its dataset loader.")] = "beir",
    only: Annotated[
        list[str] | None, typer.Option(metavar="COLLECTION", help="Only this collection or group; repeatable.")
    ] = None,
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="Leave out absent collections or splits.")
    ] = False,
    store: StoreFolder = DEFAULT_STORE,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a value of the suite; repeatable."),
    ] = None,
) -> None:
    """Measure retrievers on a suite, or on one collection."""
    from flows.evaluate.evaluate import run, run_on_folder
    from storage.errors import UserError

    if (suite is None) == (collection is None) or bool(split) != bool(collection):
        raise UserError("evaluate: expected --suite NAME, or --collection DIR with --split NAME")
    if only and collection is not None:
        raise UserError("--only: it chooses collections of a suite; --collection has splits")
    if suite is not None:
        run(models, suite, store, only=only or [], skip_missing=skip_missing, changes=changes or [])
    elif collection is not None and split:
        run_on_folder(models, collection, split, reader, store, skip_missing=skip_missing, changes=changes or [])
