"""The search of a generator's round trip: BM25 over the held-out passages and others."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from pydantic import Field

from storage.artifact import Artifact
from storage.external.mapped_index import MappedPassageIndex, write_passage_index
from storage.rows import write_rows
from storage.settings import Settings
from storage.tables import Index, Passages
from tasks.retrieval.engines import bm25
from tasks.retrieval.index import index
from tasks.retrieval.ranking import Searcher

CUTOFF = 10


class Trip(Settings):
    """The size and the search engine of the round trip."""

    passages: int = Field(gt=0)
    """The largest number of held-out passages for which a query is generated."""
    others: int = Field(ge=0)
    """The largest number of training passages that are searched together with all held-out ones."""
    bm25: bm25.Bm25


class Collection:
    """The passages that are searched in the round trip; those with a generated query come first."""

    def __init__(self, folder: Path, texts: Sequence[str], settings: bm25.Bm25) -> None:
        self.folder, self.texts, self.settings = folder, texts, settings

    def ranks(self, queries: Sequence[str]) -> list[int]:
        """Return the rank of each query's own passage, which has the query's number; 0 if it is not in the top 10."""
        results = self._searcher(queries)(range(len(queries)), CUTOFF)
        positions = [np.flatnonzero(hits.rows == number) for number, hits in enumerate(results)]
        return [int(position[0]) + 1 if len(position) else 0 for position in positions]

    @cached_property
    def _searcher(self) -> Searcher:
        """The open index; Java starts at its first use."""
        rows = (
            {"passage_id": f"{number:09d}", "doc_id": f"{number:09d}", "title": "", "text": text, "start": 0,
             "end": len(text), "num_tokens": 0}
            for number, text in enumerate(self.texts)
        )  # fmt: skip
        write_rows(self.folder / "passages", Passages, rows)
        passages: Artifact[Passages] = Artifact("validation", "passages", self.folder / "passages")
        built: Artifact[Index] = Artifact("validation", "index", self.folder / "index")
        built.path.mkdir(exist_ok=True)
        index.body(built.path, passages, None, None, settings=self.settings)
        ids = self.folder / "passage_index"
        shutil.rmtree(ids, ignore_errors=True)
        write_passage_index(ids, passages)
        return bm25.open_index(built.path, None, None, MappedPassageIndex(ids), "bm25")
