"""`pretrieve reproduce`: a recipe from corpus to report, as one Prefect flow.

If the store has every stage, no server is started. Otherwise the chain runs in this process as a
flow of Prefect's embedded server, or of the server at PREFECT_API_URL.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import resource
import signal
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from flows.chain.given_models import check_models
from flows.interrupt import leave, limit_exit
from flows.plan.plan import needed_for, planned
from flows.prefect_server.embedded_server import start
from flows.prefect_server.named_server import named_server, profiles_file
from flows.prefect_server.watch import ServerWatch, require_answer
from flows.recipe.load import load_recipe
from flows.recipe.shipped import recipe_name
from flows.run_names import run_name
from flows.store.lookup import missing_artifacts
from flows.store.rebuild import request_rebuild
from flows.terminal import Terminal, say, unwrapped
from storage.artifact import Artifact
from storage.errors import UserError
from storage.store.rebuilds import remove_finished
from storage.store.run_notes import noted
from storage.store.store import Store
from storage.tables import Report
from tasks.job import Job, needed_references
from tasks.report.publish import is_of, publish, terminal_table
from tasks.runtime.environment import describe_execution
from tasks.runtime.signals import Terminated
from tasks.session import Done, Session, session
from tasks.stage import run_job

T = TypeVar("T")

DESCRIPTORS = 64  # with 16 a run fails, with 64 it does not


def run(name: str, folder: Path, changes: Sequence[str], until: str | None, rebuild: str | None) -> None:
    """Run a recipe and print what each stage does, then a table of the results and the path of the report.

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
        missing = print_stages(recipe.title, jobs, current)
        if missing and with_server:
            shown = run_name(title, recipe.seed, changes)
            page = as_flow("reproduce", shown, current, lambda: build_and_show(jobs, title, current))
        else:
            page = build(jobs, title, current)
        remove_finished(store.root)
        if page is not None:  # without a report the note stays, since no report needs what was built
            note.finish()
    return page


def print_stages(title: str, references: Collection[str], current: Session) -> int:
    """Print how many stages a run has cached and must build, and on what it runs; return the number to build."""
    missing = len(missing_artifacts(references, current.store))
    current.print_line(f"{title}: {stage_counts(len(references), missing)}; store {current.store.root}")
    if missing:
        current.print_line(describe_execution(current.execution))
    return missing


def stage_counts(total: int, missing: int) -> str:
    """Return the numbers of a run's stages in words."""
    return f"{total} stages, {total - missing} cached, {missing} to build"


def build(jobs: Mapping[str, Job], name: str, current: Session) -> Path | None:
    """Build the planned jobs in order; return the page of the report that is published where the last job is one."""
    with session(current):
        for reference, job in jobs.items():
            current.done[reference] = run_job(job, current)
    return publish_last(name, list(current.done.values()), current.store)


def build_and_show(jobs: Mapping[str, Job], name: str, current: Session) -> Path | None:
    """Build the planned jobs in a Prefect flow, whose run then shows the report in the UI; return the report's page."""
    from flows.prefect_server.ui_artifacts import show_run

    page = build(jobs, name, current)
    if page is not None:
        show_run(name, page, list(current.done.values()))
    return page


def publish_last(name: str, stages: Sequence[Done], store: Store) -> Path | None:
    """Publish the report that is the last stage of a run, and return its page; None where the run built no report."""
    last = stages[-1]
    if last.stage != "report":
        return None
    return published(name, Artifact("report", last.key, store.folder("report", last.key)), store, stages)


def published(name: str, report: Artifact[Report], store: Store, stages: Sequence[Done]) -> Path:
    """Publish a recipe's newest report in `STORE/reports`, with the stages of the run; return the path of its page.

    Where the store is read-only, return the page that is there already, or that of a new temporary folder.
    """
    store.check(report)
    folder = store.root / "reports" / name
    if store.is_read_only:
        if is_of(folder / "report.json", report):
            return folder / "report.html"
        folder = Path(tempfile.mkdtemp(prefix="pretrieve-report-"))
    return publish(folder, report, [dataclasses.asdict(stage) for stage in stages])


def as_flow(flow_name: str, title: str, current: Session, body: Callable[[], T]) -> T:
    """Call `body` as a Prefect flow of this process, with its stages as tasks; return its result.

    `title` is the run's name. Raises `UserError` where the server does not answer from the start, and `ServerLost`
    where it stops answering.
    """
    require_descriptors()
    prepare_prefect(current.store)
    from prefect import flow, tags
    from prefect.exceptions import TerminationSignal

    from tasks.runtime.prefect_task import TAG

    limit_exit()
    embedded, watch = watched_server(current.print_line)
    results: list[T] = []

    def run() -> None:
        try:
            results.append(body())
        except (KeyboardInterrupt, TerminationSignal, Terminated) as interrupted:
            if embedded:  # the server ends with this process: no one would read the run's state
                leave(signal.SIGINT if isinstance(interrupted, KeyboardInterrupt) else signal.SIGTERM)
            raise
        except Exception as error:
            watch.failed(error)
            raise

    try:
        with watch, tags(TAG):
            flow(name=flow_name, flow_run_name=lambda: title, persist_result=False)(run)()
    except Exception as error:
        raise watch.cause(error) from error
    return results[0]


def require_descriptors() -> None:
    """Raise `UserError` where the limit of open files is so low that Prefect's threads would fail."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed < DESCRIPTORS:
        raise UserError(f"{allowed} files may be open (ulimit -n), and a run needs {DESCRIPTORS}; raise the limit")


def watched_server(print_line: Callable[[str], None]) -> tuple[bool, ServerWatch]:
    """Start an embedded server unless the user has named one; return whether, and the thread that watches it.

    Raises `UserError` where the named server does not answer or refuses the credentials.
    """
    from prefect.settings import get_current_settings

    if named_server():
        return False, ServerWatch(f"the Prefect server at {require_answer()}", print_line)
    start()
    return True, ServerWatch("Prefect's embedded server", print_line, database=get_current_settings().home)


def prepare_prefect(store: Store) -> None:
    """Set what Prefect reads from the environment when it is imported; what the user has set stays.

    Telemetry is off. Results are kept in the store, and so is the embedded server's database where no server is named.
    Prefect's own log lines go to the server only, not to the terminal.
    """
    store.mark()
    folder = store.root / ".prefect"
    (folder / "results").mkdir(parents=True, exist_ok=True)
    defaults = {
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_LOCAL_STORAGE_PATH": str(folder / "results"),
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",  # our automations count a run as dead after 90 seconds of silence
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
        "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",
        "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "300",  # a busy machine needs more than the default of 20
    }
    for setting, value in defaults.items():
        os.environ.setdefault(setting, value)
    if not named_server():
        os.environ.setdefault("PREFECT_PROFILES_PATH", str(profiles_file()))  # the user's other settings stay
        os.environ.setdefault("PREFECT_HOME", str(folder))
    logging.raiseExceptions = False  # a server that is gone cannot take log lines: no traceback on the terminal for it
