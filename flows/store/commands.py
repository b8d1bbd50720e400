"""The commands that look at the artifacts of a store or delete them. Their work is imported when they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.command_options import DEFAULT_STORE, AsJson, NewFolder, StoreFolder


def register(app: typer.Typer, panel: str) -> None:
    """Add the commands to the command line, in a panel of its help."""
    app.command(rich_help_panel=panel, epilog="Example: pretrieve show 4f1c2a9b")(show)
    app.command(rich_help_panel=panel, epilog="Example: pretrieve export 4f1c2a9b checkpoints/my_retriever")(export)
    app.command(rich_help_panel=panel, epilog="Example: pretrieve verify --deep --recipe quickstart --sample 3")(verify)
    app.command(rich_help_panel=panel, epilog="Example: pretrieve gc --delete --older-than 7d")(gc)
    app.command(rich_help_panel=panel, epilog="Example: pretrieve metrics --port 4202")(metrics)


def show(
    key: Annotated[str, typer.Argument(metavar="KEY", help="An artifact's key, or its beginning.")],
    store: StoreFolder = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Show an artifact's manifest and its lineage.

    The lineage goes back to the files of the data set.
    """
    from flows.store.show import show_artifact

    show_artifact(key, store, as_json)


def export(
    checkpoint: Annotated[str, typer.Argument(metavar="KEY", help="A checkpoint's key, or its beginning.")],
    folder: NewFolder,
    store: StoreFolder = DEFAULT_STORE,
) -> None:
    """Write a checkpoint as a Hugging Face model folder.

    A model card says how it was built.
    """
    from flows.export.export import export_checkpoint
    from flows.terminal import out

    out.print(export_checkpoint(checkpoint, folder, store))


def verify(
    store: StoreFolder = DEFAULT_STORE,
    aside: Annotated[bool, typer.Option("--aside", help="Move damaged artifacts aside, to be rebuilt.")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Also rebuild a sample, and compare hashes.")] = False,
    recipes: Annotated[
        list[str] | None,
        typer.Option("--recipe", metavar="NAME", help="--deep: a recipe; repeatable; else those with a report."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="--deep: override a value of the recipes; repeatable."),
    ] = None,
    sample: Annotated[int, typer.Option(min=1, help="--deep: the number of artifacts.")] = 5,
    seconds: Annotated[float, typer.Option(min=0, help="--deep: only artifacts that took at most so long.")] = 60.0,
    seed: Annotated[int, typer.Option(help="--deep: the seed of the sample.")] = 0,
) -> None:
    """Check the hashes of every artifact; name the damaged.

    With --deep, a sample of the artifacts is rebuilt in a scratch folder and compared.
    """
    from flows.store.verify import verify_store
    from storage.errors import UserError

    if (recipes or changes) and not deep:
        raise UserError("--recipe, --set: expected --deep with them")
    verify_store(store, aside)
    if deep:
        from flows.store.verify_deep import Sampling, verify_deep

        verify_deep(recipes or [], changes or [], store, Sampling(sample, seconds, seed))


def gc(
    store: StoreFolder = DEFAULT_STORE,
    delete: Annotated[bool, typer.Option("--delete", help="Delete what nothing needs.")] = False,
    older_than: Annotated[str, typer.Option(metavar="AGE", help="Keep what is younger: 30m, 12h, 7d.")] = "1d",
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Also what only unfinished runs need.")] = False,
    as_json: AsJson = False,
) -> None:
    """List artifacts that nothing needs, or delete them.

    Artifacts are needed by reports, by versions of pseudo-queries, and by runs that have begun.
    """
    from flows.store.collect_garbage import collect_garbage

    collect_garbage(store, delete=delete, older_than=older_than, unfinished=unfinished, as_json=as_json)


def metrics(
    store: StoreFolder = DEFAULT_STORE,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a file for node_exporter, named *.prom.")
    ] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Serve /metrics until Ctrl-C.")] = None,
    host: Annotated[str, typer.Option(metavar="HOST", help="--port: the address to listen on.")] = "127.0.0.1",
) -> None:
    """Print metrics of the store for Prometheus.

    With PREFECT_API_URL, or a Prefect profile, also those of the server: queue length; stages built, cached and failed.
    """
    from flows.store.metrics import show_metrics

    show_metrics(store, output, port, host)
