"""Corpora in other tools' formats: what those read, what an import reads back, and a folder that is whole or absent."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from flows.queries import formats
from flows.queries.export import FORMATS, export_queries
from storage.artifact import Artifact, source_of
from storage.datasets import beir
from storage.errors import UserError
from storage.files import writing_folder
from storage.imports import pseudo_query_files
from storage.pseudo_query_contract import ExportedQueries
from storage.rows import read_rows, write_rows
from storage.store.store import Store
from storage.tables import Passages, PseudoQueries, passage_sha256, passage_text
from tasks.pseudo_queries.import_queries import Importing, import_queries
from tests.storage.published import publish
from tests.tasks.corpora import passage, pseudo_query

TEXTS = [
    passage("d0#0", "Sun.\u2028 A\x1c star,\x85 \u201cquoted\u201d \r\n\t end", title='T "t"'),
    passage("d0#1", "No query was written for it."),
    passage("d1#0", "漢字 \x00 \U0001f600", title=""),
    passage("d2#0", "", title="Only a title"),
]
WRITTEN = {
    "d0#0": ["what is the sun?", "sun\u2028 star", ""],
    "d1#0": ["漢字?"],
    "d2#0": ['a "quoted" title', "what is the sun?", "dropped one"],
}


AT = "2026-01-01T00:00:00+00:00"


@dataclass(frozen=True)
class Corpus:
    name: str
    at: str
    queries: Artifact[PseudoQueries]
    passages: Artifact[Passages]


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    store = Store(tmp_path / "store")
    digests = {row["passage_id"]: passage_sha256(passage_text(row["title"], row["text"])) for row in TEXTS}
    rows = [
        pseudo_query(passage_id, rank, query, passage_sha256=digests[passage_id])
        for passage_id, queries in WRITTEN.items()
        for rank, query in enumerate(queries)
    ]
    rows[-1] |= {"kept": False, "reason": "relevance", "relevance": -1.5}
    passages = published(store, "split_corpus", Passages, TEXTS, {"source": "source/0"})
    queries = published(store, "generate_queries", PseudoQueries, rows, {"passages": passages.reference})
    return Corpus("tiny@2", AT, queries, passages)


def published(store: Store, stage: str, table: Any, rows: Any, inputs: dict[str, Any]) -> Artifact[Any]:
    write_rows(store.begin(stage, "new"), table, rows)
    return publish(store, stage, settings={"seed": 42}, inputs=inputs, rows=len(rows), schema=table.__name__)


def kept(dropped: bool = False) -> dict[str, list[str]]:
    def of(passage_id: str) -> list[str]:
        return [query for query in WRITTEN.get(passage_id, []) if query and (dropped or "dropped" not in query)]

    return {row["passage_id"]: of(row["passage_id"]) for row in TEXTS}


def json_lines(path: Path) -> list[Any]:
    with path.open(encoding="ascii") as file:  # text mode takes other ends of lines than ours for one too
        return [json.loads(line) for line in file]


def test_doct5query_has_a_line_a_passage(corpus: Corpus, tmp_path: Path) -> None:
    export_queries(corpus, "doct5query", tmp_path / "out", dropped=False)

    rows = json_lines(tmp_path / "out" / "d2q.jsonl")

    assert {row["id"]: row["predicted_queries"] for row in rows} == kept()
    assert [row["id"] for row in rows] == [row["passage_id"] for row in TEXTS]


def test_anserini_has_expanded_passages_in_several_files(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "DOCUMENTS_PER_FILE", 2)
    export_queries(corpus, "anserini", tmp_path / "out", dropped=True)

    files = sorted((tmp_path / "out").rglob("docs*.json"))

    assert [file.relative_to(tmp_path / "out").as_posix() for file in files] == [
        "collection/docs00.json", "collection/docs01.json",
    ]  # fmt: skip
    assert not list((tmp_path / "out" / "collection").glob("provenance*"))  # Anserini would take it for a document
    rows = {row["id"]: row["contents"] for file in files for row in json_lines(file)}
    assert rows == {
        row["passage_id"]: "\n".join(filter(None, [
            passage_text(row["title"], row["text"]), " ".join(kept(dropped=True)[row["passage_id"]]),
        ]))
        for row in TEXTS
    }  # fmt: skip


def test_beir_is_read_as_its_loader_does_and_by_our_reader(corpus: Corpus, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_queries(corpus, "beir", out, dropped=False)

    # As GenericDataLoader(out, prefix="gen").load(split="train") reads them.
    texts = {row["_id"]: row for row in json_lines(out / "corpus.jsonl")}
    queries = {row["_id"]: row["text"] for row in json_lines(out / "gen-queries.jsonl")}
    with (out / "gen-qrels" / "train.tsv").open(encoding="utf-8") as file:
        _, *qrels = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_MINIMAL)

    assert {name: (row["title"], row["text"]) for name, row in texts.items()} == {
        row["passage_id"]: (row["title"], row["text"]) for row in TEXTS
    }
    assert {text: [queries[q] for q, p, score in qrels if p == text and int(score) == 1] for text in texts} == kept()
    assert [(row["doc_id"], row["title"], row["text"]) for row in beir.texts(out, "corpus")] == [
        (row["passage_id"], row["title"], row["text"]) for row in TEXTS
    ]
    assert {row["query_id"]: row["text"] for row in beir.queries(out, "gen-train")} == queries
    assert [(row["query_id"], row["doc_id"]) for row in beir.qrels(out, "gen-train")] == [(q, p) for q, p, _ in qrels]


def test_beir_refuses_an_id_that_its_loader_cannot_read(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    passages = published(store, "split_corpus", Passages, [passage('"a', "text")], {})
    queries = published(store, "generate_queries", PseudoQueries, [pseudo_query('"a', 0, "q")], {})

    with pytest.raises(UserError, match='"a: BEIR cannot read an id that begins with a quotation mark'):
        export_queries(Corpus("x", AT, queries, passages), "beir", tmp_path / "out", dropped=False)
    assert not (tmp_path / "out").exists()


def test_datasets_and_pandas_read_the_table_in_one_line(corpus: Corpus, tmp_path: Path) -> None:
    pandas, datasets = pytest.importorskip("pandas"), pytest.importorskip("datasets")
    out, cache = str(tmp_path / "out"), str(tmp_path / "cache")
    export_queries(corpus, "datasets", Path(out), dropped=True)

    added = {"built_at": datetime.fromisoformat(AT), "recipe_key": corpus.queries.reference}
    rows = [row | added for row in read_rows(corpus.queries, PseudoQueries)]

    assert datasets.load_dataset(out, cache_dir=cache)["train"].to_list() == rows
    assert datasets.load_dataset(out, "passages", cache_dir=cache)["train"].to_list() == TEXTS
    assert pandas.read_parquet(f"{out}/queries")["query"].tolist() == [row["query"] for row in rows]


def test_duckdb_reads_the_table_in_one_line(corpus: Corpus, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    export_queries(corpus, "datasets", tmp_path / "out", dropped=True)

    results = duckdb.sql(f"SELECT query FROM '{tmp_path}/out/queries/*.parquet' WHERE reason = 'relevance'").fetchall()

    assert results == [("dropped one",)]


def test_the_card_says_what_every_column_means(corpus: Corpus, tmp_path: Path) -> None:
    export_queries(corpus, "datasets", tmp_path / "out", dropped=False)

    shown = re.findall(r"^\| (\w+) \|", (tmp_path / "out" / "README.md").read_text(), re.MULTILINE)
    assert shown[1:] == ExportedQueries.schema.names


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("name", ["doct5query", "beir", "datasets"])
@pytest.mark.parametrize("dropped", [False, True])
def test_what_was_exported_can_be_imported(name: str, dropped: bool, corpus: Corpus, tmp_path: Path) -> None:
    provenance = export_queries(corpus, name, tmp_path / "out", dropped)
    file = source_of(tmp_path / "out", pseudo_query_files.files(tmp_path / "out"))

    import_queries.body(tmp_path / "imported", corpus.passages, file, settings=Importing(name="t5"))

    rows = list(read_rows(Artifact("import_queries", "0", tmp_path / "imported"), PseudoQueries))

    read_back = [(row["passage_id"], row["doc_id"], row["passage_sha256"], row["query"]) for row in rows]
    assert read_back == [
        (row["passage_id"], row["doc_id"], row["passage_sha256"], row["query"])
        for row in read_rows(corpus.queries, PseudoQueries)
        if row["kept"] or (dropped and (row["query"] or name == "datasets"))
    ]
    assert provenance["counts"]["queries"] == len(rows) == sum(row["queries"] for row in provenance["written_by"])
    if name == "datasets":
        assert [row["reason"] for row in rows] == (["", "", "empty", "", "", "", "relevance"] if dropped else [""] * 5)


@pytest.mark.parametrize("name", FORMATS)
def test_equal_exports_are_equal_bytes_and_say_where_they_are_from(name: str, corpus: Corpus, tmp_path: Path) -> None:
    provenance = export_queries(corpus, name, tmp_path / "one", dropped=False)
    (tmp_path / "two").mkdir()  # an empty folder may be there
    export_queries(corpus, name, tmp_path / "two", dropped=False)

    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "two")
    assert json.loads((tmp_path / "one" / "provenance.json").read_text()) == provenance
    assert provenance["counts"] == {
        "passages": 4, "queries": 5, "kept": 5, "dropped: empty": 1, "dropped: relevance": 1,
    }  # fmt: skip
    assert provenance["written_by"] == [{"generator": "t5", "revision": "r1", "ledger": "l1", "queries": 5}]
    assert list(provenance["made_of"]) == [corpus.queries.reference, corpus.passages.reference]
    assert provenance["made_of"][corpus.queries.reference]["settings"] == {"seed": 42}


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_refuses_a_folder_in_use_a_format_that_is_none_and_queries_of_other_passages(
    corpus: Corpus, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    others = published(Store(tmp_path / "others"), "split_corpus", Passages, TEXTS[:2], {})

    with pytest.raises(UserError, match="full: expected a folder that does not exist yet, or an empty one"):
        export_queries(corpus, "beir", tmp_path / "full", dropped=False)
    with pytest.raises(UserError, match="csv: there is no such format; expected doct5query, anserini, beir, datasets"):
        export_queries(corpus, "csv", tmp_path / "out", dropped=False)
    with pytest.raises(ValueError, match="d1#0: the queries are of other passages than split_corpus/"):
        export_queries(Corpus("x", AT, corpus.queries, others), "beir", tmp_path / "out", dropped=False)
    assert not (tmp_path / "out").exists()


OF_ANY_LOCALE = """
import locale, sys
from pathlib import Path
from flows.queries.formats import beir
assert locale.getpreferredencoding(False).lower() != "utf-8"
passage = {"passage_id": "gr\\u00fcn", "title": "", "text": ""}
beir(Path(sys.argv[1]), iter([(passage, [{"rank": 0, "query": "\\u00fc?"}])]))
"""


def test_files_are_utf8_in_any_locale(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUTF8"}
    environment |= {"LC_ALL": "C", "LANG": "C", "PYTHONCOERCECLOCALE": "0"}

    subprocess.run([sys.executable, "-X", "utf8=0", "-c", OF_ANY_LOCALE, str(tmp_path)], env=environment, check=True)

    qrels = "query-id\tcorpus-id\tscore\ngrün/0\tgrün\t1\n"
    assert (tmp_path / "gen-qrels" / "train.tsv").read_bytes() == qrels.encode()


WRITER = """
import sys, time
from pathlib import Path
from storage.files import writing_folder
with writing_folder(Path(sys.argv[1])) as folder:
    (folder / "deep").mkdir()
    (folder / "deep" / "half").write_text("half")
    print("half", flush=True)
    time.sleep(60)
"""


def test_a_killed_export_leaves_no_folder_and_is_no_hindrance(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(out)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"half\n"
        with pytest.raises(UserError, match="another process is writing it"), writing_folder(out):
            pass
        process.send_signal(signal.SIGKILL)
    assert not out.exists()

    with writing_folder(out) as folder:
        (folder / "whole").write_text("whole")
        written = folder.stat().st_ino

    assert out.stat().st_ino == written  # renamed, not copied
    assert bytes_of(out) == {"whole": b"whole"}
    assert list(tmp_path.iterdir()) == [out]
