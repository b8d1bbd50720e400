"""A matrix that was started on a Prefect server: stages for a GPU run on the `gpu` pool, the others in this process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from flows.build import publish_last
from flows.matrix.planned_grid import FOLDER, PlannedGrid
from flows.matrix.planned_run import PlannedRun
from flows.matrix.results import PAGE, contents
from flows.matrix.run import RunsFailed, described, run_missing
from flows.prefect_server.child_runs import Request, run_all
from flows.recipe.grid import Cell
from flows.recipe.shipped import find_recipe, shipped_recipes
from storage.store.run_notes import NotedRun
from tasks.report.page.matrix_page import counts_in_words
from tasks.report.page.matrix_page import described as state_in_words
from tasks.runtime.prefect_progress import best_effort
from tasks.runtime.prefect_task import artifact_key
from tasks.session import Session, session


def run_matrix(plan: PlannedGrid, print_line: Callable[[str], None]) -> None:
    """Run what a matrix lacks, and show the grid in the UI. Raises `RunsFailed` at the end where runs failed."""
    print_line(described(plan))

    def builder(run: PlannedRun[Cell], note: NotedRun) -> None:
        recipe = run.definition.recipe
        request = Request(
            recipe if recipe in shipped_recipes() else str(find_recipe(recipe).resolve()), run.definition.changes
        )
        current = Session(plan.store, run.recipe.execution, print_line=print_line, note=note)
        with session(current):
            run_all(run.jobs, request, current)
        publish_last(plan.report_name(run.definition), [current.done[name] for name in run.jobs], plan.store)

    failed = run_missing(plan, builder, print_line)
    show_grid(plan)
    print_line(f"page: {plan.folder / PAGE}")
    if failed:
        raise RunsFailed(f"{failed} of {len(plan.runs)} runs failed; the log says why; Retry resumes them")


def show_grid(plan: PlannedGrid) -> None:
    """Create a table of the runs' states in the UI, and a link to the page."""
    from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact

    content = contents(plan)
    with best_effort():
        create_table_artifact(
            key=artifact_key(f"matrix-{plan.grid.name}"), table=grid_rows(content), description=counts_in_words(content)
        )
        key, words = artifact_key(f"matrix-{plan.grid.name}-page"), f"The page of matrix {plan.grid.name}"
        if served := os.environ.get("PRETRIEVE_REPORTS_URL"):
            link = f"{served.rstrip('/')}/{FOLDER}/{quote(plan.grid.name)}/{PAGE}"
            create_link_artifact(key=key, link=link, link_text=words, description=words)
        else:
            create_markdown_artifact(key=key, markdown=f"{words}: `{plan.folder / PAGE}`", description=words)


def grid_rows(content: dict[str, Any]) -> list[dict[str, str]]:
    """Return a row for each variant, with the state of each seed's run and the mean of the headline's metric."""
    means = {
        row["variant"]: row["mean"]
        for row in content["results"]
        if row["metric"] == content["metric"] and row["run"] == content["mains"][row["variant"]]
    }
    rows = []
    for variant in content["variants"]:
        cells = {
            f"seed {cell['seed']}": state_in_words(cell) for cell in content["cells"] if cell["variant"] == variant
        }
        mean = f"{means[variant]:.3f}" if variant in means else ""
        rows.append({"run": variant, **cells, content["metric"]: mean})
    return rows
