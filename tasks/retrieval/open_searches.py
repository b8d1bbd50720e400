"""Indexes that stay open: artifacts are checked, models are read, and passages are numbered once for many questions."""

from __future__ import annotations

from contextlib import ExitStack

from storage.artifact import Artifact
from storage.row_index import PassageIndex
from storage.store.store import Store
from storage.tables import Passages
from tasks.retrieval.interactive import OpenSearch, Searched
from tasks.retrieval.shared_passages import temporary_index


class OpenSearches:
    """The open indexes of a store. Temporary files with the ids of the passages stay until `close`."""

    def __init__(self, store: Store) -> None:
        self.store, self._files = store, ExitStack()
        self._open: dict[tuple[Searched, str | None], OpenSearch] = {}
        self._ids: dict[str, PassageIndex] = {}

    def has(self, searched: Searched, view: str | None) -> bool:
        """Return whether an index is open for a view."""
        return (searched, view) in self._open

    def opened(self, searched: Searched, view: str | None) -> OpenSearch:
        """Return the open index of artifacts for a view, or for the sum of all. Raises DamagedArtifact."""
        if not self.has(searched, view):
            for read in (searched.passages, searched.index, searched.vectors, searched.checkpoint):
                if isinstance(read, Artifact):
                    self.store.check(read)
            self._open[searched, view] = OpenSearch(searched, self._ids_of(searched.passages), view)
        return self._open[searched, view]

    def close(self) -> None:
        """Forget all open indexes and remove the temporary files; what is opened later is read again."""
        self._open.clear()
        self._ids.clear()
        self._files.close()

    def _ids_of(self, passages: Artifact[Passages]) -> PassageIndex:
        if passages.key not in self._ids:
            self._ids[passages.key] = self._files.enter_context(temporary_index(passages))
        return self._ids[passages.key]
