"""Versions of pseudo-queries, read when they are needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flows.queries.versions import Version, stored_version
from pretrieve.settings import Store, store_folder
from storage.errors import UserError, quoted
from storage.rows import num_rows, parts, read_blocks, read_table
from storage.store.store import Store as OpenStore
from storage.tables import PseudoQueries

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


@dataclass(frozen=True)
class PseudoQueryCorpus:
    """The pseudo-queries of a version. Nothing is read before rows are requested."""

    version: Version

    @property
    def name(self) -> str:
        """The version's name, such as `small/beir@2`."""
        return self.version.name

    def __len__(self) -> int:
        return num_rows(self.version.queries.path)

    def to_arrow(self, columns: list[str] | None = None) -> pa.Table:
        """Return all rows: `queries("quickstart").to_arrow(["passage_id", "query"])`."""
        return read_table(self.version.queries, PseudoQueries, columns)

    def to_pandas(self, columns: list[str] | None = None) -> pd.DataFrame:
        """Return all rows as a data frame: `queries("quickstart").to_pandas().query("kept")`."""
        frame: Any = self.to_arrow(columns).to_pandas()
        return frame

    def batches(self, columns: list[str] | None = None) -> Iterator[pa.Table]:
        """Yield the rows in blocks that fit into memory: `for block in queries("msmarco@1").batches(): …`."""
        for file in parts(self.version.queries.path):
            yield from read_blocks(file, PseudoQueries, columns)


def queries(version: str, *, store: Store = None) -> PseudoQueryCorpus:
    """Return a version of pseudo-queries: RECIPE (its newest), RECIPE@NUMBER, or the beginning of a key.

    pretrieve.queries("small/beir@2").to_pandas()
    """
    if not isinstance(version, str):
        raise UserError(f"version: expected a text such as 'small/beir@2', found {quoted(version)}")
    return PseudoQueryCorpus(stored_version(version, OpenStore.open(store_folder(store))))
