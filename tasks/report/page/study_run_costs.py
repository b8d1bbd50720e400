"""The lines of a study's page about its runs: when and where they ran, what they cost, and with which packages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from storage.results.study_runs import StudyRun


def costs_of_runs(runs: Sequence[StudyRun]) -> Iterator[dict[str, Any]]:
    """Yield the cost of each run; a stage shared by several runs counts for the first of them."""
    counted: set[tuple[str, str]] = set()
    for run in runs:
        own = [stage for stage in run.stages if (stage["stage"], stage["key"]) not in counted]
        counted |= {(stage["stage"], stage["key"]) for stage in own}
        machines = dict.fromkeys(f"{stage['device']}, {stage['cores']} cores" for stage in run.stages)
        yield {
            "facts": run.facts, "at": max(stage["at"] for stage in run.stages)[:10], "machine": "; ".join(machines),
            "cpu": sum(stage["cpu_seconds"] for stage in own), "stages": len(run.stages), "own": len(own),
            "file": run.facts.trial.folder(Path()).as_posix(),
        }  # fmt: skip


def package_versions(runs: Sequence[StudyRun]) -> list[str]:
    """Return the different sets of package versions of the runs."""
    return list(dict.fromkeys(
        ", ".join(f"{name} {version}" for name, version in sorted(run.facts.versions.items())) for run in runs
    ))  # fmt: skip
