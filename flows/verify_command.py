"""`pretrieve verify` and its options. What the command needs is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def verify(
    store: Annotated[Path, typer.Option("--store", envvar="PRETRIEVE_STORE", help="Where artifacts are kept.")] = Path(
        "artifacts"
    ),
    aside: Annotated[bool, typer.Option("--aside", help="Move what is damaged aside, to be rebuilt.")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Also build a sample again, and compare.")] = False,
    recipes: Annotated[
        list[str] | None,
        typer.Option(
            "--recipe", metavar="NAME", help="--deep: a recipe; repeatable; those of the store's reports, if not given."
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="--deep: a value of the recipes; repeatable."),
    ] = None,
    sample: Annotated[int, typer.Option(min=1, help="--deep: how many artifacts.")] = 5,
    seconds: Annotated[float, typer.Option(min=0, help="--deep: none that took longer.")] = 60.0,
    seed: Annotated[int, typer.Option(help="--deep: draws the sample.")] = 0,
) -> None:
    """Hash every artifact again and name what is damaged; --deep also builds a sample again."""
    from flows.store_commands import verify_store
    from storage.errors import UserError

    if (recipes or changes) and not deep:
        raise UserError("--recipe, --set: expected --deep with them")
    verify_store(store, aside)
    if deep:
        from flows.verify_deep import Sampling, verify_deep

        verify_deep(recipes or [], changes or [], store, Sampling(sample, seconds, seed))
