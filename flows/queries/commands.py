"""`pretrieve queries COMMAND`: pseudo-query corpora. What a command needs is imported when it runs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="queries", help="Pseudo-query corpora: build, bring up to date, compare, export.", no_args_is_help=True,
    add_completion=False, rich_markup_mode=None,
)  # fmt: skip

RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe's path, or the name of a shipped one.")]
VersionName = Annotated[
    str, typer.Argument(metavar="VERSION", help="RECIPE (its newest), RECIPE@NUMBER, or the beginning of a key.")
]
StoreFolder = Annotated[Path, typer.Option("--store", envvar="PRETRIEVE_STORE", help="Where artifacts are kept.")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a value of the recipe; repeatable."),
]
Called = Annotated[
    str | None, typer.Option("--as", metavar="NAME", help="What its versions are called; as the recipe, if not given.")
]
DEFAULT_STORE = Path("artifacts")


class Format(StrEnum):
    """What other tools read."""

    doct5query = "doct5query"
    anserini = "anserini"
    beir = "beir"
    datasets = "datasets"


@app.command()
def build(
    recipe: RecipeName,
    store: StoreFolder = DEFAULT_STORE,
    changes: Changes = None,
    replace: Annotated[
        str | None,
        typer.Option(metavar="WHAT", help="Write others for `all`, a `bucket:2a`, or a file of document ids."),
    ] = None,
    generator: Annotated[
        str | None, typer.Option(metavar="NAME", help="Replace only this generator's; all, if not given.")
    ] = None,
    called: Called = None,
) -> None:
    """Build a recipe's passages and queries, and stop; what was written before is kept."""
    from flows.queries.build import build as make

    make(recipe, store, changes or [], replace, generator, called)


@app.command("import")
def import_(
    recipe: RecipeName,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Queries that were written elsewhere.")],
    name: Annotated[str, typer.Option(metavar="NAME", help="What the table calls who wrote them.")] = "imported",
    store: StoreFolder = DEFAULT_STORE,
    changes: Changes = None,
    called: Called = None,
) -> None:
    """Make a version of queries that were written elsewhere, checked against the recipe's passages."""
    from flows.queries.build import import_file

    import_file(recipe, file, store, changes or [], name, called)


@app.command("list")
def list_(store: StoreFolder = DEFAULT_STORE) -> None:
    """List the versions in the store."""
    from flows.queries.list import list_versions

    list_versions(store)


@app.command()
def stats(version: VersionName, store: StoreFolder = DEFAULT_STORE) -> None:
    """Print what a version's queries are like."""
    from flows.queries.stats import show_stats

    show_stats(version, store)


@app.command()
def diff(
    before: Annotated[str, typer.Argument(metavar="A", help="A version.")],
    after: Annotated[str, typer.Argument(metavar="B", help="Another.")],
    store: StoreFolder = DEFAULT_STORE,
) -> None:
    """Print what has changed from a version to another: passages, queries, figures, examples."""
    from flows.queries.diff import show_difference

    show_difference(before, after, store)


@app.command()
def export(
    version: VersionName,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write it; must not exist, or be empty.")],
    format: Annotated[Format, typer.Option(help="What other tools read.")] = Format.datasets,  # noqa: A002
    dropped: Annotated[bool, typer.Option("--dropped", help="Those that filters have dropped, too.")] = False,
    store: StoreFolder = DEFAULT_STORE,
) -> None:
    """Write a version for other tools: docTTTTTquery, Anserini, BEIR and GPL, Hugging Face datasets."""
    from flows.queries.export import export_queries
    from flows.queries.versions import stored_version
    from flows.terminal import say
    from storage.store.store import Store

    found = stored_version(version, Store.open(store))
    counts = export_queries(found, format.value, folder, dropped)["counts"]
    say(f"{found.name}: {counts['queries']:,} queries of {counts['passages']:,} passages in {folder}")
