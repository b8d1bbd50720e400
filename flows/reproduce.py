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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from flows.chain.chain import chain
from flows.chain.given_models import check_models
from flows.interrupt import leave, limit_exit
from flows.plan import planned
from flows.prefect_server.embedded_server import start
from flows.prefect_server.watch import Watch, require_answer
from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from flows.recipe.shipped import recipe_name
from flows.terminal import Terminal, say, unwrapped
from storage.artifact import Artifact
from storage.errors import UserError, suggestion
from storage.store.run_notes import noted
from storage.store.store import Store
from storage.tables import Report
from tasks.report.report import is_of, publish, terminal_table
from tasks.runtime.signals import Told
from tasks.session import Done, Session, Stopped, session

T = TypeVar("T")

DESCRIPTORS = 64  # with 16 a run fails, with 64 it does not


def run(name: str, folder: Path, changes: Sequence[str], until: str | None) -> None:
    """Run a recipe, say what each stage does, and end with a table and the path of the report."""
    recipe, path = load_recipe(name, changes)
    title, store = recipe_name(path), Store.open_or_new(folder)
    plan = planned(recipe, title, store)
    steps = until_step(list(plan.done.values()), until)
    check_models(plan)
    console = unwrapped(stderr=True)
    with noted(store, "reproduce", title, plan.done) as note:
        missing = [step for step in steps if store.manifest(step.stage, step.key) is None]
        counts = f"{len(steps)} stages, {len(steps) - len(missing)} cached, {len(missing)} to build"
        console.print(f"{recipe.title}: {counts}; store {store.root}")
        last = None if until is None else steps[-1].key
        current = Session(store, recipe.execution, last=last, tell=console.print, note=note)
        try:
            if missing:
                page = as_flow("reproduce", title, current, lambda: shown(recipe, title, current))
            else:
                page = in_session(recipe, title, current)
        except Stopped:
            console.print(f"stopped after {steps[-1].stage} {steps[-1].key}, as --until says")
            return
        note.finish()
    Terminal().print(terminal_table(page.with_suffix(".json")))
    say(f"report: {page}")


def until_step(steps: list[Done], until: str | None) -> list[Done]:
    """The steps up to the last one that is called `until`, by its stage or by its round."""
    if until is None:
        return steps
    places = [place for place, step in enumerate(steps) if until and until in (step.stage, step.round)]
    if not places:
        names = list(dict.fromkeys([step.stage for step in steps] + [step.round for step in steps if step.round]))
        raise UserError(f"--until {until!r}: this recipe has no such stage or round; {suggestion(until, names)}")
    return steps[: places[-1] + 1]


def in_session(recipe: Recipe[Any], name: str, current: Session) -> Path:
    """The chain as plain calls; where its report is."""
    with session(current):
        made = chain(recipe, name, current.store)
    return published(name, made, current.store, list(current.done.values()))


def shown(recipe: Recipe[Any], name: str, current: Session) -> Path:
    """The same in a flow, whose run shows the report."""
    from flows.prefect_server.ui_artifacts import show_run

    page = in_session(recipe, name, current)
    show_run(name, page, list(current.done.values()))
    return page


def published(name: str, made: Artifact[Report], store: Store, stages: Sequence[Done]) -> Path:
    """Put a recipe's newest report where people look, with the stages of the run; return the path of its page.

    Where the store is read-only, that is the page that is there already, or one in a new temporary folder.
    """
    store.check(made)
    folder = store.root / "reports" / name
    if store.is_read_only:
        if is_of(folder / "report.json", made):
            return folder / "report.html"
        folder = Path(tempfile.mkdtemp(prefix="pretrieve-report-"))
    return publish(folder, made, [dataclasses.asdict(each) for each in stages])


def as_flow(flow_name: str, recipe: str, current: Session, body: Callable[[], T]) -> T:
    """A body whose stages are tasks of a Prefect flow in this process; what it returns.

    Raises `UserError` where the server does not answer from the start, and `ServerLost` where it does not any more.
    """
    require_descriptors()
    prepare_prefect(current.store)
    from prefect import flow, tags
    from prefect.exceptions import TerminationSignal

    from tasks.runtime.prefect_task import TAG

    limit_exit()
    embedded, watch = watched_server(current.tell)
    outcome: list[T | Stopped] = []

    def run(recipe: str) -> None:
        try:
            outcome.append(body())
        except Stopped as stopped:  # a wish, not a failure of the run
            outcome.append(stopped)
        except (KeyboardInterrupt, TerminationSignal, Told) as interrupted:
            if embedded:  # there is nobody to report it to
                leave(signal.SIGINT if isinstance(interrupted, KeyboardInterrupt) else signal.SIGTERM)
            raise
        except Exception as error:
            watch.failed(error)
            raise

    try:
        with watch, tags(TAG):
            flow(name=flow_name, flow_run_name=recipe, persist_result=False)(run)(recipe=recipe)
    except Exception as error:
        raise watch.cause(error) from error
    if isinstance(outcome[0], Stopped):
        raise outcome[0]
    return outcome[0]


def require_descriptors() -> None:
    """Raise `UserError` where so few files may be open that Prefect's threads would fail, one after the other."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed < DESCRIPTORS:
        raise UserError(f"{allowed} files may be open (ulimit -n), and a run needs {DESCRIPTORS}; raise the limit")


def watched_server(tell: Callable[[str], None]) -> tuple[bool, Watch]:
    """Whether the run's server is an embedded one, which is started here, and the thread that looks after it.

    Raises `UserError` where another server is named that does not answer or does not let us in.
    """
    from prefect.settings import get_current_settings

    if get_current_settings().api.url:
        return False, Watch(f"the Prefect server at {require_answer()}", tell)
    start()
    return True, Watch("Prefect's embedded server", tell, database=get_current_settings().home)


def prepare_prefect(store: Store) -> None:
    """Settle what Prefect reads from the environment when it is imported; what the user has set stays.

    Nothing is sent home. Results lie in the store, and so does the embedded server's database where no
    server is named. The terminal is ours: Prefect's own lines go to the server only.
    """
    store.mark()
    folder = store.root / ".prefect"
    (folder / "results").mkdir(parents=True, exist_ok=True)
    defaults = {
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_LOCAL_STORAGE_PATH": str(folder / "results"),
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",  # our automations take 90 seconds of silence for death
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
        "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",
        "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "300",  # a busy machine takes more than the usual 20
    }
    if "PREFECT_API_URL" not in os.environ and not (Path.home() / ".prefect" / "profiles.toml").exists():
        defaults["PREFECT_HOME"] = str(folder)
    for setting, value in defaults.items():
        os.environ.setdefault(setting, value)
    logging.raiseExceptions = False  # what a server that is gone did not log is no line for the terminal
