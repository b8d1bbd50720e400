"""The study's collection, which is written from two that a user has: SQuAD's and Wikipedia's lead paragraphs."""

from __future__ import annotations

from pathlib import Path

from flows.recipe.shipped import PROJECT
from storage.conversions.squad_folds import FOLD_FILES, write_folds
from storage.conversions.squad_wikipedia import LAST_FILE, NAME, write_collection
from storage.datasets.vital_wikipedia import WHEEL
from storage.store import sources

FOLDER = PROJECT / "data" / NAME


def write_data(folder: Path = FOLDER) -> bool:
    """Write the collection where it is not complete yet, and return whether it was written.

    SQuAD's collection is searched as a recipe's `dataset.path: squad` is, and the leads likewise.
    """
    if all((folder / name).is_file() for name in (LAST_FILE, *FOLD_FILES)):
        return False
    if (folder / LAST_FILE).is_file():  # a collection from before it had all of these folds
        write_folds(folder)
        return True
    write_collection(folder, sources.locate("squad", "beir"), sources.locate(WHEEL, "vital_wikipedia"))
    return True
