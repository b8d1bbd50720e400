"""`pretrieve queries COMMAND`: pseudo-query corpora. What a command needs is imported when it runs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from flows.command_options import DEFAULT_STORE, AsJson, Changes, RecipeName, StoreFolder

app = typer.Typer(
    name="queries", help="Generate, compare and export versions of pseudo-queries.", no_args_is_help=True,
    epilog="Example: pretrieve queries build quickstart", add_completion=False, rich_markup_mode="rich",
)  # fmt: skip

VersionName = Annotated[
    str, typer.Argument(metavar="VERSION", help="RECIPE (its newest), RECIPE@NUMBER, or the beginning of a key.")
]
ExportFolder = Annotated[
    str, typer.Argument(metavar="DIR", help="New or empty folder, or URL (s3://BUCKET/DIR); `partitioned` adds to one.")
]
VersionTitle = Annotated[
    str | None, typer.Option("--as", metavar="NAME", help="The name of the versions; the recipe's, if not given.")
]


def register(app: typer.Typer, panel: str) -> None:
    """Add `train-generator` to the command line, in a panel of its help."""
    example = "Example: pretrieve train-generator doc2query/msmarco-t5-small-v1 pairs.tsv --out generator"
    app.command("train-generator", rich_help_panel=panel, epilog=example)(train_generator)


class Format(StrEnum):
    """Formats of other tools."""

    doct5query = "doct5query"
    anserini = "anserini"
    beir = "beir"
    datasets = "datasets"
    partitioned = "partitioned"


@app.command(epilog="Example: pretrieve queries build small/beir --set dataset.path=my-collection --dry-run")
def build(
    recipe: RecipeName,
    store: StoreFolder = DEFAULT_STORE,
    changes: Changes = None,
    replace: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT", help="Resample the queries of `all`, of `bucket:2a`, or of a file of document ids."
        ),
    ] = None,
    generator: Annotated[
        str | None, typer.Option(metavar="NAME", help="Replace only this generator's queries; else all.")
    ] = None,
    called: VersionTitle = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count what is new and estimate the time; keeps passages, but no queries.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: print JSON, for programs.")] = False,
) -> None:
    """Build a recipe's passages and pseudo-queries, and stop.

    Queries that were generated before are kept.
    """
    from flows.queries.build import build as build_queries
    from flows.queries.dry_run import show_dry_run
    from storage.errors import UserError

    if as_json and not dry_run:
        raise UserError("--json: expected together with --dry-run")
    if not dry_run:
        build_queries(recipe, store, changes or [], replace, generator, called)
    elif replace is not None or generator is not None:
        raise UserError("--dry-run: expected without --replace, which invalidates queries; build without --dry-run")
    else:
        show_dry_run(recipe, store, changes or [], called, as_json)


@app.command("import", epilog="Example: pretrieve queries import quickstart queries.jsonl --name gpt")
def import_(
    recipe: RecipeName,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Queries that were generated elsewhere.")],
    name: Annotated[str, typer.Option(metavar="NAME", help="The generator's name in the table.")] = "imported",
    store: StoreFolder = DEFAULT_STORE,
    changes: Changes = None,
    called: VersionTitle = None,
) -> None:
    """Import queries that were generated elsewhere, as a version.

    They are checked against the recipe's passages.
    """
    from flows.queries.build import import_file

    import_file(recipe, file, store, changes or [], name, called)


@app.command("list", epilog="Example: pretrieve queries list")
def list_(store: StoreFolder = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """List the versions in the store.

    Shows their state, size, generators, filter and collection.
    """
    from flows.queries.list import list_versions

    list_versions(store, as_json)


@app.command(epilog="Example: pretrieve queries stats quickstart@1")
def stats(version: VersionName, store: StoreFolder = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """Print statistics of a version's queries."""
    from flows.queries.stats import show_stats

    show_stats(version, store, as_json)


@app.command(epilog="Example: pretrieve queries diff quickstart@1 quickstart@2")
def diff(
    before: Annotated[str, typer.Argument(metavar="A", help="The earlier version.")],
    after: Annotated[str, typer.Argument(metavar="B", help="The later version.")],
    store: StoreFolder = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Print what has changed between two versions.

    Compares passages, queries and statistics, and shows examples.
    """
    from flows.queries.diff import show_difference

    show_difference(before, after, store, as_json)


@app.command(epilog="Example: pretrieve queries export quickstart queries --format beir")
def export(
    version: VersionName,
    folder: ExportFolder,
    format: Annotated[Format, typer.Option(help="The format to write.")] = Format.datasets,  # noqa: A002
    dropped: Annotated[bool, typer.Option("--dropped", help="Also write queries that filters have dropped.")] = False,
    store: StoreFolder = DEFAULT_STORE,
) -> None:
    """Write a version's queries for other tools.

    Formats: docTTTTTquery, Anserini, BEIR and GPL, Hugging Face datasets, and partitioned tables.
    """
    from flows.queries.export_command import export_version
    from flows.terminal import say

    say(export_version(version, folder, format.value, dropped, store))


def train_generator(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A seq2seq model: folder, package:… or hub name.")],
    pairs: Annotated[
        Path, typer.Argument(metavar="PAIRS", help="TSV passage<TAB>query, or JSON lines with both; plain or gzipped.")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write; must not exist, or be empty.")],
    epochs: Annotated[int, typer.Option(min=1)] = 3,
    batch: Annotated[int, typer.Option(min=1, help="Pairs per step.")] = 32,
    chunk: Annotated[int | None, typer.Option(min=1, help="Pairs in memory at a time; else the whole batch.")] = None,
    learning_rate: float = 3e-4,
    validation: Annotated[float, typer.Option(help="Share of the passages that are held out.")] = 0.05,
    round_trips: Annotated[int, typer.Option(min=1, help="Held-out passages to generate a query for.")] = 500,
    others: Annotated[int, typer.Option(min=0, help="Other passages that the query is searched among.")] = 10_000,
    prefix: Annotated[str, typer.Option(help="Put before each passage.")] = "text2query: ",
    input_max_tokens: Annotated[int, typer.Option(min=2)] = 256,
    query_max_tokens: Annotated[int, typer.Option(min=2)] = 48,
    keep: Annotated[
        Literal["last", "best"],
        typer.Option(help="The last epoch, or the one with the best round trip."),
    ] = "last",
    seed: int = 1,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    threads: Annotated[int, typer.Option(min=1)] = 2,
    store: StoreFolder = DEFAULT_STORE,
) -> None:
    """Fine-tune a query generator on your own pairs.

    Reads query-passage pairs. Prints the validation loss and the round-trip success of each epoch.
    """
    from flows.train_generator import settings_of, train
    from tasks.session import Execution

    settings = settings_of(
        epochs=epochs, batch=batch, chunk=chunk, learning_rate=learning_rate, validation=validation,
        round_trips=round_trips, others=others, prefix=prefix, input_max_tokens=input_max_tokens,
        query_max_tokens=query_max_tokens, keep=keep, seed=seed,
    )  # fmt: skip
    train(model, pairs, out, store, settings, Execution(device=device, threads=threads))
