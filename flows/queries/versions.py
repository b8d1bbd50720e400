"""The versions of a recipe's corpus: reports/<recipe>-queries/versions.jsonl in the store, in the order of builds."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from storage.artifact import Artifact
from storage.errors import UserError, one_line
from storage.files import write_atomically
from storage.store.run_notes import REFERENCE
from storage.store.store import Store
from storage.tables import Passages, PseudoQueries

VERSIONS = "versions.jsonl"
QUERIES = "-queries"


@dataclass(frozen=True)
class Version:
    """A corpus: a passage table with the queries that its generators wrote."""

    recipe: str
    number: int
    """The version's number, from 1 for each recipe."""
    at: str
    """The time of the build, as ISO 8601 in UTC."""
    queries: Artifact[PseudoQueries]
    passages: Artifact[Passages]
    quality: Artifact[Any]
    """The queries' statistics."""

    @property
    def name(self) -> str:
        """The version's name in commands."""
        return f"{self.recipe}@{self.number}" if self.number else self.queries.reference


def folder_of(recipe: str, store: Store) -> Path:
    """Return the folder of a recipe's versions and of their newest page."""
    return store.root / "reports" / f"{recipe}{QUERIES}"


def versions_of(recipe: str, store: Store) -> list[Version]:
    """Return the versions of a recipe, the oldest first, without those whose lines are damaged."""
    return [line for line in _lines(recipe, store) if isinstance(line, Version)]


def all_versions(store: Store) -> Iterator[Version]:
    """Yield the versions of all recipes."""
    for recipe in _recipes(store):
        yield from versions_of(recipe, store)


def damaged_versions(store: Store) -> list[str]:
    """Return a message for each damaged line of a file of versions."""
    return [line for recipe in _recipes(store) for line in _lines(recipe, store) if isinstance(line, str)]


def quarantine_versions(store: Store) -> None:
    """Copy each file of versions with damaged lines aside, and empty these lines: the others keep their numbers."""
    for recipe in _recipes(store):
        with store.lock("versions", recipe.replace("/", "-"), lambda: None):
            _quarantine(recipe, store)


def files_below(folder: Path, wanted: Callable[[str], bool]) -> list[Path]:
    """Return the files below a folder whose names are wanted, sorted; none where there is no such folder.

    A folder that may not be read is an OSError: what is in it may be needed.
    """

    def unreadable(error: OSError) -> None:
        raise error

    if not folder.exists():
        return []
    walked = os.walk(folder, onerror=unreadable)
    return sorted(Path(parent) / name for parent, _, names in walked for name in names if wanted(name))


def note_version(
    recipe: str, queries: Artifact[PseudoQueries], passages: Artifact[Passages], quality: Artifact[Any], store: Store
) -> tuple[Version, Version | None]:
    """Record a version unless its queries are the newest version's; return it, and the previous version.

    The newest version takes statistics that were computed with other settings.
    """
    with store.lock("versions", recipe.replace("/", "-"), lambda: None):
        _quarantine(recipe, store)
        lines = _lines(recipe, store)
        before = [line for line in lines if isinstance(line, Version)]
        if before and before[-1].queries.key == queries.key:
            newest = replace(before[-1], quality=quality)
            if newest != before[-1]:
                lines[newest.number - 1] = newest
                _write(recipe, lines, store)
            return newest, before[-2] if len(before) > 1 else None
        at = datetime.now(UTC).isoformat(timespec="seconds")
        version = Version(recipe, len(lines) + 1, at, queries, passages, quality)
        _write(recipe, [*lines, version], store)
    return version, before[-1] if before else None


def find_version(name: str, store: Store) -> Version:
    """Return a version by RECIPE (its newest), RECIPE@NUMBER, or the beginning of its queries' key."""
    recipe, _, number = name.rpartition("@")
    versions = versions_of(recipe or name, store)
    if recipe:
        numbered = {str(version.number): version for version in versions}
        if number not in numbered:
            known = f"has versions {_ranges(versions)}" if versions else "has no version"
            raise UserError(f"{name}: {recipe} {known} in {store.root}; `pretrieve queries list` lists them")
        return numbered[number]
    if versions:
        return versions[-1]
    by_key = {version.queries.key: version for version in all_versions(store) if version.queries.key.startswith(name)}
    if len(by_key) == 1:
        return next(iter(by_key.values()))
    raise UserError(
        f"{name}: {len(by_key) or 'no'} versions in {store.root} match; expected RECIPE, RECIPE@NUMBER or the "
        "beginning of a key, as `pretrieve queries list` lists them"
    )


def stored_version(name: str, store: Store) -> Version:
    """Return the version of `find_version`. Raises UserError where its queries or passages are not in the store."""
    version = find_version(name, store)
    for artifact in (version.queries, version.passages):
        if store.manifest(artifact.stage, artifact.key) is None:
            raise UserError(
                f"{name}: {artifact.reference} is deleted or damaged in {store.root}; `pretrieve queries build "
                f"{version.recipe}` builds it again"
            )
    return version


def _line(version: Version) -> str:
    return json.dumps({
        "at": version.at, "queries": version.queries.reference, "passages": version.passages.reference,
        "quality": version.quality.reference,
    })  # fmt: skip


def _ranges(versions: list[Version]) -> str:
    """Return the numbers of versions, for messages."""
    numbers = [version.number for version in versions]
    if numbers == list(range(1, len(numbers) + 1)):
        return f"1 to {len(numbers)}"
    return ", ".join(map(str, numbers))


def _recipes(store: Store) -> list[str]:
    reports = store.root / "reports"
    files = files_below(reports, lambda name: name == VERSIONS)
    return [file.parent.relative_to(reports).as_posix().removesuffix(QUERIES) for file in files]


def _lines(recipe: str, store: Store) -> list[Version | str | None]:
    """Return for each line of a recipe's file its version, an error message, or None where it was quarantined."""
    file = folder_of(recipe, store) / VERSIONS
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return []
    return [_parsed(line, recipe, number, store) for number, line in enumerate(content.splitlines(), 1)]


def _parsed(line: bytes, recipe: str, number: int, store: Store) -> Version | str | None:
    try:
        value: Any = json.loads(line.decode())
        if value is None:
            return None
        references = [value[name] for name in ("queries", "passages", "quality")]
        if isinstance(value["at"], str) and all(REFERENCE.fullmatch(reference) for reference in references):
            queries, passages, quality = (_artifact(reference, store) for reference in references)
            return Version(recipe, number, value["at"], queries, passages, quality)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    file = folder_of(recipe, store) / VERSIONS
    return f"{file}: line {number}: damaged: expected a version with `at`, `queries`, `passages` and `quality`"


def _artifact(reference: str, store: Store) -> Artifact[Any]:
    stage, _, key = reference.partition("/")
    return Artifact(stage, key, store.folder(stage, key))


def _write(recipe: str, lines: list[Version | str | None], store: Store) -> None:
    """Write a recipe's versions; a line without one keeps its place as `null`."""
    texts = [_line(line) if isinstance(line, Version) else "null" for line in lines]
    write_atomically(folder_of(recipe, store) / VERSIONS, "".join(f"{text}\n" for text in texts))


def _quarantine(recipe: str, store: Store) -> None:
    """Copy a recipe's file aside where lines of it are damaged, then empty these; name them on standard error."""
    lines = _lines(recipe, store)
    if damaged := [line for line in lines if isinstance(line, str)]:
        file = folder_of(recipe, store) / VERSIONS
        aside = file.with_name(f"{VERSIONS}.damaged-{time.time_ns()}")
        write_atomically(aside, file.read_bytes())
        _write(recipe, lines, store)
        for line in damaged:
            print(one_line(f"pretrieve: {line}; the file was copied to {aside}"), file=sys.stderr)
