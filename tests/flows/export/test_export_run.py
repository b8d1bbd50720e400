"""`pretrieve export-run`: TREC runs that other tools read and measure as we do, under ir_metadata's header."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import pytrec_eval
import yaml

from flows.export.export_run import RunFormat, export_runs, on_split
from flows.finished_runs import finished_run
from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import read_rows, write_rows
from storage.store.store import Store
from storage.tables import Qrels, Run
from tasks.evaluation.trec_run_file import trec_lines
from tasks.retrieval.shared_passages import temporary_index
from tests.finished_runs import DOCUMENTS, QUERIES, run
from tests.passage_index import read_index


def read(path: Path) -> tuple[dict[str, object], list[str]]:
    """The header's YAML, and the lines of the run."""
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    lines = text.splitlines()
    assert lines[0] == "# ir_metadata.start"
    end = lines.index("# ir_metadata.end")
    assert all(line.startswith("# ") for line in lines[:end])
    assert not any(line.startswith("#") for line in lines[end + 1 :])
    return yaml.safe_load("\n".join(line.strip("#") for line in lines[1:end])), lines[end + 1 :]


def test_trec_eval_measures_the_file_as_the_report_does(store: Store, tmp_path: Path) -> None:
    result = run(store, "one", noise=1.5)
    export_runs("one", [], tmp_path / "out", store.root, form=RunFormat(packed=True, actor="A. Person"))

    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "bm25.trec.gz", "retriever_1.trec.gz", "retriever_2.trec.gz"
    ]  # fmt: skip
    qrels: dict[str, dict[str, int]] = {}
    for row in read_rows(only(store, "ingest_qrels"), Qrels):
        qrels.setdefault(row["query_id"], {})[row["doc_id"]] = row["grade"]
    ours = {
        (row["run"], row["query_id"]): row["value"]
        for row in pq.read_table(only(store, "evaluate").path / "queries.parquet").to_pylist()
        if row["metric"] == "nDCG@10"
    }
    for name in ("bm25", "retriever_1"):
        header, lines = read(tmp_path / "out" / f"{name}.trec.gz")
        theirs = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut_10"}).evaluate(pytrec_eval.parse_run(lines))
        assert len(theirs) == QUERIES
        for query, values in theirs.items():
            assert values["ndcg_cut_10"] == pytest.approx(ours[name, query], abs=1e-6)
        assert header["tag"] == name
        assert not [line for line in lines if line.startswith("q1 Q0 q1 ")]  # the query itself is left out
        assert len([line for line in lines if line.startswith("q2 ")]) == DOCUMENTS
        assert [int(line.split()[3]) for line in lines[: DOCUMENTS - 1]] == list(range(1, DOCUMENTS))
    assert list(header) == [
        "schema-version", "run-version", "tag", "platform", "research goal", "implementation", "method", "actor", "data"
    ]  # fmt: skip
    assert header["actor"] == {"name": "A. Person", "role": "experimenter"}
    assert header["research goal"]["evaluation"]["reported measures"] == ["recip_rank_10", "ndcg_cut_10"]  # type: ignore[index]
    (stage,) = header["method"]["retrieval"]  # type: ignore[index]
    assert stage["params"]["search"] == {"noise": 1.5, "seed": 1}
    assert stage["artifact"].startswith("search/")
    assert result.stage == "report"


def only(store: Store, stage: str) -> Artifact:
    (folder,) = (store.root / stage).iterdir()
    return Artifact(stage, folder.name, folder)


def test_a_plain_run_has_its_header_in_a_second_file(store: Store, tmp_path: Path) -> None:
    run(store, "one")
    export_runs("one", ["bm25"], tmp_path / "out", store.root, form=RunFormat(plain=True))
    export_runs("one", ["bm25"], tmp_path / "again", store.root, split="dev")
    header, lines = read(tmp_path / "again" / "bm25.trec")
    assert (tmp_path / "out" / "bm25.trec").read_text().splitlines() == lines
    assert yaml.safe_load((tmp_path / "out" / "bm25.yaml").read_text()) == header
    with pytest.raises(UserError, match="expected a folder that does not exist yet"):
        export_runs("one", ["bm25"], tmp_path / "out", store.root)
    with pytest.raises(UserError, match=r"both: .* it is the mean of retriever_1, retriever_2"):
        export_runs("one", ["both"], tmp_path / "new", store.root)
    with pytest.raises(UserError, match=r"bm26: .* expected bm25, retriever_1, retriever_2"):
        export_runs("one", ["bm25", "bm26"], tmp_path / "new", store.root)
    with pytest.raises(UserError, match="--split test: one was measured on toy/dev"):
        export_runs("one", ["bm25"], tmp_path / "new", store.root, split="test")
    assert not (tmp_path / "new").exists()


def test_a_split_of_several_collections_is_named_with_its_collection(store: Store) -> None:
    run(store, "one", transfer=["toy_2", "other"])
    finished = finished_run("one", store)

    assert on_split(finished, None).name == "toy/dev"
    assert on_split(finished, "toy_2/dev").name == "toy_2/dev"
    known = "--split dev: one was measured on toy/dev, toy_2/dev, other/dev; name one as COLLECTION/SPLIT"
    with pytest.raises(UserError, match=known):
        on_split(finished, "dev")


def test_the_header_names_the_collection_and_what_the_ranking_has_learned_from(store: Store, tmp_path: Path) -> None:
    run(store, "one", transfer=["toy_2"])
    learned = [{"name": "A toy", "split": "train"}]
    for split, collection in (("toy/dev", "A toy"), ("toy_2/dev", "toy_2")):
        folder = tmp_path / collection
        export_runs("one", ["bm25", "retriever_1"], folder, store.root, split=split)
        for name, expected in (("bm25", []), ("retriever_1", learned)):
            header, _ = read(folder / f"{name}.trec")
            data: Any = header["data"]
            assert data["training data"] == expected
            assert data["test collection"].items() >= {"name": collection, "split": "dev"}.items()


def test_an_id_with_a_blank_is_refused(store: Store, tmp_path: Path) -> None:
    run(store, "one")
    passages = only(store, "split_corpus")
    rows = next(read_rows(Artifact("search", "", next((store.root / "search").iterdir())), Run))
    write_rows(tmp_path, Run, [{**rows, "query_id": "q 1"}])
    index = read_index(passages)
    with pytest.raises(UserError, match="query 'q 1': the TREC format"):
        list(trec_lines(Artifact("search", "", tmp_path), index, "tag", ignore_identical_ids=False))


def test_lines_by_a_temporary_index_are_those_by_one_in_memory(store: Store) -> None:
    run(store, "one")
    passages, artifact = only(store, "split_corpus"), next((store.root / "search").iterdir())
    ranked, in_memory = Artifact("search", "", artifact), read_index(passages)
    expected = list(trec_lines(ranked, in_memory, "tag", ignore_identical_ids=True))
    with temporary_index(passages, ordered=False) as index:
        assert list(trec_lines(ranked, index, "tag", ignore_identical_ids=True)) == expected
        folder = index.folder
        assert folder.exists()
    assert not folder.parent.parent.exists()
