"""One corpus of what several generators wrote for the same passages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, model_validator

from storage.artifact import Artifact
from storage.rows import parts, write_table
from storage.settings import Settings
from storage.tables import PseudoQueries
from tasks.stage import stage


class Joining(Settings):
    """What each generator wrote."""

    queries_per_passage: list[int] = Field(min_length=2)
    """Of each, in their order: whose ranks follow those of the generators before it."""

    @model_validator(mode="after")
    def _each_wrote_some(self) -> Joining:
        if min(self.queries_per_passage) < 1:
            raise ValueError(f"queries_per_passage: expected 1 or more of each, found {self.queries_per_passage}")
        return self


@stage(version=1, table=PseudoQueries)
def join_queries(out: Path, corpora: list[Artifact[PseudoQueries]], *, settings: Joining) -> None:
    """Write the queries of all generators, passage by passage; they have files of the same passages each."""
    for paths in zip(*(parts(corpus.path) for corpus in corpora), strict=True):
        tables = [pq.read_table(path).cast(PseudoQueries.schema) for path in paths]
        passages = [_passages(*each) for each in zip(paths, tables, settings.queries_per_passage, strict=True)]
        for path, ids in zip(paths, passages, strict=True):
            if not ids.equals(passages[0]):
                raise ValueError(f"{path}: expected queries of the passages of {paths[0]}, in their order")
        places = [np.arange(len(rows)) // n for rows, n in zip(tables, settings.queries_per_passage, strict=True)]
        firsts = np.cumsum([0, *settings.queries_per_passage[:-1]])
        ranked = pa.concat_tables(_ranked(*each) for each in zip(tables, firsts, strict=True))
        order = np.concatenate(places).argsort(kind="stable")
        write_table(out, PseudoQueries, ranked.take(order), paths[0].stem)


def _passages(path: Path, rows: pa.Table, queries: int) -> pa.Array:
    """The ids of a file's passages, each of which has so many rows."""
    ids = rows["passage_id"].combine_chunks()
    if len(ids) % queries or not ids[queries - 1 :: queries].equals(ids[::queries]):
        raise ValueError(f"{path}: expected {queries} rows of each passage")
    return ids[::queries]


def _ranked(rows: pa.Table, first: int) -> pa.Table:
    """The same with ranks from `first` on."""
    place, field = rows.schema.get_field_index("rank"), PseudoQueries.schema.field("rank")
    return rows.set_column(place, field, pa.array(rows["rank"].to_numpy() + first, pa.int32()))
