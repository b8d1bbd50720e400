"""Files of collections, negatives and pseudo-queries of any content are read, or refused in one line."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from flows.chain.collection import documents, topics
from flows.recipe.sections import Dataset
from storage.imports import negative_files, pseudo_query_files
from storage.store.store import Store
from tasks.pseudo_queries.generators.pair_files import read_pairs
from tasks.session import Execution, Session, session
from tests.fuzz.odd import SECONDS, check, edited, fuzz, odd_numbers, odd_texts, odd_values
from tests.in_process import ended_by

FILES: Mapping[str, bytes] = {
    "corpus.jsonl": b"".join(b'{"_id": "d%d", "title": "t", "text": "Text %d."}\n' % (n, n) for n in range(4)),
    "queries.jsonl": b"".join(b'{"_id": "q%d", "text": "number %d", "answers": ["a"]}\n' % (n, n) for n in range(3)),
    "qrels/dev.tsv": b"query-id\tcorpus-id\tscore\n" + b"".join(b"q%d\td%d\t1\n" % (n, n) for n in range(3)),
}
NEGATIVES = b'{"qid": 1, "pos": [2], "neg": {"bm25": [3, "4"], "ce": [{"pid": "5", "ce-score": 0.5}]}}\n' * 3
PREDICTED = b'{"id": "d0", "predicted_queries": ["a", "b"]}\n{"id": "d1", "predicted_queries": []}\n'


def odd_row(fields: tuple[str, ...]) -> st.SearchStrategy[bytes]:
    """A line with an object of these fields and others, of any values."""
    rows = st.dictionaries(st.sampled_from(fields) | odd_texts, odd_values, max_size=5)
    return rows.map(lambda row: json.dumps(row).encode() + b"\n")


@st.composite
def odd_lines(draw: st.DrawFn, text: bytes, row: st.SearchStrategy[bytes]) -> bytes:
    """A text with a few lines changed, and some rows more."""
    return draw(edited(text) | st.just(text)) + b"".join(draw(st.lists(row, max_size=2)))


def odd_columns(count: int) -> st.SearchStrategy[bytes]:
    """A line of so many columns or others."""
    cell = st.sampled_from(["q0", "d0", "1"]) | odd_texts | odd_numbers.map(str)
    rows = st.lists(cell, min_size=count - 1, max_size=count + 1)
    return rows.map(lambda cells: "\t".join(cells).encode("utf-8", "surrogatepass") + b"\n")


def ingested(folder: Path) -> None:
    """Ingest the collection as a recipe's first stages do."""
    dataset = Dataset(
        reader="beir", path=str(folder), train_split=None, eval_splits=["dev"], description="", fraction=None
    )
    with session(Session(Store(folder / "store"), Execution(workers=1, threads=1))):
        documents(dataset, "corpus")
        topics(dataset, "corpus", "dev", answers=True)


@given(
    st.fixed_dictionaries(
        {
            "corpus.jsonl": odd_lines(FILES["corpus.jsonl"], odd_row(("_id", "title", "text"))),
            "queries.jsonl": odd_lines(FILES["queries.jsonl"], odd_row(("_id", "text", "answers"))),
            "qrels/dev.tsv": odd_lines(FILES["qrels/dev.tsv"], odd_columns(3)),
        }
    ),
    st.sets(st.sampled_from(sorted(FILES)), min_size=1, max_size=2),
)
@fuzz(25)
def test_a_collection(odd: Mapping[str, bytes], chosen: set[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in FILES.items():
            (file := Path(folder, name)).parent.mkdir(exist_ok=True)
            file.write_bytes(odd[name] if name in chosen else text)
        check(ended_by(lambda: ingested(Path(folder)), seconds=SECONDS))


def read_file(name: str, content: bytes, read: Any) -> None:
    """Read all of a file of this name and content."""
    with tempfile.TemporaryDirectory() as folder:
        (file := Path(folder, name)).write_bytes(content)
        check(ended_by(lambda: list(read(file)), seconds=SECONDS))


@given(
    odd_lines(NEGATIVES, odd_row(("qid", "pos", "neg", "pid", "ce-score"))),
    odd_lines(b"1\t2\t3\n4\t5\t6\n", odd_columns(3)),
)
@fuzz(40)
def test_negatives(by_system: bytes, triples: bytes) -> None:
    read_file("negatives.jsonl", by_system, negative_files.read)
    read_file("negatives.tsv", triples, negative_files.read)


@given(
    odd_lines(PREDICTED, odd_row(("id", "predicted_queries"))),
    odd_lines(b"d0\tquery\nd1\tquery\n", odd_columns(2)),
    odd_lines(b'{"passage": "a", "query": "b"}\n', odd_row(("passage", "query"))),
)
@fuzz(30)
def test_pseudo_queries_and_pairs(predicted: bytes, columns: bytes, pairs: bytes) -> None:
    read_file("queries.jsonl", predicted, pseudo_query_files.read)
    read_file("queries.tsv", columns, pseudo_query_files.read)
    read_file("pairs.jsonl", pairs, read_pairs)
    read_file("pairs.tsv", columns, read_pairs)


OURS: Mapping[str, list[Any]] = {
    "passage_id": ["d0", "d1"], "passage_sha256": ["", ""], "rank": [0, 0], "query": ["a", "b"],
    "round_trip": [1, None], "relevance": [1.0, None], "reason": ["", ""], "generator": ["", ""], "revision": ["", ""],
    "ledger": ["", ""], "seed": [0, 0], "draw": [0, 0],
}  # fmt: skip
CELLS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=4) | st.binary()


@given(st.dictionaries(st.sampled_from(sorted(OURS)), st.tuples(CELLS, CELLS), max_size=3), st.integers(0, 3))
@fuzz(30)
def test_tables_of_pseudo_queries(changed: Mapping[str, tuple[Any, Any]], dropped: int) -> None:
    columns = dict(list(OURS.items())[dropped // 3 :])
    for name, cells in changed.items():
        try:
            columns[name] = pa.array(cells).to_pylist()
        except (pa.ArrowException, OverflowError):  # of two types: no column has both
            columns[name] = [cells[0], cells[0]]
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(pa.table(columns), file := Path(folder, "queries.parquet"))
        check(ended_by(lambda: list(pseudo_query_files.read(file)), seconds=SECONDS))
        file.write_bytes(file.read_bytes()[: 100 * dropped] + b"x" + file.read_bytes()[100 * dropped + 1 :])
        check(ended_by(lambda: list(pseudo_query_files.read(file)), seconds=SECONDS))
