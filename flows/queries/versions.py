"""The versions of a recipe's corpus, as they were built: reports/<recipe>-queries/versions.jsonl in the store."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from storage.artifact import Artifact
from storage.errors import UserError
from storage.files import write_atomically
from storage.store import Store
from storage.tables import Passages, PseudoQueries

VERSIONS = "versions.jsonl"
QUERIES = "-queries"


@dataclass(frozen=True)
class Version:
    """A corpus: a passage table joined with what its generators wrote."""

    recipe: str
    number: int
    """From 1, by recipe."""
    at: str
    """When it was built, as ISO 8601 in UTC."""
    queries: Artifact[PseudoQueries]
    passages: Artifact[Passages]
    quality: Artifact[Any]
    """Its figures."""

    @property
    def name(self) -> str:
        """How commands call it."""
        return f"{self.recipe}@{self.number}" if self.number else self.queries.reference


def folder_of(recipe: str, store: Store) -> Path:
    """Where a recipe's versions and their newest page lie."""
    return store.root / "reports" / f"{recipe}{QUERIES}"


def versions_of(recipe: str, store: Store) -> list[Version]:
    """All versions of a recipe, the oldest first."""
    file = folder_of(recipe, store) / VERSIONS
    if not file.exists():
        return []
    return [
        _version(recipe, number, json.loads(line), store)
        for number, line in enumerate(file.read_text().splitlines(), 1)
    ]


def all_versions(store: Store) -> Iterator[Version]:
    """Those of all recipes."""
    reports = store.root / "reports"
    for file in sorted(reports.rglob(VERSIONS)):
        yield from versions_of(file.parent.relative_to(reports).as_posix().removesuffix(QUERIES), store)


def note_version(
    recipe: str, queries: Artifact[PseudoQueries], passages: Artifact[Passages], quality: Artifact[Any], store: Store
) -> tuple[Version, Version | None]:
    """The version that these are, a new one unless they are the newest already, and the one before it."""
    with store.lock("versions", recipe.replace("/", "-"), lambda: None):
        before = versions_of(recipe, store)
        if before and before[-1].queries.key == queries.key:
            return before[-1], before[-2] if len(before) > 1 else None
        at = datetime.now(UTC).isoformat(timespec="seconds")
        version = Version(recipe, len(before) + 1, at, queries, passages, quality)
        lines = [_line(each) for each in (*before, version)]
        write_atomically(folder_of(recipe, store) / VERSIONS, "".join(f"{line}\n" for line in lines))
    return version, before[-1] if before else None


def find_version(name: str, store: Store) -> Version:
    """A version by RECIPE (its newest), RECIPE@NUMBER, or the beginning of its queries' key."""
    recipe, _, number = name.rpartition("@")
    found = versions_of(recipe or name, store)
    if recipe:
        if not re.fullmatch("[0-9]{1,9}", number) or not 1 <= int(number) <= len(found):
            there = f"has versions 1 to {len(found)}" if found else "has no version"
            raise UserError(f"{name}: {recipe} {there} in {store.root}; `pretrieve queries list` lists them")
        return found[int(number) - 1]
    if found:
        return found[-1]
    by_key = {each.queries.key: each for each in all_versions(store) if each.queries.key.startswith(name)}
    if len(by_key) == 1:
        return next(iter(by_key.values()))
    raise UserError(
        f"{name}: {len(by_key)} versions in {store.root} are called so; expected RECIPE, RECIPE@NUMBER or the "
        "beginning of a key, as `pretrieve queries list` lists them"
    )


def _line(version: Version) -> str:
    return json.dumps({
        "at": version.at, "queries": version.queries.reference, "passages": version.passages.reference,
        "quality": version.quality.reference,
    })  # fmt: skip


def _version(recipe: str, number: int, line: dict[str, Any], store: Store) -> Version:
    def artifact(reference: str) -> Artifact[Any]:
        stage, _, key = reference.partition("/")
        return Artifact(stage, key, store.folder(stage, key))

    return Version(
        recipe, number, line["at"], artifact(line["queries"]), artifact(line["passages"]), artifact(line["quality"])
    )
