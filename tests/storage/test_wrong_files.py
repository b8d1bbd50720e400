"""Rows of BEIR's files, negatives and pseudo-queries that cannot be: one line that names file and row."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.datasets import beir
from storage.imports import negative_files, pseudo_query_files
from tests.storage.complaints import complaint

LONG = "x" * 1_000_000
NESTED = "[" * 900 + "]" * 900  # within what Python's JSON reads, and too deep for what shows a value


def of_corpus(folder: Path, line: str) -> Iterable[Any]:
    (folder / "corpus.jsonl").write_text('{"_id": "d0", "text": "a"}\n' + line)
    return beir.texts(folder, "corpus")


def of_queries(folder: Path, line: str) -> Iterable[Any]:
    (folder / "queries.jsonl").write_text('{"_id": "q0", "text": "a"}\n' + line)
    (folder / "qrels").mkdir()
    (folder / "qrels" / "dev.tsv").touch()
    return [*beir.queries(folder, "dev"), *beir.answers(folder, "dev")]


def of_qrels(folder: Path, line: str) -> Iterable[Any]:
    (folder / "qrels").mkdir()
    (folder / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\n" + line)
    return beir.qrels(folder, "dev")


def of_negatives(folder: Path, line: str) -> Iterable[Any]:
    (folder / "negatives.jsonl").write_text('{"qid": 1, "pos": [2], "neg": {"bm25": [3]}}\n' + line)
    return negative_files.read(folder / "negatives.jsonl")


def of_predicted(folder: Path, line: str) -> Iterable[Any]:
    (folder / "queries.jsonl").write_text('{"id": "d0", "predicted_queries": ["a"]}\n' + line)
    return pseudo_query_files.read(folder / "queries.jsonl")


ROWS = [
    (of_corpus, f'{{"_id": "{LONG}", "text": "a"}}', "id of 1,000,000 bytes"),
    (of_corpus, '{"_id": "a\\ud800", "text": "a"}', "half a surrogate pair"),
    (of_corpus, f'{{"_id": {NESTED}, "text": "a"}}', "'_id' must be text"),
    (of_corpus, f'{{"_id": "{LONG} {LONG}", "text": "a"}}', "without white space"),
    (of_corpus, f'{{"_id": "d1", "text": {"1" * 5000}}}', "not valid JSON"),
    (of_corpus, '{"_id": "d1", "text": NaN}', "must be text"),
    (of_queries, f'{{"_id": "q1", "text": "a", "answers": {{"a": {NESTED}}}}}', "answers must be a list"),
    (of_queries, f'{{"_id": "q1", "text": "a", "answers": [{NESTED}]}}', "must be text"),
    (of_qrels, f"q1\td1\t{'1' * 5000}\n", "expected a whole number"),
    (of_qrels, f"q1\t{LONG}\t1\n", "id of 1,000,000 bytes"),
    (of_qrels, "q1\td1\t١\n", "expected a whole number"),
    (of_qrels, "q1\td1\t1_0\n", "expected a whole number"),
    (of_qrels, "q1\td1\tnan\n", "expected a whole number"),
    (of_negatives, '{"qid": 1, "pos": [2], "neg": {"ce": [{"pid": 3, "ce-score": NaN}]}}', "finite"),
    (of_negatives, '{"qid": 1, "pos": [2], "neg": {"ce": [{"pid": 3, "ce-score": 1e999}]}}', "finite"),
    (of_negatives, '{"qid": 1, "pos": [{"pid": 2, "ce-score": -Infinity}], "neg": {}}', "finite"),
    (of_negatives, f'{{"qid": 1, "pos": [{{"pid": 2, "ce-score": {"1" * 400}}}], "neg": {{}}}}', "finite"),
    (of_negatives, '{"qid": 1, "pos": [true], "neg": {}}', "expected a passage's id"),
    (of_negatives, '{"qid": true, "pos": [], "neg": {}}', "expected the fields qid"),
    (of_negatives, '{"qid": "a\\ud800", "pos": [], "neg": {"bm25": [1]}}', "half a surrogate pair"),
    (of_negatives, '{"qid": 1, "pos": [], "neg": {"bm25": ["\\ud800"]}}', "half a surrogate pair"),
    (of_negatives, '{"qid": 1, "pos": [], "neg": {"\\ud800": [1]}}', "half a surrogate pair"),
    (of_negatives, f'{{"qid": 1, "pos": [], "neg": {{"bm25": {NESTED[1:-1]}}}}}', "expected a passage's id"),
    (of_negatives, f'{{"qid": 1, "pos": [], "neg": {{"bm25": {{"a": {NESTED}}}}}}}', "expected a list of"),
    (of_predicted, f'{{"id": "d1", "predicted_queries": [{NESTED}]}}', "must be text"),
    (of_predicted, '{"id": "d1", "predicted_queries": ["\\ud800"]}', "half a surrogate pair"),
    (of_predicted, f'{{"id": "{LONG}", "predicted_queries": ["a"]}}', "id of 1,000,000 bytes"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("read", "line", "said"), ROWS, ids=lambda value: getattr(value, "__name__", ascii(value)[:40])
)
def test_a_row_that_cannot_be_is_named(tmp_path: Path, read: Any, line: str, said: str) -> None:
    message = complaint(lambda: read(tmp_path, line))

    assert said in message
    assert "line 2" in message
    assert len(message) < 1000


GIVEN = {
    "passage_id": ["d0"], "passage_sha256": [""], "rank": [0], "query": ["a"], "round_trip": [None], "relevance": [1.0],
    "reason": [""], "generator": [""], "revision": [""], "ledger": [""], "seed": [0], "draw": [0],
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"relevance": [float("nan")]}, "row 1: .*finite number as relevance"),
        ({"relevance": [float("inf")]}, "row 1: .*finite number as relevance"),
        ({"relevance": ["high"]}, "not a Parquet file of PseudoQueries"),
        ({"passage_id": [None]}, "not a Parquet file of PseudoQueries.*passage_id"),
        ({"query": [None]}, "not a Parquet file of PseudoQueries.*query"),
        ({"rank": [None]}, "not a Parquet file of PseudoQueries.*rank"),
        ({"passage_id": [["d0"]]}, "not a Parquet file of PseudoQueries"),
        ({"rank": [{"a": 1}]}, "not a Parquet file of PseudoQueries"),
        ({"seed": [2**62]}, None),
        ({"rank": [2**62]}, "not a Parquet file of PseudoQueries"),
        ({"query": [b"\xff"]}, "not a Parquet file of PseudoQueries"),
    ],
    ids=str,
)
def test_a_table_of_queries_that_cannot_be_is_named(tmp_path: Path, changed: dict[str, Any], said: str | None) -> None:
    pq.write_table(pa.table(GIVEN | changed), tmp_path / "queries.parquet")

    if said is None:
        assert len(list(pseudo_query_files.read(tmp_path / "queries.parquet"))) == 1
        return

    assert re.search(said, message := complaint(lambda: pseudo_query_files.read(tmp_path / "queries.parquet"))), message
