"""The command line: `pretrieve COMMAND`. What a command needs is imported when it runs, so that `--help` is quick.

Exit codes: 0; 1 where a run failed or `verify` found damage; 2 where the user can mend it; 130 when interrupted.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from flows.queries.commands import app as queries
from flows.study.commands import app as study
from flows.verify_command import verify

app = typer.Typer(
    name="pretrieve", help="Pre-training for passage retrieval, from corpus to report.", no_args_is_help=True,
    add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
)  # fmt: skip

app.add_typer(queries)
app.add_typer(study)

RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe's path, or the name of a shipped one.")]
StoreFolder = Annotated[Path, typer.Option("--store", envvar="PRETRIEVE_STORE", help="Where artifacts are kept.")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a value of the recipe; repeatable."),
]
DEFAULT_STORE = Path("artifacts")


@app.command()
def reproduce(
    recipe: RecipeName,
    store: StoreFolder = DEFAULT_STORE,
    changes: Changes = None,
    until: Annotated[str | None, typer.Option(metavar="STAGE", help="Stop after the last stage of this name.")] = None,
) -> None:
    """Run a recipe from corpus to report; what the store has is reused, what was cut off goes on."""
    from flows.reproduce import run

    run(recipe, store, changes or [], until)


@app.command()
def plan(recipe: RecipeName, store: StoreFolder = DEFAULT_STORE, changes: Changes = None) -> None:
    """List the stages of a recipe: key, state, tokens, FLOPs, disk, hours. Needs neither data nor weights."""
    from flows.plan import show_plan

    show_plan(recipe, store, changes or [])


@app.command()
def show(
    key: Annotated[str, typer.Argument(metavar="KEY", help="An artifact's key, or the beginning of it.")],
    store: StoreFolder = DEFAULT_STORE,
) -> None:
    """Show an artifact's manifest and its lineage back to the data set."""
    from flows.store_commands import show_artifact

    show_artifact(key, store)


app.command()(verify)


@app.command()
def gc(
    store: StoreFolder = DEFAULT_STORE,
    delete: Annotated[bool, typer.Option("--delete", help="Delete what nothing needs.")] = False,
    older_than: Annotated[str, typer.Option(metavar="AGE", help="Keep what is younger: 30m, 12h, 7d.")] = "1d",
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Also what only unfinished runs need.")] = False,
) -> None:
    """List sizes and what no report, version or run needs; delete it only with --delete."""
    from flows.collect_garbage import collect_garbage

    collect_garbage(store, delete=delete, older_than=older_than, unfinished=unfinished)


@app.command()
def export(
    checkpoint: Annotated[str, typer.Argument(help="A checkpoint's key, or the beginning of it.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write it; must not exist, or be empty.")],
    store: StoreFolder = DEFAULT_STORE,
) -> None:
    """Write a checkpoint as a Hugging Face folder with a model card."""
    from flows.export import export_checkpoint

    export_checkpoint(checkpoint, folder, store)


@app.command()
def compare(
    first: Annotated[str, typer.Argument(metavar="RUN", help="A recipe's name, a report's key, or a folder with it.")],
    second: Annotated[str, typer.Argument(metavar="RUN", help="Another; A,B,C are seeds of one, taken together.")],
    store: StoreFolder = DEFAULT_STORE,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the same as a page.")] = None,
) -> None:
    """Show two finished runs side by side: settings that differ, artifacts shared, metrics with tests."""
    from flows.compare import show_comparison

    show_comparison(first, second, store, html)


@app.command("export-run")
def export_run(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A recipe's name, a report's key, or a folder with it.")],
    to: Annotated[Path, typer.Option(metavar="DIR", help="Where to write it; must not exist, or be empty.")],
    rows: Annotated[list[str] | None, typer.Argument(metavar="ROW", help="Its rows; all, if none is named.")] = None,
    store: StoreFolder = DEFAULT_STORE,
    split: Annotated[str | None, typer.Option(help="Another split than the headline's.")] = None,
    packed: Annotated[bool, typer.Option("--gzip", help="Write ROW.trec.gz.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Put the header into ROW.yaml, as trec_eval needs.")] = False,
    actor: Annotated[str | None, typer.Option(metavar="NAME", help="Who ran it, for the header.")] = None,
) -> None:
    """Write a finished run's rankings as TREC run files with ir_metadata's header."""
    from flows.export_run import export_runs

    export_runs(run, rows or [], to, store, split=split, packed=packed, plain=plain, actor=actor)


@app.command()
def evaluate(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="bm25, a checkpoint's key, a folder, package:NAME/FOLDER or a hub name; NAME=MODEL names its row.",
        ),
    ],
    suite: Annotated[str, typer.Option(metavar="NAME", help="A suite's path, or the name of a shipped one.")],
    only: Annotated[list[str] | None, typer.Option(metavar="COLLECTION", help="Only this one or group.")] = None,
    skip_missing: Annotated[bool, typer.Option("--skip-missing", help="Leave out absent collections.")] = False,
    store: StoreFolder = DEFAULT_STORE,
    changes: Changes = None,
) -> None:
    """Measure retrievers, ours or others', on a suite of collections, and print BEIR's table of them."""
    from flows.evaluate import run

    run(models, suite, store, only=only or [], skip_missing=skip_missing, changes=changes or [])


@app.command()
def search(
    key: Annotated[str, typer.Argument(help="Key of a retriever, of vectors or of an index, or the beginning of it.")],
    question: Annotated[str, typer.Argument(help="What to look for, in quotes.")],
    store: StoreFolder = DEFAULT_STORE,
    top: Annotated[int, typer.Option(min=1, help="How many passages.")] = 10,
    view: Annotated[str | None, typer.Option(help="Rank by dense, late, lexical or sum; all, if not given.")] = None,
) -> None:
    """Print the top passages for a question, with their scores by view."""
    from flows.search import show_answer

    show_answer(key, question, store, top, view)


@app.command()
def fetch(
    dataset: Annotated[str, typer.Argument(help="msmarco, natural_questions, beir/NAME, and others.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to lay it: a recipe's dataset.path.")],
) -> None:
    """Fetch the official files of a collection, checked, as its reader wants them."""
    from flows.fetch import fetch as get

    get(dataset, folder)


@app.command()
def up(
    store: StoreFolder = DEFAULT_STORE,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="The server's port; 4200, if not given.")] = None,
    reports_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The reports' port; the server's and one, if not given.")
    ] = None,
) -> None:
    """Start a Prefect server and workers on this machine, in the background, with everything registered."""
    from flows.prefect_server.up import up as start

    start(store, port, reports_port)


@app.command()
def down(
    store: StoreFolder = DEFAULT_STORE,
    drain: Annotated[bool, typer.Option("--drain", help="Begin nothing new, and wait for what runs.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel what runs; Retry goes on with it later.")] = False,
    force: Annotated[bool, typer.Option("--force", help="End all at once, without asking the server.")] = False,
) -> None:
    """End what `pretrieve up` has started."""
    from flows.prefect_server.down import down as stop

    stop(store, drain=drain, cancel=cancel, force=force)


@app.command()
def register() -> None:
    """Tell the Prefect server at PREFECT_API_URL of the work pools, deployments and automations."""
    from flows.prefect_server.register import register_all

    register_all()


@app.command()
def join(store: StoreFolder = DEFAULT_STORE) -> None:
    """Take part in trainings of several hosts, as they come in a store that the hosts share."""
    from flows.prefect_server.join_training import join as take_part

    take_part(store)


@app.command()
def doctor(store: StoreFolder = DEFAULT_STORE) -> None:
    """Check Python, packages, Java, GPU, disk and Prefect: what works and what to do."""
    from flows.doctor import examine

    examine(store)


@app.command("train-generator")
def train_generator(
    model: Annotated[str, typer.Argument(help="A seq2seq model: folder, package:NAME/FOLDER or hub name.")],
    pairs: Annotated[Path, typer.Argument(help="TSV passage<TAB>query, or JSON lines with both; plain or gzipped.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to write it; must not exist, or be empty.")],
    epochs: Annotated[int, typer.Option(min=1)] = 3,
    batch: Annotated[int, typer.Option(min=1, help="Pairs a step.")] = 32,
    chunk: Annotated[int | None, typer.Option(min=1, help="Pairs in memory at a time; all, if not given.")] = None,
    learning_rate: float = 3e-4,
    validation: Annotated[float, typer.Option(help="Share of the passages that are held out.")] = 0.05,
    round_trips: Annotated[int, typer.Option(min=1, help="Held-out passages to write a query for.")] = 500,
    others: Annotated[int, typer.Option(min=0, help="Other passages to look for the query in.")] = 10_000,
    prefix: Annotated[str, typer.Option(help="Put before each passage.")] = "text2query: ",
    input_max_tokens: Annotated[int, typer.Option(min=2)] = 256,
    query_max_tokens: Annotated[int, typer.Option(min=2)] = 48,
    keep: Annotated[
        Literal["last", "best"], typer.Option(help="The last epoch, or that of the best round trip, be it the start.")
    ] = "last",
    seed: int = 1,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    threads: Annotated[int, typer.Option(min=1)] = 2,
    store: StoreFolder = DEFAULT_STORE,
) -> None:
    """Go on training a query generator on own pairs, with its validation loss and round trip by epoch."""
    from flows.train_generator import settings_of, train
    from tasks.session import Execution

    settings = settings_of(
        epochs=epochs, batch=batch, chunk=chunk, learning_rate=learning_rate, validation=validation,
        round_trips=round_trips, others=others, prefix=prefix, input_max_tokens=input_max_tokens,
        query_max_tokens=query_max_tokens, keep=keep, seed=seed,
    )  # fmt: skip
    train(model, pairs, out, store, settings, Execution(device=device, threads=threads))


def main() -> None:
    """Run the command line; failures become one line on standard error and an exit code."""
    import signal

    from flows.interrupt import INTERRUPTED, ending_promptly, finish, leave, reason
    from storage.store.locks import LeaseLost

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that knows ASCII only shows ? for other letters
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read when the model hub's library is imported
    line, code = "", 0
    with ending_promptly():
        try:
            code = app(standalone_mode=False) or 0
            if code == INTERRUPTED:  # what Typer makes of Ctrl-C
                leave(signal.SIGINT)
        except (Exception, LeaseLost) as error:  # LeaseLost is no Exception, so that nothing on its way handles it
            line, code = reason(error)
            if code == 1 and os.environ.get("PRETRIEVE_TRACEBACK"):
                raise
    finish(line, code)


if __name__ == "__main__":
    main()
