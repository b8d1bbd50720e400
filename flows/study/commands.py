"""`pretrieve study COMMAND`: the papers' claims at small scale. What a command needs is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.command_options import DEFAULT_STORE, StoreFolder

app = typer.Typer(
    name="study", help="Test the papers' claims at small scale, run by run.", no_args_is_help=True,
    epilog="Example: pretrieve study status", add_completion=False, rich_markup_mode="rich",
)  # fmt: skip

Results = Annotated[
    Path | None, typer.Option("--results", metavar="DIR", help="The folder of the results; else results/study.")
]
Claims = Annotated[
    Path | None,
    typer.Option("--claims", metavar="FILE", help="The claims; else configs/study/claims.yaml."),
]


@app.command(epilog="Example: pretrieve study run --hours 8 --only duplex")
def run(
    hours: Annotated[float, typer.Option(min=0, help="Start only runs that are expected to end within these hours.")],
    only: Annotated[list[str] | None, typer.Option(metavar="CLAIM", help="Only this claim; repeatable.")] = None,
    results: Results = None,
    claims: Claims = None,
    store: StoreFolder = DEFAULT_STORE,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="execution.KEY=VALUE", help="Change how it runs, such as threads; repeatable."),
    ] = None,
) -> None:
    """Run what the claims still need, in their order.

    An interrupted run resumes. Several processes share the runs.
    """
    from flows.recipe.shipped import CLAIMS
    from flows.study.claims import RESULTS
    from flows.study.run import run as start

    start(hours, store, results or RESULTS, only=only or [], changes=changes or [], claims=claims or CLAIMS)


@app.command(epilog="Example: pretrieve study power cpdae/retriever_1 masked_lm/retriever_1 --family 10")
def power(
    system: Annotated[str, typer.Argument(metavar="RECIPE/ROW", help="A system: RECIPE/ROW or RECIPE/steps-N/ROW.")],
    baseline: Annotated[str, typer.Argument(metavar="RECIPE/ROW", help="The system that it is compared with.")],
    metric: Annotated[str, typer.Option(help="A metric of the kept runs.")] = "MRR@10",
    family: Annotated[int, typer.Option(min=1, help="Comparisons corrected together.")] = 1,
    results: Results = None,
) -> None:
    """Print minimum detectable effects by numbers of folds and seeds.

    They are computed from the variances between the kept runs of two systems.
    """
    from flows.study.claims import RESULTS
    from flows.study.power import show_power

    show_power(system, baseline, metric, family, results or RESULTS)


@app.command(epilog="Example: pretrieve study status --results results/study")
def status(results: Results = None, claims: Claims = None, store: StoreFolder = DEFAULT_STORE) -> None:
    """Count the runs that each claim still needs.

    Also prints the CPU hours that are missing by system, and names runs that are running, failed, or of other code.
    """
    from flows.recipe.shipped import CLAIMS
    from flows.study.claims import RESULTS
    from flows.study.status import show_status

    show_status(store, results or RESULTS, claims or CLAIMS)


@app.command(epilog="Example: pretrieve study data")
def data() -> None:
    """Write the collection: SQuAD in folds, with leads of Wikipedia.

    It reads the collection squad, as `pretrieve fetch squad` writes it, and the leads that `make data` fetches.
    """
    from flows.study.data import FOLDER, write_data
    from flows.terminal import say

    say(f"{FOLDER}: {'written' if write_data() else 'is complete'}")
