"""Stored vectors and passage ids for the benchmarks of search, with a session on one thread."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from storage.row_index import PassageIndex
from storage.store.store import Store
from storage.vectors import VECTORS_JSON, Encoded, write_shard
from tasks.retrieval.exact_search.double_scores import StoredVectors
from tasks.session import Execution, Session, session

ROWS = 16_384  # of a shard


@contextlib.contextmanager
def stored(passages: Encoded) -> Iterator[tuple[StoredVectors, PassageIndex]]:
    """Write the vectors of one view to a temporary folder, with ids in another order; searches use one thread."""
    (view,) = passages.views
    execution = Execution(workers=1, threads=1, device="cpu")
    with tempfile.TemporaryDirectory() as name, session(Session(Store(Path(name) / "store"), execution)):
        folder = Path(name) / "vectors"
        for shard, start in enumerate(range(0, len(passages), ROWS)):
            write_shard(folder, shard, passages.rows(start, min(start + ROWS, len(passages))))
        (folder / VECTORS_JSON).write_text(json.dumps({"views": {view: 1.0}, "exact_match": False}))
        ids = [f"p{row}" for row in range(len(passages))]
        yield (
            StoredVectors(folder, view),
            PassageIndex.of(pa.table({"passage_id": ids, "doc_id": ids})),
        )
