"""What tells the stages of one name in a plan apart: the split that is read or searched, and the system."""

from __future__ import annotations

from collections.abc import Mapping

from tasks.job import Job
from tasks.retrieval.search import search


def detail(job: Job, jobs: Mapping[str, Job]) -> str:
    """Return the split that a stage reads or searches with, and the representation where it is not the usual one.

    `jobs` are those of the plan, by their references. Empty for stages that belong to no split.
    """
    if job.stage.name != search.name:
        return str(job.values.get("split") or "") if job.stage.name.startswith("ingest_") else ""
    queries = jobs.get(str(job.references["queries"]))
    split = "" if queries is None else str(queries.values.get("split") or "pseudo-queries")
    view = "" if job.values["view"] in ("bm25", "dense") else job.values["view"]
    return f"{split} {view}".strip()


def system(job: Job, jobs: Mapping[str, Job]) -> str:
    """Return the round of a stage or, for a search without one, the variant of BM25: by its name in the report."""
    if job.round or job.stage.name != search.name:
        return job.round
    searched = jobs.get(str(job.references["index"]))
    if searched is None:
        return "bm25"
    if searched.references.get("pseudo_queries") is not None:
        return "bm25_doc2query"
    passages = jobs.get(str(searched.references["passages"]))
    is_other = passages is not None and passages.values.get("titles") is False and _has_titles(jobs)
    return "bm25_without_titles" if is_other else "bm25"


def _has_titles(jobs: Mapping[str, Job]) -> bool:
    """Return whether some passages of a plan have titles: those without are then those of another system."""
    return any(job.values.get("titles") is True for job in jobs.values())
