"""Partitioned exports: several versions in one folder, as DuckDB and Arrow read them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import duckdb
import pyarrow.dataset
import pytest

from flows.queries import partitions
from flows.queries.export import FORMATS, export_queries
from flows.queries.partitions import export_partition
from storage.errors import UserError
from storage.pseudo_query_contract import CONTRACT, ExportedQueries
from storage.rows import read_rows
from storage.store.store import Store
from storage.tables import Passages, PseudoQueries
from tests.flows.queries.test_export import AT, TEXTS, Corpus, corpus, published
from tests.tasks.corpora import pseudo_query

__all__ = ["corpus"]


def test_versions_are_partitions(corpus: Corpus, tmp_path: Path) -> None:
    first, second = (dataclasses.replace(corpus, name=f"small/tiny@{number}") for number in (1, 2))
    out = tmp_path / "lake"
    export_partition(first, out, dropped=True)
    (out / ".DS_Store").touch()
    (out / "queries" / "version=small%2Ftiny@2" / "half").mkdir(parents=True)  # left by a killed export

    origin = export_partition(second, out, dropped=False)

    rows = [row for row in read_rows(corpus.queries, PseudoQueries) if row["kept"]]
    columns = ", ".join(ExportedQueries.schema.names)
    table = f"read_parquet('{out}/queries/*/*/*.parquet', hive_partitioning = true)"
    shown = duckdb.sql(
        f"SELECT {columns} FROM {table} WHERE version = 'small/tiny@2' ORDER BY passage_id, rank"
    ).to_arrow_table()
    assert [{name: row[name] for name in rows[0]} for row in shown.to_pylist()] == sorted(
        rows, key=lambda row: (row["passage_id"], row["rank"])
    )
    assert set(shown["recipe_key"].to_pylist()) == {corpus.queries.reference}
    assert {moment.isoformat() for moment in shown["built_at"].to_pylist()} == {AT}
    dataset = pyarrow.dataset.dataset(out / "queries", partitioning="hive")
    assert dataset.to_table()["version"].value_counts().to_pylist() == [
        {"values": "small/tiny@1", "counts": 7}, {"values": "small/tiny@2", "counts": 5},
    ]  # fmt: skip
    assert json.loads((out / "provenance" / "small%2Ftiny@2.json").read_text()) == origin
    assert json.loads((out / "contract.json").read_text()) == CONTRACT
    with pytest.raises(UserError, match=r"has small/tiny@2 already; delete provenance/small%2Ftiny@2\.json"):
        export_partition(second, out, dropped=False)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").touch()
    with pytest.raises(UserError, match=r"expected a folder of exported versions, or a new one; it has mine\.txt"):
        export_partition(second, tmp_path / "other", dropped=False)


def test_an_unfinished_version_matches_no_pattern(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"

    def killed(out: Path, name: str, blocks: object) -> None:
        (out / "part.parquet").touch()
        raise KeyboardInterrupt([*(lake / "queries").rglob("*")])

    monkeypatch.setattr(partitions, "_write_by_generator", killed)

    with pytest.raises(KeyboardInterrupt) as raised:
        export_partition(corpus, lake, dropped=False)

    assert raised.value.args == ([],)
    assert not (lake / "provenance").exists()


@pytest.mark.parametrize("name", FORMATS)
def test_every_export_is_checked_by_the_contract(name: str, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    passages = published(store, "split_corpus", Passages, TEXTS, {})
    wrong = published(store, "generate_queries", PseudoQueries, [pseudo_query("d0#0", 0, "sun", seed=-1)], {})
    version = Corpus("tiny@1", AT, wrong, passages)

    with pytest.raises(UserError, match=r"generate_queries/.*: row 1, .* seed: expected at least 0"):
        export_queries(version, name, tmp_path / "out", dropped=False)
    with pytest.raises(UserError, match="seed: expected at least 0"):
        export_partition(version, tmp_path / "out", dropped=False)
    assert not (tmp_path / "out").exists()
