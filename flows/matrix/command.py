"""The command `pretrieve matrix`."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.command_options import DEFAULT_STORE, AsJson, Changes, StoreFolder, complete_recipe


def register(app: typer.Typer, panel: str) -> None:
    """Add the command to the command line, in a panel of its help."""
    app.command(
        rich_help_panel=panel,
        epilog="Example: pretrieve matrix quickstart small/retro_mae --seeds 1,2,3 --vary pretrain.steps=20,40",
    )(matrix)


def matrix(
    recipes: Annotated[
        list[str],
        typer.Argument(metavar="RECIPE...", help="Shipped recipes, or recipe files.", autocompletion=complete_recipe),
    ],
    seeds: Annotated[str, typer.Option(metavar="N,N,...", help="The seeds, each a run of every recipe.")],
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="SECTION.KEY=A,B", help="Run with each of these values; repeatable: all combinations."),
    ] = None,
    changes: Changes = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The matrix's name; else made from the recipes.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Only show the grid and its results; run nothing.")] = False,
    store: StoreFolder = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Run recipes with several seeds and settings.

    Shows which runs are complete, running, failed or missing, runs what is missing, and writes a page with means,
    intervals and tests over the seeds. Runs share artifacts, and an interrupted matrix resumes.
    """
    from flows.matrix.run import run
    from flows.recipe.grid import grid_of, seeds_of

    grid = grid_of(recipes, seeds_of(seeds), changes or [], vary or [], name)
    run(grid, store, show=show, as_json=as_json)
