"""The command `pretrieve browse`."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.command_options import DEFAULT_STORE, StoreFolder


def register(app: typer.Typer, panel: str) -> None:
    """Add the command to the command line, in a panel of its help."""
    app.command(rich_help_panel=panel, epilog="Example: pretrieve browse quickstart")(browse)


def browse(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN", help="Recipe, report's key, folder of a report or of `adapt`; by default the newest run."
        ),
    ] = None,
    store: StoreFolder = DEFAULT_STORE,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port on 127.0.0.1; 0 takes a free one.")] = 0,
) -> None:
    """Search a finished run in the browser.

    Shows two systems side by side, wins and losses, the negatives of training queries, and a passage's pseudo-queries.
    The address has a secret token; Ctrl-C ends it.
    """
    from flows.browse.serve import serve

    serve(run, store, port)
