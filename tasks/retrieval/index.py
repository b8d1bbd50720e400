"""Build an index of passages with an engine: `engine: bm25` means `tasks/retrieval/engines/bm25.py`.

An engine's module has `VIEWS`, the names of what it can search, which are those of its ranked lists in a Run;
`build(out, passages, vectors, pseudo_queries, settings)`; and `open_index(path, vectors, encode, ids, view) ->
Searcher`, where `encode` makes vectors of queries and is None, like the vectors, for an engine that searches texts.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

from storage.artifact import Artifact
from storage.files import write_atomically
from storage.rows import num_rows
from storage.settings import Settings
from storage.store.manifest_checks import MANIFEST
from storage.store.store import SCRATCH
from storage.tables import Index, Passages, PseudoQueries, Vectors
from tasks.stage import stage

INDEX_JSON = "index.json"


class EngineSettings(Settings):
    """What every engine's settings have: the name of its file in `tasks/engines`."""

    engine: str


@stage(version=2, table=Index)
def index(
    out: Path,
    passages: Artifact[Passages],
    vectors: Artifact[Vectors] | None,
    pseudo_queries: Artifact[PseudoQueries] | None,
    *,
    settings: EngineSettings,
) -> None:
    """Write the engine's index of all passages and `index.json`, which says what it is."""
    engine(settings.engine).build(out, passages, vectors, pseudo_queries, settings)
    total = num_rows(passages.path)
    description = {
        **settings.model_dump(mode="json"),
        "passages": total,
        "bytes_per_passage": _bytes(out) / max(1, total),
    }
    write_atomically(out / INDEX_JSON, json.dumps(description, indent=1, sort_keys=True) + "\n")


def engine(name: str) -> ModuleType:
    """The engine's module."""
    return importlib.import_module(f"tasks.retrieval.engines.{name}")


def describe(path: Path) -> dict[str, object]:
    """What `index.json` says: the engine's settings, the number of passages and what one takes in the index alone."""
    description: dict[str, object] = json.loads((path / INDEX_JSON).read_text())
    return description


def _bytes(out: Path) -> int:
    """What the engine has written: nothing where it searches the vectors themselves."""
    # The description and the manifest may be there already, of a build that ended before its folder was renamed.
    others = {SCRATCH, INDEX_JSON, MANIFEST}
    files = (path for path in out.rglob("*") if path.is_file() and path.relative_to(out).parts[0] not in others)
    return sum(path.stat().st_size for path in files)
