"""Files of other tools become a corpus: each format, in any order, all or nothing."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from storage.artifact import Artifact, source_of
from storage.errors import UserError
from storage.imports import pseudo_query_files
from storage.rows import read_rows
from storage.tables import Passages, PseudoQueries, passage_sha256
from tasks.pseudo_queries import import_queries as module
from tasks.pseudo_queries.import_queries import Importing, import_queries
from tests.tasks.corpora import passage, pseudo_query

PASSAGES = [passage(f"d{n}#{m}", f"text {n} {m}", title="T") for n in range(7) for m in range(3)]


@pytest.fixture
def passages(written: Any, monkeypatch: pytest.MonkeyPatch) -> Artifact[Passages]:
    monkeypatch.setattr(module, "PASSAGES_PER_PART", 4)
    monkeypatch.setattr(module, "QUERIES_PER_BLOCK", 3)
    artifact: Artifact[Passages] = written(Passages, PASSAGES)
    return artifact


@pytest.fixture
def imported(passages: Artifact[Passages], run_stage: Any, store: Any) -> Any:
    def run(path: Path) -> list[dict[str, Any]]:
        file = source_of(path, pseudo_query_files.files(path))
        artifact = run_stage(import_queries, passages=passages, file=file, settings=Importing(name="others"))
        return list(read_rows(artifact, PseudoQueries))

    return run


def queries_of(rows: Sequence[dict[str, Any]]) -> list[tuple[str, int, str]]:
    return [(row["passage_id"], row["rank"], row["query"]) for row in rows]


def write_lines(path: Path, *values: Any) -> Path:
    text = "".join((value if isinstance(value, str) else json.dumps(value)) + "\n" for value in values)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def predicted(passage_id: str, *queries: str) -> dict[str, Any]:
    return {"id": passage_id, "predicted_queries": list(queries)}


def write_beir(folder: Path, queries: Sequence[tuple[str, str]], qrels: Sequence[tuple[str, str]]) -> Path:
    (folder / "qgen-qrels").mkdir(parents=True)
    write_lines(folder / "qgen-queries.jsonl", *({"_id": name, "text": text, "metadata": {}} for name, text in queries))
    rows = ["query-id\tcorpus-id\tscore", *(f"{name}\t{passage_id}\t1" for name, passage_id in qrels)]
    write_lines(folder / "qgen-qrels" / "train.tsv", *rows)
    return folder


def test_rows_say_whose_they_are(imported: Any, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "d2q.jsonl", predicted("d0#1", "what is it?", " "))

    first, second = imported(file)

    assert first == {
        "passage_id": "d0#1", "doc_id": "d0", "passage_sha256": passage_sha256("T text 0 1"), "rank": 0,
        "query": "what is it?", "generator": "others", "revision": source_of(file, [file]).key, "ledger": "", "seed": 0,
        "draw": 0, "round_trip": None, "relevance": None, "kept": True, "reason": "",
    }  # fmt: skip
    assert (second["query"], second["kept"], second["reason"]) == ("", False, "empty")


@pytest.mark.parametrize("name", ["d2q.jsonl", "d2q.json", "d2q.jsonl.gz"])
def test_passages_keep_their_order_and_queries_the_files(name: str, imported: Any, tmp_path: Path) -> None:
    ids = [row["passage_id"] for row in PASSAGES]
    inputs = {passage_id: [f"q{i} of {passage_id}" for i in range(n % 4)] for n, passage_id in enumerate(ids)}
    file = write_lines(
        tmp_path / name, *(predicted(passage_id, *inputs[passage_id]) for passage_id in sorted(inputs, reverse=True))
    )

    assert queries_of(imported(file)) == [
        (passage_id, rank, query) for passage_id, queries in inputs.items() for rank, query in enumerate(queries)
    ]


def test_a_table_of_columns_may_return_to_a_passage(imported: Any, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "q.tsv", "d6#2\tlast", "d0#0\tone\r", "d3#1\tü\u2028?", "d0#0\ttwo", "d0#0\tone")

    assert queries_of(imported(file)) == [
        ("d0#0", 0, "one"), ("d0#0", 1, "two"), ("d0#0", 2, "one"), ("d3#1", 0, "ü\u2028?"), ("d6#2", 0, "last"),
    ]  # fmt: skip


def test_a_folder_of_beir_may_have_several_passages_a_query(imported: Any, tmp_path: Path) -> None:
    queries, qrels = [("genQ1", "one"), ("genQ2", "two")], [("genQ1", "d1#0"), ("genQ1", "d0#0"), ("genQ2", "d0#0")]

    assert queries_of(imported(write_beir(tmp_path / "gpl", queries, qrels))) == [
        ("d0#0", 0, "one"), ("d0#0", 1, "two"), ("d1#0", 0, "one"),
    ]  # fmt: skip


def test_the_plain_one_of_two_files_of_queries_is_read(imported: Any, tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "beir", [("q1", "plain")], [("q1", "d0#0")])
    write_lines(folder / "qgen-queries.jsonl.gz", {"_id": "q1", "text": "gzipped"})

    assert [query for _, _, query in queries_of(imported(folder)) if query] == ["plain"]


def test_the_plain_one_of_two_files_of_lines_is_read(imported: Any, tmp_path: Path) -> None:
    for name, query in (("all.jsonl", "plain"), ("all.jsonl.gz", "gzipped")):
        write_lines(tmp_path / name, {"id": "d0#0", "predicted_queries": [query]})

    assert [query for _, _, query in queries_of(imported(tmp_path)) if query] == ["plain"]


def test_our_table_keeps_scores_and_what_was_dropped(imported: Any, written: Any) -> None:
    digest = passage_sha256("T text 0 0")
    rows = [
        pseudo_query("d0#0", 0, "far", passage_sha256=digest, round_trip=0, kept=False, reason="round trip"),
        pseudo_query("d0#0", 4, "near", passage_sha256=digest, round_trip=1, relevance=0.5),
        pseudo_query("d0#0", 5, "", passage_sha256=digest),
    ]
    kept = ("query", "round_trip", "relevance", "kept", "reason", "generator", "revision", "ledger", "seed", "draw")

    results = imported(written(PseudoQueries, rows).path)

    assert [{name: row[name] for name in kept} for row in results] == [
        {name: row[name] for name in kept} for row in rows
    ]
    assert [row["rank"] for row in results] == [0, 1, 2]


def test_names_the_first_unknown_passages_and_how_many_there_are(imported: Any, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "q.tsv", "d0#0\tfine", *(f"x{n}\tquery" for n in range(1500)))

    with pytest.raises(UserError) as error:
        imported(file)

    assert str(error.value).startswith("1,500 queries are for passages that are not in passages/")
    assert f": {file} line 2: x0; {file} line 3: x1; {file} line 4: x2; name passages of" in str(error.value)


def test_says_what_to_do_with_queries_of_whole_documents(imported: Any, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "q.tsv", "d3\tquery")

    with pytest.raises(UserError, match=r"d3 is a document, whose passages are called d3#0 .*max_tokens: null"):
        imported(file)


@pytest.mark.parametrize(
    ("name", "lines", "expected"),
    [
        ("a.jsonl", [predicted("d0#0", "a"), predicted("d1#0", "b"), predicted("d0#0", "c", "d")],
         "1 passages have a second list of queries: FILE line 3: d0#0; keep one list a passage"),
        ("a.jsonl", [predicted("d0#0", "a"), '{"id": "d0#1", "predicted'], "FILE line 2: not valid JSON"),
        ("a.jsonl", [{"id": "d0#0", "queries": []}],
         "FILE line 1: expected a list in the field 'predicted_queries'; the fields are id, queries"),
        ("a.jsonl", [{"id": "d0#0", "predicted_queries": ["a", 1]}],
         "FILE line 1: the field 'predicted_queries' must be text, found 1"),
        ("a.jsonl", ['{"id": "d0#0", "predicted_queries": ["half \\ud800"]}'],
         "FILE line 1: the field 'predicted_queries' has half a surrogate pair at character 5"),
        ("a.jsonl", ['{"id": "d0#0\\u0000", "predicted_queries": []}'],
         "FILE line 1: expected an id without control characters, found 'd0#0\\x00'"),
        ("a.tsv", ["d0#0\ta", "a text, not an id\ta query"], "FILE line 2: expected an id without white space"),
        ("a.tsv", ["d0#0\ta\tb"], "FILE line 1: expected passage id, tab, query; found 3 columns: 'd0#0\\ta\\tb'"),
        ("a.jsonl", [predicted("d0#0")], "FILE: has no queries"),
        ("a.jsonl", [predicted("d0#0", "a"), predicted("nobody")], "1 queries are for passages that are not in"),
        ("a.jsonl", [predicted("d0#0"), predicted("d0#0", "a")], "1 passages have a second list of queries"),
        ("a.csv", ["d0#0,query"], "FILE: expected .jsonl"),
        ("a.parquet", ["no Parquet"], "FILE: not a Parquet file of PseudoQueries"),
    ],
)  # fmt: skip
def test_takes_nothing_of_a_file_that_is_wrong(
    name: str, lines: list[Any], expected: str, imported: Any, tmp_path: Path
) -> None:
    file = write_lines(tmp_path / name, *lines)

    with pytest.raises(UserError) as error:
        imported(file)

    assert str(error.value).startswith(expected.replace("FILE", str(file)))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("queries", "qrels", "expected"),
    [
        ([("g1", "a"), ("g2", "b")], [("g2", "d0#0"), ("g1", "d0#0")],
         "train.tsv line 2: expected the passage of g1 (FOLDER/qgen-queries.jsonl line 1), found that of g2"),
        ([("g1", "a"), ("g2", "b")], [("g1", "d0#0")], "qgen-queries.jsonl line 2: "),
        ([("g1", "a")], [("g1", "d0#0"), ("g2", "d0#0")], "train.tsv line 3: expected the passage of the end of the"),
    ],
)  # fmt: skip
def test_a_folder_of_beir_must_be_whole(queries: Any, qrels: Any, expected: str, imported: Any, tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "gpl", queries, qrels)

    with pytest.raises(UserError) as error:
        imported(folder)

    assert expected.replace("FOLDER", str(folder)) in str(error.value)


def test_our_table_must_be_of_the_same_texts(imported: Any, written: Any) -> None:
    with pytest.raises(UserError, match="queries of passage d0#0 were written for another text"):
        imported(written(PseudoQueries, [pseudo_query("d0#0", 0, "of another text")]).path)


def test_an_import_that_was_killed_begins_anew(
    passages: Artifact[Passages], store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = write_lines(tmp_path / "d2q.jsonl", predicted("d0#0", "a"), predicted("d6#0", "b")), tmp_path / "out"
    source = source_of(file, [file])

    def killed(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as at_work:
        at_work.setattr(module, "write_rows", killed)
        with pytest.raises(KeyboardInterrupt):
            import_queries.body(out, passages, source, settings=Importing(name="n"))
    import_queries.body(out, passages, source, settings=Importing(name="n"))

    assert queries_of(list(read_rows(Artifact("i", "0", out), PseudoQueries))) == [("d0#0", 0, "a"), ("d6#0", 0, "b")]
