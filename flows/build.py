"""Build the jobs of a plan in this process, and publish the report that is the last of them."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from storage.artifact import Artifact
from storage.store.lookup import missing_artifacts
from storage.store.store import Store
from storage.tables import Report
from tasks.job import Job
from tasks.report.publish import is_of, publish
from tasks.runtime.environment import describe_execution
from tasks.session import Done, Session, session
from tasks.stage import run_job


def print_stages(title: str, references: Collection[str], current: Session) -> int:
    """Print how many stages a run has cached and must build, and on what it runs; return the number to build.

    Lines about single stages then have their position in the run.
    """
    missing = len(missing_artifacts(references, current.store))
    current.num_stages = len(references)
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
