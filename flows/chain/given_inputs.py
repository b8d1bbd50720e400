"""Everything that a run needs from outside the store and lacks is reported at once, before any model is opened."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from storage import datasets
from storage.artifact import Source
from storage.errors import UserError
from storage.store import sources
from tasks.corpus.ingest import ingest_corpus
from tasks.job import Job
from tasks.session import Session


@contextlib.contextmanager
def inputs_reported_together(plan: Session) -> Iterator[None]:
    """Raise one UserError for all inputs of the stages of this block that are missing or are no collection.

    A plan needs no inputs (`sources.assuming_present`), so that nothing is raised there.
    """
    with sources.reported_together() as problems:
        yield
        if not sources.is_offline():
            problems += _unreadable_collections(plan)


def _unreadable_collections(plan: Session) -> list[str]:
    """Return why the first document of a collection that is to be ingested cannot be read, for each such collection."""
    problems = []
    for reference, job in plan.jobs.items():
        if job.stage.name == ingest_corpus.name and not plan.done[reference].cached:
            problems += _unreadable(job)
    return problems


def _unreadable(job: Job) -> list[str]:
    [source] = job.inputs
    if not isinstance(source, Source) or isinstance(source, sources.Absent):
        return []
    loader = datasets.dataset_loader(job.values["reader"])
    try:
        next(iter(loader.texts(source.path, job.values["name"])), None)
    except UserError as error:
        return [str(error)]
    return []
