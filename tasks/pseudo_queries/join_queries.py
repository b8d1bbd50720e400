"""Join the pseudo-queries of several generators for the same passages into one corpus."""

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
    """The numbers of queries of the generators."""

    queries_per_passage: list[int] = Field(min_length=2)
    """One number for each generator, in their order; its ranks follow those of the generators before it."""

    @model_validator(mode="after")
    def _at_least_one_each(self) -> Joining:
        if min(self.queries_per_passage) < 1:
            raise ValueError(
                f"queries_per_passage: expected at least 1 of each generator, found {self.queries_per_passage}"
            )
        return self


@stage(version=1, table=PseudoQueries)
def join_queries(out: Path, corpora: list[Artifact[PseudoQueries]], *, settings: Joining) -> None:
    """Write the queries of all generators, passage by passage; the files of all corpora have the same passages."""
    for paths in zip(*(parts(corpus.path) for corpus in corpora), strict=True):
        tables = [pq.read_table(path).cast(PseudoQueries.schema) for path in paths]
        passages = [_passages(*corpus) for corpus in zip(paths, tables, settings.queries_per_passage, strict=True)]
        for path, ids in zip(paths, passages, strict=True):
            if not ids.equals(passages[0]):
                raise ValueError(f"{path}: expected queries of the passages of {paths[0]}, in their order")
        passage_numbers = [
            np.arange(len(rows)) // n for rows, n in zip(tables, settings.queries_per_passage, strict=True)
        ]
        firsts = np.cumsum([0, *settings.queries_per_passage[:-1]])
        ranked = pa.concat_tables(_ranked(*corpus) for corpus in zip(tables, firsts, strict=True))
        order = np.concatenate(passage_numbers).argsort(kind="stable")
        write_table(out, PseudoQueries, ranked.take(order), paths[0].stem)


def _passages(path: Path, rows: pa.Table, queries: int) -> pa.Array:
    """Return the ids of a file's passages, which have `queries` rows each."""
    ids = rows["passage_id"].combine_chunks()
    if len(ids) % queries or not ids[queries - 1 :: queries].equals(ids[::queries]):
        raise ValueError(f"{path}: expected {queries} rows of each passage")
    return ids[::queries]


def _ranked(rows: pa.Table, first: int) -> pa.Table:
    """Return the rows with ranks that begin at `first`."""
    rank_column, field = rows.schema.get_field_index("rank"), PseudoQueries.schema.field("rank")
    return rows.set_column(rank_column, field, pa.array(rows["rank"].to_numpy() + first, pa.int32()))
