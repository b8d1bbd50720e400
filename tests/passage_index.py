"""The index of an artifact's passages in memory."""

from storage.artifact import Artifact
from storage.row_index import PassageIndex
from storage.rows import read_table
from storage.tables import Passages


def read_index(passages: Artifact[Passages]) -> PassageIndex:
    """Return the index of all passages of an artifact."""
    return PassageIndex.of(read_table(passages, Passages, ["passage_id", "doc_id"]))
