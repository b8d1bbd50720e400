"""`pretrieve reproduce`: a recipe from corpus to report, as one Prefect flow.

If the store has every stage, no server is started. Otherwise the chain runs in this process as a
flow of Prefect's embedded server, or of the server at PREFECT_API_URL.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from flows.build import build, print_stages
from flows.chain.given_models import check_models
from flows.plan.plan import needed_for, planned
from flows.prefect_server.as_flow import as_flow
from flows.recipe.changes import given_collection
from flows.recipe.load import load_recipe
from flows.recipe.shipped import recipe_name
from flows.run_names import run_name
from flows.store.rebuild import request_rebuild
from flows.terminal import Terminal, say, unwrapped
from storage.store.rebuilds import remove_finished
from storage.store.run_notes import noted
from storage.store.store import Store
from tasks.job import Job, needed_references
from tasks.report.publish import terminal_table
from tasks.runtime.formatting import duration
from tasks.session import Session


def run(name: str, folder: Path, changes: Sequence[str], until: str | None, rebuild: str | None) -> None:
    """Run a recipe and print what each stage does, then a table of the results, the report's path and how to browse it.

    `until` is a stage or a round: only what it depends on is built, and no report is published. `rebuild` is one too:
    it and what depends on it are built again.
    """
    console = unwrapped(stderr=True)
    page = reproduced(name, folder, changes, until=until, rebuild=rebuild, print_line=console.print)
    if page is None:
        console.print(f"built what {until} needs, as --until says; no report was published")
        return
    Terminal().print(terminal_table(page.with_suffix(".json")))
    say(f"report: {page}")
    say(f"browse: pretrieve browse {shlex.quote(str(page.parent))}")


def reproduced(
    name: str, folder: Path, changes: Sequence[str], *, until: str | None = None, rebuild: str | None = None,
    print_line: Callable[[str], None], with_server: bool = True,
) -> Path | None:  # fmt: skip
    """Run a recipe; return the page of its report, or None where `until` ends the run before the report.

    `with_server` runs stages that are missing as a Prefect flow. Without it the same stages run in this process only.
    """
    recipe, path = load_recipe(name, changes)
    title, store = recipe_name(path, fast=recipe.fast), Store.open_or_new(folder)
    plan = planned(recipe, title, store)
    jobs = plan.jobs if until is None else needed_for(plan, until)
    if rebuild is not None:
        print_line(request_rebuild(jobs, rebuild, title, store))
        plan = planned(recipe, title, store)
    check_models(jobs, plan)
    with noted(store, "reproduce", title, needed_references(plan.jobs.values())) as note:
        current = Session(store, recipe.execution, print_line=print_line, note=note)
        given = given_collection(recipe, changes)
        missing = print_stages(f"{recipe.title} (on {given})" if given else recipe.title, jobs, current)
        started = time.monotonic()
        if missing and with_server:
            shown = run_name(title, recipe.seed, changes)
            page = as_flow("reproduce", shown, current, lambda: build_and_show(jobs, title, current))
        else:
            page = build(jobs, title, current)
        if missing:
            print_line(f"built {missing} of {len(jobs)} stages in {duration(time.monotonic() - started)}")
        remove_finished(store.root)
        if page is not None:  # without a report the note stays, since no report needs what was built
            note.finish()
    return page


def build_and_show(jobs: Mapping[str, Job], name: str, current: Session) -> Path | None:
    """Build the planned jobs in a Prefect flow, whose run then shows the report in the UI; return the report's page."""
    from flows.prefect_server.ui_artifacts import show_run

    page = build(jobs, name, current)
    if page is not None:
        show_run(name, page, list(current.done.values()))
    return page
