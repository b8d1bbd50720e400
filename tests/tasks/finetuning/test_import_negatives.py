"""Negatives that others mined: both formats, what is chosen of them, and what is never a negative."""

import gzip
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import read_rows
from storage.store.sources import negatives
from storage.tables import Negatives, Passages, Positives, Queries
from tasks.finetuning import import_negatives as module
from tasks.finetuning.import_negatives import ImportedNegatives, import_negatives
from tasks.job import Job
from tests.tasks.corpora import passage

IDS = [str(number) for number in range(60)]
QUERIES = [f"{number}" for number in (900, 7, 31, 5)]
POSITIVES = {"900": ["3"], "7": ["4", "5"], "5": ["59"]}  # 31 has none
ALL: dict[str, Any] = {"systems": None, "per_system": None, "margin": None, "per_query": None, "seed": 1}
Imported = Callable[..., dict[str, list[str]]]
Scores = dict[str, dict[str, float]]


@pytest.fixture
def labelled(written: Any) -> tuple[Artifact[Queries], Artifact[Positives]]:
    queries = written(Queries, [{"query_id": query_id, "text": f"what is {query_id}?"} for query_id in QUERIES])
    rows = [{"query_id": q, "passage_id": p, "doc_id": p} for q, results in POSITIVES.items() for p in results]
    return queries, written(Positives, rows)


@pytest.fixture
def rows_of(labelled: Any, written: Any, run_stage: Any, store: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(module, "QUERIES_PER_PART", 2)
    passages: Artifact[Passages] = written(Passages, [passage(passage_id, f"text {passage_id}") for passage_id in IDS])

    def run(path: Path, **changes: Any) -> list[dict[str, Any]]:
        settings = ImportedNegatives(**{**ALL, "file": str(path), **changes})
        artifact = run_stage(import_negatives, passages, *labelled, negatives(str(path)), settings=settings)
        return list(read_rows(artifact, Negatives))

    return run


@pytest.fixture
def imported(rows_of: Any) -> Imported:
    """imported(file, **settings) -> each query's negatives, in the table's order."""

    def run(path: Path, **changes: Any) -> dict[str, list[str]]:
        results: dict[str, list[str]] = {}
        for row in rows_of(path, **changes):
            results.setdefault(row["query_id"], []).append(row["passage_id"])
        return results

    return run


def write(path: Path, lines: Sequence[str]) -> Path:
    text = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def triples(path: Path, rows: Sequence[tuple[str, str, str]]) -> Path:
    return write(path, ["\t".join(row) for row in rows])


def by_system(path: Path, *queries: tuple[str, dict[str, list[str]]], scores: Scores | None = None) -> Path:
    """As sentence-transformers has it, ids alone; with scores as BEIR's file, in which a score is beside each."""

    def item(query: str, name: str) -> Any:
        return {"pid": name, "ce-score": scores[query][name]} if scores else int(name)

    return write(path, [
        json.dumps({
            "qid": query if scores else int(query), "pos": [item(query, name) for name in POSITIVES.get(query, [])],
            "neg": {name: [item(query, name) for name in results] for name, results in systems.items()},
        })
        for query, systems in queries
    ])  # fmt: skip


@pytest.mark.parametrize("name", ["qidpidtriples.train.full.2.tsv", "qidpidtriples.train.full.2.tsv.gz"])
def test_triples_in_any_order(name: str, rows_of: Any, tmp_path: Path) -> None:
    rows = [("7", "4", "9"), ("5", "59", "8"), ("7", "5", "9"), ("7", "4", "1"), ("7", "5", "1"), ("900", "3", "2")]

    results = rows_of(triples(tmp_path / name, rows))

    assert [(row["query_id"], row["passage_id"], row["rank"]) for row in results] == [
        ("900", "2", 1), ("7", "9", 1), ("7", "1", 2), ("5", "8", 1),
    ]  # fmt: skip  # in the queries' order, and once though 7 has two positives


@pytest.mark.parametrize("name", ["msmarco-hard-negatives.jsonl", "msmarco-hard-negatives.jsonl.gz"])
def test_lists_of_several_systems_become_one_by_rank(name: str, rows_of: Any, tmp_path: Path) -> None:
    file = by_system(tmp_path / name, ("7", {"bm25": ["1", "2", "9"], "dense": ["9", "6"]}), ("31", {"bm25": ["1"]}))

    results = rows_of(file)

    assert [(row["passage_id"], row["rank"]) for row in results] == [("1", 1), ("2", 2), ("6", 2), ("9", 3)]


def test_no_positive_is_a_negative_whatever_the_file_says(imported: Imported, tmp_path: Path) -> None:
    file = by_system(tmp_path / "n.jsonl", ("7", {"bm25": ["4", "1", "5"]}), ("900", {"bm25": ["4", "3"]}))

    assert imported(file) == {"900": ["4"], "7": ["1"]}


def test_queries_and_passages_that_are_not_there_are_left_out(
    imported: Imported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(module, "print_line", lines.append)
    file = by_system(tmp_path / "n.jsonl", ("7", {"bm25": ["1", "1000"]}), ("8", {"bm25": ["2"]}))

    assert imported(file) == {"7": ["1"]}
    assert "left out 1 of 2 negatives" in lines[0]
    assert "1000" in lines[0]
    assert "no negatives for 2 of 3 queries" in lines[1]  # 31 has no positive


def test_systems_margin_and_their_numbers_choose_as_beirs_training_script(imported: Imported, tmp_path: Path) -> None:
    draw = random.Random(3)
    lists = {q: {s: draw.sample(IDS, 20) for s in ("bm25", "tas_b", "minilm")} for q in ("900", "7", "5")}
    scores = {q: {passage_id: round(draw.uniform(-5, 10), 1) for passage_id in IDS} for q in lists}
    for query, results in POSITIVES.items():
        for number, name in enumerate(results):
            scores[query][name] = 8.0 + number
        scores[query][lists[query]["bm25"][0]] = 5.0  # just as far below as is asked for
    file = by_system(tmp_path / "n.jsonl", *lists.items(), scores=scores)

    results = imported(file, margin=3, per_system=5)

    assert {query: set(kept) for query, kept in results.items()} == {q: beir(q, lists[q], scores[q]) for q in lists}
    only = imported(file, systems=["tas_b"])
    assert only["7"] == [name for name in lists["7"]["tas_b"] if name not in POSITIVES["7"]]


def beir(query: str, systems: dict[str, list[str]], scores: dict[str, float]) -> set[str]:
    """What https://github.com/beir-cellar/beir, train_msmarco_v3.py, trains on, in its own steps."""
    threshold = min(scores[name] for name in POSITIVES[query]) - 3
    negatives: set[str] = set()
    for system in systems.values():
        added = 0
        for passage_id in system:
            if scores[passage_id] > threshold or passage_id in negatives:
                continue
            negatives.add(passage_id)
            added += 1
            if added >= 5:
                break
    return negatives


def test_draws_by_seed_and_query(imported: Imported, rows_of: Any, tmp_path: Path) -> None:
    rows = [(query, results[0], passage_id) for query, results in POSITIVES.items() for passage_id in IDS]
    file = triples(tmp_path / "t.tsv", rows)

    drawn = imported(file, per_query=6)

    assert {query: len(results) for query, results in drawn.items()} == {"900": 6, "7": 6, "5": 6}
    assert drawn == imported(triples(tmp_path / "u.tsv", rows[::-1][:60][::-1] + rows[:120]), per_query=6)
    assert drawn != imported(file, per_query=6, seed=2)
    ranks = {query: [row["rank"] for row in rows_of(file, per_query=6) if row["query_id"] == query] for query in drawn}
    assert ranks["900"] != ranks["5"]  # whose lists are equally long
    assert drawn["7"] == sorted(drawn["7"], key=int)  # in the order of the file


def test_a_document_stands_for_its_first_passage(
    labelled: Any, written: Any, run_stage: Any, store: Any, tmp_path: Path
) -> None:
    passages = written(Passages, [passage(f"{doc}#{n}", "text") for doc in IDS for n in range(3)])
    rows = [{"query_id": "7", "passage_id": "4#2", "doc_id": "4"}]
    file = triples(tmp_path / "t.tsv", [("7", "4", "9"), ("7", "4", "4"), ("7", "4", "8#2")])
    settings = ImportedNegatives(**ALL, file=str(file))

    result = run_stage(
        import_negatives,
        passages=passages,
        queries=labelled[0],
        positives=written(Positives, rows),
        file=negatives(str(file)),
        settings=settings,
    )

    assert [row["passage_id"] for row in read_rows(result, Negatives)] == ["9#0", "8#2"]


def test_the_key_knows_the_file_by_its_content(labelled: Any, written: Any, tmp_path: Path) -> None:
    passages = written(Passages, [passage(passage_id, f"text {passage_id}") for passage_id in IDS])
    keys = []
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        file = str(triples(tmp_path / folder / "t.tsv", [("7", "4", "9")]))
        inputs = (passages, *labelled, negatives(file))
        keys.append(Job(import_negatives, inputs, ImportedNegatives(**ALL, file=file)).key)

    assert keys[0] == keys[1]


BROKEN = {
    "columns": ("t.tsv", ["7\t4\t9", "7\t4"], "line 2: expected query, positive and negative"),
    "a page": ("t.tsv", ["<!DOCTYPE html>", "<p>"], "a web page"),
    "empty": ("t.tsv", [], "t.tsv"),
    "no json": ("n.jsonl", ['{"qid": 7, "pos": [], "neg": {"a": [1'], "line 1: not valid JSON"),
    "fields": ("n.jsonl", ['{"qid": 7, "negatives": []}'], "line 1: expected the fields qid, pos"),
    "item": ("n.jsonl", ['{"qid": 7, "pos": [], "neg": {"a": [{"pid": 1}]}}'], "line 1: expected a passage's id"),
    "list": ("n.jsonl", ['{"qid": 7, "pos": [], "neg": {"a": 1}}'], "line 1: expected a list of the negatives of 'a'"),
    "queries": ("t.tsv", ["71\t4\t9"], "its queries (71, …) are no train query with a positive"),
    "passages": ("t.tsv", ["7\t4\tD9"], "its passages (D9, …) are neither passages nor documents"),
    "only positives": ("t.tsv", ["7\t4\t5"], "no negative is left"),
    "format": ("t.txt", ["7\t4\t9"], "expected .tsv (query, positive, negative)"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_names_what_is_wrong(case: str, imported: Imported, tmp_path: Path) -> None:
    name, lines, expected = BROKEN[case]

    with pytest.raises(UserError) as raised:
        imported(write(tmp_path / name, lines))
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({"margin": 3.0}, "without a cross-encoder's score"), ({"systems": ["colbert"]}, "the systems are bm25")],
)
def test_settings_that_the_file_cannot_meet(
    changes: dict[str, Any], expected: str, imported: Imported, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=expected):
        imported(by_system(tmp_path / "n.jsonl", ("7", {"bm25": ["1"]})), **changes)


@pytest.mark.parametrize("name", ["t.tsv.gz", "n.jsonl.gz"])
def test_a_file_that_is_cut_off_is_not_half_read(name: str, imported: Imported, tmp_path: Path) -> None:
    draw = random.Random(1)
    rows = [("7", "4", str(draw.randrange(60))) for _ in range(20_000)]
    lines = ["\t".join(row) for row in rows] if name == "t.tsv.gz" else [
        json.dumps({"qid": 7, "pos": [4], "neg": {"bm25": [int(row[2]) for row in rows]}})
    ]  # fmt: skip
    file = write(tmp_path / name, lines)
    file.write_bytes(file.read_bytes()[:-2_000])

    with pytest.raises(UserError, match="cut off or damaged"):
        imported(file)
