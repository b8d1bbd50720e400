"""The command `pretrieve adapt`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.command_options import DEFAULT_STORE, StoreFolder, given_path


def register(app: typer.Typer, panel: str) -> None:
    """Add the command to the command line, in a panel of its help."""
    app.command(rich_help_panel=panel, epilog="Example: pretrieve adapt my-texts/ --hours 1 --out adapted")(adapt)


def adapt(
    collection: Annotated[
        Path,
        typer.Argument(
            metavar="COLLECTION",
            help="BEIR folder; JSON-lines, CSV, TSV or Parquet file; folder of texts.",
            parser=given_path,
        ),
    ],
    start: Annotated[
        str | None, typer.Option(metavar="MODEL", help="The model to adapt; by default an installed MiniLM.")
    ] = None,
    generator: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Query generator; without one, salient sentences.")
    ] = None,
    teacher: Annotated[
        str | None, typer.Option(metavar="MODEL", help="A trained cross-encoder; one candidate learns its scores.")
    ] = None,
    hours: Annotated[
        float, typer.Option(help="The largest plan whose estimate fits is run; also limits the pseudo-queries.")
    ] = 1.0,
    judgements: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Real queries with relevant documents, which also decide.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder of the model, index and report.")] = Path(
        "adapted"
    ),
    store: StoreFolder = DEFAULT_STORE,
) -> None:
    """Adapt a retriever to a collection without queries.

    Returns the start unchanged unless a candidate is significantly better. The same command resumes.
    """
    from flows.adapt.request import DEFAULT_START, Request, check_paths
    from flows.terminal import say, unwrapped

    request = Request(collection, out, start or DEFAULT_START, generator, teacher, hours, judgements)
    check_paths(request)  # before PyTorch is imported, which takes seconds
    from flows.adapt.run import adapt as adapt_to

    done = adapt_to(request, store, unwrapped(stderr=True).print)
    say(done.decision.verdict)
    say(done.decision.means)
    if done.decision.advice:
        say(done.decision.advice)
    say(f"model: {done.out / 'model'}")
    say(f'search: pretrieve search {done.out} "QUESTION"')
    say(f"report: {done.page}")
