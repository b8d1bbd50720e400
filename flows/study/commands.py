"""`pretrieve study COMMAND`: the papers' claims, small. What a command needs is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="study", help="The papers' claims, small: run what they need, in slices.", no_args_is_help=True,
    add_completion=False, rich_markup_mode=None,
)  # fmt: skip

StoreFolder = Annotated[Path, typer.Option("--store", envvar="PRETRIEVE_STORE", help="Where artifacts are kept.")]
Results = Annotated[
    Path | None, typer.Option("--results", metavar="DIR", help="Where results are kept; results/study, if not given.")
]
Claims = Annotated[
    Path | None,
    typer.Option("--claims", metavar="FILE", help="What is claimed; configs/study/claims.yaml, if not given."),
]
DEFAULT_STORE = Path("artifacts")


@app.command()
def run(
    hours: Annotated[float, typer.Option(min=0, help="Begin nothing that does not fit into so many hours.")],
    only: Annotated[list[str] | None, typer.Option(metavar="CLAIM", help="Only this claim; repeatable.")] = None,
    results: Results = None,
    claims: Claims = None,
    store: StoreFolder = DEFAULT_STORE,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="execution.KEY=VALUE", help="Change how it runs, such as threads; repeatable."),
    ] = None,
) -> None:
    """Do the runs that the claims still need, in their order; what was cut off goes on."""
    from flows.recipe.shipped import CLAIMS
    from flows.study.run import RESULTS
    from flows.study.run import run as start

    start(hours, store, results or RESULTS, only=only or [], changes=changes or [], claims=claims or CLAIMS)


@app.command()
def status(results: Results = None, claims: Claims = None, store: StoreFolder = DEFAULT_STORE) -> None:
    """List which runs each claim still needs, and which were made by other code or data."""
    from flows.recipe.shipped import CLAIMS
    from flows.study.run import RESULTS, show_status

    show_status(store, results or RESULTS, claims or CLAIMS)
