"""The command `pretrieve rehearse`."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.command_options import AsJson, Changes, RecipeName
from flows.rehearsal.sizes import FEWEST, SHARE


def register(app: typer.Typer, panel: str) -> None:
    """Add the command to the command line, in a panel of its help."""
    app.command(rich_help_panel=panel, epilog="Example: pretrieve rehearse came --passages 100000")(rehearse)


def rehearse(
    recipe: RecipeName,
    passages: Annotated[
        int, typer.Option(metavar="N", help="The number of synthetic passages.", min=FEWEST * SHARE)
    ] = 10_000,
    queries: Annotated[
        int | None, typer.Option(metavar="N", help="At most N queries of a split; else one for 16 passages.", min=1)
    ] = None,
    limit: Annotated[float, typer.Option(metavar="SECONDS", help="The most time of each stage.")] = 1_800,
    changes: Changes = None,
    as_json: AsJson = False,
) -> None:
    """Run a recipe's stages on synthetic data.

    Extrapolates the time, memory and disk of each stage to the real collection, and names what would break. Needs
    neither data nor weights; models are tiny, and trainings have two steps.
    """
    from flows.rehearsal.rehearse import rehearse as rehearse_recipe

    rehearse_recipe(recipe, passages, queries, limit, changes or [], as_json)
