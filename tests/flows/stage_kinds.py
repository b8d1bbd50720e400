"""Which stages of a plan do what no stage of an earlier plan does: those of a new kind.

Two stages are of one kind where they have inputs of the same stages and equal settings, but for the size of numbers and
for names that only label or locate something.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tasks.job import Job

LABELS = {"names", "comparisons", "averaged", "dataset", "split", "weights", "baseline", "run", "rows"}
"""Settings that name runs and data: what a stage does with them depends on nothing but their number."""


def kind_of(job: Job, jobs: Mapping[str, Job]) -> str:
    """Return the kind of a planned stage; `jobs` has its inputs."""
    inputs = {name: sorted(set(_sources(value, jobs))) for name, value in job.references.items()}
    return json.dumps([job.stage.name, inputs, sorted(set(_forms(job.values)))])


def _sources(references: Any, jobs: Mapping[str, Job]) -> Iterator[str]:
    """Yield the stage of each input, and for a checkpoint of pre-training the paper; `source` for a file."""
    for reference in references if isinstance(references, list) else [references] if references else []:
        job = jobs.get(reference)
        yield f"{job.stage.name} {job.values.get('paper', '')}".strip() if job else "source"


def _forms(value: Any, path: str = "") -> Iterator[str]:
    """Yield a setting's path and value below a value, for numbers whether they are 0."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name not in LABELS:
                yield from _forms(inner, f"{path}.{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from _forms(inner, f"{path}[]")
    else:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        yield f"{path}={'number' if is_number and value else value}"


def new_kinds(jobs: Mapping[str, Job], known: set[str]) -> dict[str, Job]:
    """Return the jobs of kinds that are not in `known`, to which they are added, with all that they depend on."""
    needed: set[str] = set()
    for reference, job in jobs.items():
        if job.stage.name != "report" and (kind := kind_of(job, jobs)) not in known:
            known.add(kind)
            _add_with_inputs(reference, jobs, needed)
    return {reference: job for reference, job in jobs.items() if reference in needed}


def _add_with_inputs(reference: str, jobs: Mapping[str, Job], needed: set[str]) -> None:
    if reference not in needed:
        needed.add(reference)
        for name in jobs[reference].needs():
            _add_with_inputs(name, jobs, needed)
