"""Build an index of passages with an engine: `engine: bm25` names the module `tasks/retrieval/engines/bm25.py`.

An engine's module has

- `VIEWS`, the names of the views it searches, which are also the names of its ranked lists in a Run,
- `build(out, passages, vectors, pseudo_queries, settings)`, and
- `open_index(path, vectors, encode, ids, view) -> Searcher`, where `encode` encodes queries; `encode` and `vectors`
  are None for an engine that searches texts.
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
from storage.store.publishing import SCRATCH
from storage.tables import Index, Passages, PseudoQueries, Vectors
from tasks.stage import stage

INDEX_JSON = "index.json"


class EngineSettings(Settings):
    """The setting that all engines share: the name of the engine's module in `tasks/retrieval/engines`."""

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
    """Write the engine's index of all passages, and `index.json`, which describes it."""
    engine(settings.engine).build(out, passages, vectors, pseudo_queries, settings)
    total = num_rows(passages.path)
    description = {
        **settings.model_dump(mode="json"),
        "passages": total,
        "bytes_per_passage": _index_bytes(out) / max(1, total),
    }
    write_atomically(out / INDEX_JSON, json.dumps(description, indent=1, sort_keys=True) + "\n")


def engine(name: str) -> ModuleType:
    """Return the engine's module."""
    return importlib.import_module(f"tasks.retrieval.engines.{name}")


def describe(path: Path) -> dict[str, object]:
    """Return the content of `index.json`: the engine's settings, the number of passages, and bytes per passage."""
    description: dict[str, object] = json.loads((path / INDEX_JSON).read_text(encoding="utf-8"))
    return description


def _index_bytes(out: Path) -> int:
    """Return the size of the engine's files; 0 for an engine that searches the vectors themselves."""
    # An interrupted attempt may have left the description and the manifest, which are not part of the index.
    excluded = {SCRATCH, INDEX_JSON, MANIFEST}
    files = (path for path in out.rglob("*") if path.is_file() and path.relative_to(out).parts[0] not in excluded)
    return sum(path.stat().st_size for path in files)
