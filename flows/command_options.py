"""Arguments and options that several commands share. Only the command line's own modules import this."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_STORE = Path("artifacts")


def given_path(text: str) -> Path:
    """Return a path. An empty text, as of a shell variable that is not set, would be the working folder."""
    if not text:
        raise typer.BadParameter("expected a path, found ''")
    return Path(text)


def complete_recipe(incomplete: str) -> list[str]:
    """Return the shipped recipes whose names begin with what the user has typed, for the shell's completion."""
    from flows.recipe.shipped import shipped_recipes

    return [name for name in shipped_recipes() if name.startswith(incomplete)]


def complete_suite(incomplete: str) -> list[str]:
    """Return the shipped suites whose names begin with what the user has typed, for the shell's completion."""
    from flows.recipe.shipped import SUITES

    return sorted(file.stem for file in SUITES.glob(f"{incomplete}*.yaml"))


RecipeName = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE", help="The name of a shipped recipe, or a recipe file.", autocompletion=complete_recipe
    ),
]
StoreFolder = Annotated[
    Path, typer.Option("--store", metavar="DIR", envvar="PRETRIEVE_STORE", help="The folder of the artifacts.")
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a value of the recipe; repeatable."),
]
Fast = Annotated[
    bool, typer.Option("--fast", help="A smoke test: few steps, a slice of the collection; --set wins over it.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
NewFolder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write; must not exist, or be empty.")]
RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="A recipe's name, a report's key, or a folder with report.json.")
]
