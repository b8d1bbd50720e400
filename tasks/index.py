"""Build an index of passages with an engine: `engine: bm25` means `tasks/engines/bm25.py`.

An engine's module has `build(out, passages, checkpoint, pseudo_queries, settings)`, `open_index(path,
checkpoint, ids) -> Searcher`, and `VIEW`, the name of its ranked lists in a Run.
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
from storage.tables import Checkpoint, Index, Passages, PseudoQueries
from tasks.stage import stage

INDEX_JSON = "index.json"


class EngineSettings(Settings):
    """What every engine's settings have: the name of its file in `tasks/engines`."""

    engine: str


@stage(version=1, table=Index)
def index(
    out: Path,
    passages: Artifact[Passages],
    checkpoint: Artifact[Checkpoint] | None,
    pseudo_queries: Artifact[PseudoQueries] | None,
    *,
    settings: EngineSettings,
) -> None:
    """Write the engine's index of all passages and `index.json`, which says what it is."""
    engine(settings.engine).build(out, passages, checkpoint, pseudo_queries, settings)
    description = {**settings.model_dump(mode="json"), "passages": num_rows(passages.path)}
    write_atomically(out / INDEX_JSON, json.dumps(description, indent=1, sort_keys=True) + "\n")


def engine(name: str) -> ModuleType:
    """The engine's module."""
    return importlib.import_module(f"tasks.engines.{name}")


def describe(path: Path) -> dict[str, object]:
    """What `index.json` says: the engine's settings and the number of passages."""
    description: dict[str, object] = json.loads((path / INDEX_JSON).read_text())
    return description
