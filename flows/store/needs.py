"""The artifacts that the reports and the versions of pseudo-queries in a store need."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.queries.versions import VERSIONS, all_versions, damaged_versions, files_below
from storage.files import write_atomically
from storage.store.run_notes import REFERENCE
from storage.store.store import Store

KEPT = "kept.json"
"""A file in the reports with the references that another folder needs, such as that of an adapted model."""


@dataclass(frozen=True)
class ReportNeeds:
    """The artifacts that are needed directly; their manifests name their inputs."""

    references: frozenset[str]
    problems: list[str]
    """A message for each file that could not be read completely, and so may need more."""


def report_needs(store: Store) -> ReportNeeds:
    """Return the references of the stages in the reports, and of the versions of pseudo-queries."""
    references, problems = set[str](), damaged_versions(store)
    reports = store.root / "reports"
    for page in files_below(reports, lambda name: name == "report.json"):
        stages = _stages(page)
        references |= stages or set()
        if stages is None:
            problems.append(f"{page}: expected the stages of a run; run its recipe again, or delete the file")
    for file in files_below(reports, lambda name: name == KEPT):
        references |= (kept := _kept(file)) or set()
        if kept is None:
            problems.append(f"{file}: expected a list of references; run the command that wrote it again, or delete it")
    for file in files_below(reports, lambda name: name.startswith(f"{VERSIONS}.damaged-")):
        problems.append(f"{file}: it holds damaged lines, whose versions are unknown; delete it if they are not needed")
    for version in all_versions(store):
        references |= {version.queries.reference, version.passages.reference, version.quality.reference}
    return ReportNeeds(frozenset(references), problems)


def keep(store: Store, name: Path, references: Collection[str]) -> None:
    """Keep artifacts from garbage collection until the folder `name` of the store's reports is deleted."""
    folder = store.root / "reports" / name
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / KEPT, json.dumps(sorted(references), indent=1) + "\n")


def _kept(file: Path) -> set[str] | None:
    """Return the references of a file that `keep` wrote; None where they cannot be read or are malformed."""
    try:
        references: Any = json.loads(file.read_bytes())
        return set(references) if all(REFERENCE.fullmatch(reference) for reference in references) else None
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def _stages(page: Path) -> set[str] | None:
    """Return the references of a report and its stages; None where they cannot be read or are malformed."""
    try:
        content: Any = json.loads(page.read_bytes())
        references = {f"{step['stage']}/{step['key']}" for step in content["stages"]}
        if "report" in content["inputs"]:
            references.add(f"report/{content['inputs']['report']}")
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return references if all(REFERENCE.fullmatch(reference) for reference in references) else None
