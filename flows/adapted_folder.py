"""Read the folder of `pretrieve adapt`: its JSON files, and the models that have encoded what its index searches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.artifact import Artifact
from storage.errors import UserError
from storage.store import sources
from storage.store.lookup import artifact, must_exist
from storage.store.store import Store

if TYPE_CHECKING:
    from tasks.retrieval.encode import Model

ADAPTED, MODEL = "index.json", "model"
"""Which artifacts are searched, and the model's folder."""
AGAIN = "run the same `pretrieve adapt` again"


def is_adapted(name: str | Path) -> bool:
    """Return whether a name is the folder of an adaptation that has an index."""
    return (Path(name) / ADAPTED).is_file()


def read_json(file: Path, *keys: str, remedy: str = f"remove the file, and {AGAIN}") -> dict[str, Any]:
    """Return the content of a JSON file of the folder, which has these keys.

    Raises UserError where it is missing or damaged.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or not content.keys() >= set(keys):
            raise ValueError(f"without {', '.join(keys)}")
    except FileNotFoundError:
        raise UserError(f"{file}: there is no such file, so the adaptation has not ended; {AGAIN}") from None
    except ValueError as error:  # no JSON, or not UTF-8
        raise UserError(f"{file}: expected JSON as `pretrieve adapt` writes it ({error}); {remedy}") from None
    return content


def encoder_of(vectors: Artifact[Any], model: str, store: Store) -> Model:
    """Return the model that has encoded vectors: the folder `model`, or its conversion in the store.

    Raises UserError where the folder's files have changed: its queries might not fit the vectors.
    """
    reference = str(must_exist(vectors.reference, store).inputs["checkpoint"])
    if not reference.startswith("source/"):  # the store has a model only where its weights had to be converted
        return artifact(reference, store)
    found = sources.weights(model)
    if found.reference != reference:
        raise UserError(
            f"{model}: files were changed or added since the collection was encoded with this model; remove what was "
            f"added, or {AGAIN}, which renames the folder and writes it again"
        )
    return found
