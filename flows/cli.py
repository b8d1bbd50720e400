"""The command line: `pretrieve COMMAND`. What a command needs is imported when it runs, so that `--help` is quick.

Exit codes: 0; 1 where a run failed, `verify` found damage or `status` a service that does not run; 2 where the user can
fix it; 130 when interrupted.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from flows.adapt.command import register as add_adaptation
from flows.browse.command import register as add_browse
from flows.command_options import DEFAULT_STORE, AsJson, Changes, Fast, RecipeName, RunName, StoreFolder
from flows.evaluate.command import register as add_evaluate
from flows.matrix.command import register as add_matrix
from flows.prefect_server.commands import register as add_server_commands
from flows.queries.commands import app as queries
from flows.queries.commands import register as add_query_commands
from flows.rehearsal.command import register as add_rehearsal
from flows.store.commands import register as add_store_commands
from flows.study.commands import app as study

RUN, RESULTS, STORE, QUERIES, STUDY, SERVER = (
    "Run", "Results", "Store", "Pseudo-queries", "Study", "Prefect server and workers",
)  # fmt: skip

app = typer.Typer(
    name="pretrieve", help="Pre-training for dense retrieval: from a corpus to a report, one recipe per system.",
    epilog="Start with: pretrieve doctor; pretrieve reproduce quickstart", no_args_is_help=True,
    pretty_exceptions_enable=False, rich_markup_mode="rich",
)  # fmt: skip


def show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"pretrieve {version('pretrieve')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Pre-training for dense retrieval: from a corpus to a report, one recipe per system."""


@app.command(rich_help_panel=RUN, epilog="Example: pretrieve recipes")
def recipes() -> None:
    """List the shipped recipes, and the data that each one lacks."""
    from flows.recipe_list import show_recipes

    show_recipes()


@app.command(rich_help_panel=RUN, epilog="Example: pretrieve fetch msmarco data/msmarco")
def fetch(
    dataset: Annotated[
        str, typer.Argument(metavar="COLLECTION", help="msmarco, squad, medquad, beir/NAME, and others.")
    ],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write: a recipe's dataset.path.")],
    without: Annotated[
        list[str] | None, typer.Option(metavar="PART", help="Leave out a part, such as documents; repeatable.")
    ] = None,
) -> None:
    """Download and check the official files of a collection.

    Prints the sizes of its parts first. Files that are in the folder are not fetched again, and a broken download
    resumes.
    """
    from flows.fetch.fetch import fetch as fetch_collection

    fetch_collection(dataset, folder, without or [])


@app.command(rich_help_panel=RUN, epilog="Example: pretrieve plan cot_mae_query_as_context --set seed=7")
def plan(
    recipe: RecipeName,
    store: StoreFolder = DEFAULT_STORE,
    changes: Changes = None,
    as_json: AsJson = False,
    fast: Fast = False,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="Also show memory and hours on a GPU, such as h200 or a100-40.")
    ] = None,
) -> None:
    """List a recipe's stages with their keys and estimated costs.

    Shows state, tokens, FLOPs, disk and hours of each stage. Needs neither data nor weights.
    """
    from flows.plan.show import show_plan
    from flows.smoke_test import fast_changes

    show_plan(recipe, store, fast_changes(recipe, changes or []) if fast else changes or [], as_json, gpu)


@app.command(rich_help_panel=RUN, epilog="Example: pretrieve reproduce quickstart --set execution.threads=4")
def reproduce(
    recipe: RecipeName,
    store: StoreFolder = DEFAULT_STORE,
    changes: Changes = None,
    until: Annotated[
        str | None, typer.Option(metavar="NAME", help="Build only what this stage or round depends on, no report.")
    ] = None,
    rebuild: Annotated[
        str | None, typer.Option(metavar="NAME", help="Build this stage or round and what depends on it again.")
    ] = None,
    fast: Fast = False,
) -> None:
    """Run a recipe from the corpus to the report.

    Artifacts in the store are reused, and an interrupted run resumes.
    """
    from flows.reproduce import run
    from flows.smoke_test import fast_changes

    run(recipe, store, fast_changes(recipe, changes or []) if fast else changes or [], until, rebuild)


@app.command(rich_help_panel=RUN, epilog="Example: pretrieve doctor")
def doctor(store: StoreFolder = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """Check packages, Java, GPU, memory, disk and Prefect.

    Says what works on this machine, and what to do about the rest.
    """
    from flows.doctor import examine

    examine(store, as_json)


@app.command(rich_help_panel=RESULTS, epilog="Example: pretrieve compare small/cot_mae small/dup_mae --html page.html")
def compare(
    first: RunName,
    second: Annotated[
        str, typer.Argument(metavar="RUN", help="Another run. A,B,C are runs of one recipe with several seeds.")
    ],
    store: StoreFolder = DEFAULT_STORE,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the comparison as a page.")] = None,
) -> None:
    """Compare two finished runs, with significance tests.

    Shows settings that differ, artifacts that both share, and metrics side by side.
    """
    from flows.compare import show_comparison

    show_comparison(first, second, store, html)


add_evaluate(app, RESULTS)


@app.command(rich_help_panel=RESULTS, epilog='Example: pretrieve search 4f1c2a9b "capital of France" --top 3')
def search(
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY", help="Key of a retriever, its vectors or an index; or folder of `adapt`. A run lists keys."
        ),
    ],
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="The question, in quotes.")],
    store: StoreFolder = DEFAULT_STORE,
    top: Annotated[int, typer.Option(min=1, help="The number of passages.")] = 10,
    view: Annotated[str | None, typer.Option(help="Rank by dense, late, lexical or sum (the default).")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the top passages for a question, with their scores."""
    from flows.search import show_answer

    show_answer(key, question, store, top, view, as_json)


add_browse(app, RESULTS)


@app.command("export-run", rich_help_panel=RESULTS, epilog="Example: pretrieve export-run quickstart --to runs --gzip")
def export_run(
    run: RunName,
    to: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write; must not exist, or be empty.")],
    rows: Annotated[
        list[str] | None, typer.Argument(metavar="ROW", help="Systems of the report; all, if none is named.")
    ] = None,
    store: StoreFolder = DEFAULT_STORE,
    split: Annotated[str | None, typer.Option(help="Another split than the headline's, or COLLECTION/SPLIT.")] = None,
    packed: Annotated[bool, typer.Option("--gzip", help="Write ROW.trec.gz.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Put the header into ROW.yaml, as trec_eval needs.")] = False,
    actor: Annotated[str | None, typer.Option(metavar="NAME", help="Who ran it, for the header.")] = None,
) -> None:
    """Write a finished run's rankings as TREC run files.

    Each file begins with the header of ir_metadata.
    """
    from flows.export.export_run import RunFormat, export_runs

    export_runs(run, rows or [], to, store, split=split, form=RunFormat(packed, plain, actor))


add_matrix(app, RUN)
add_adaptation(app, RUN)
add_rehearsal(app, RUN)
add_store_commands(app, STORE)
app.add_typer(queries, rich_help_panel=QUERIES)
add_query_commands(app, QUERIES)
app.add_typer(study, rich_help_panel=STUDY)
add_server_commands(app, SERVER)


def main() -> None:
    """Run the command line; failures become one line on standard error and an exit code."""
    import signal

    from flows.interrupt import INTERRUPTED, ending_promptly, finish, leave, reason
    from storage.store.locks import LeaseLost

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that knows ASCII only shows ? for other letters
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read when the model hub's library is imported
    os.environ.setdefault("DO_NOT_TRACK", "1")  # read when Prefect is imported
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
