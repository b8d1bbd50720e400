"""Encode, index and search: a run has the scores of the trained retriever, also after interruptions."""

import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from models.retrievers import retriever
from models.tokens import Tokenizer
from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import read_table
from storage.tables import Checkpoint, Index, Passages, Queries, Run, Vectors
from tasks.retrieval.encode import Encoding, encode
from tasks.retrieval.engines.bm25 import Bm25
from tasks.retrieval.engines.exact import Exact, ExactSearch
from tasks.retrieval.index import index
from tasks.retrieval.search import Search, query_shards, search
from tasks.runtime.shard import ShardTask
from tests.tiny import RETRIEVERS, WORDS, save_tokenizer, tiny_retriever

pytestmark = pytest.mark.usefixtures("on_one_thread")
EXACT = Exact(engine="exact")
DRAW = random.Random(1)
TEXTS = [" ".join(DRAW.choices([*WORDS, ",", "kings"], k=DRAW.randint(1, 30))) for _ in range(80)] + ["king stone"] * 3
QUESTIONS = [" ".join(DRAW.choices(WORDS, k=DRAW.randint(1, 10))) for _ in range(30)]


@pytest.fixture(scope="module")
def passages(written) -> Artifact[Passages]:
    blank = {"title": "", "start": 0, "end": 1, "num_tokens": 1}
    rows = [{"passage_id": f"p{n}", "doc_id": f"d{n % 60}", "text": text, **blank} for n, text in enumerate(TEXTS)]
    return written(Passages, rows)


@pytest.fixture(scope="module")
def queries(written) -> Artifact[Queries]:
    return written(Queries, [{"query_id": f"q{n}", "text": text} for n, text in enumerate(QUESTIONS)])


class SearchableIndex:
    """A retriever's checkpoint, vectors and index, for exact search."""

    def __init__(self, folder: Path, run_stage, kind: str, passages: Artifact[Passages]) -> None:
        retriever.save(tiny_retriever(kind), folder)
        save_tokenizer(folder)
        self.checkpoint: Artifact[Checkpoint] = Artifact("train", kind, folder)
        settings = Encoding(query_max_tokens=8, passage_max_tokens=24)
        self.vectors: Artifact[Vectors] = run_stage(
            encode, passages=passages, checkpoint=self.checkpoint, settings=settings
        )
        self.index: Artifact[Index] = run_stage(index, passages=passages, vectors=self.vectors, settings=EXACT)
        self.passages, self.run_stage = passages, run_stage

    def inputs(self, queries: Artifact[Queries]) -> tuple[Artifact, ...]:
        return self.index, self.vectors, queries, self.checkpoint, self.passages

    def run(self, queries: Artifact[Queries], view: str, documents: int = 60) -> pa.Table:
        result = self.run_stage(search, *self.inputs(queries), settings=Search(view=view, documents=documents))
        return read_table(result, Run)


@pytest.fixture(scope="module")
def mixture(run_stage, passages: Artifact[Passages], tmp_path_factory: pytest.TempPathFactory) -> SearchableIndex:
    return SearchableIndex(tmp_path_factory.mktemp("mixture"), run_stage, "mixture", passages)


@pytest.mark.parametrize("kind", RETRIEVERS)
def test_scores_of_a_run_equal_those_of_training(
    kind: str, run_stage, passages: Artifact[Passages], queries: Artifact[Queries], tmp_path: Path
) -> None:
    searched = SearchableIndex(tmp_path, run_stage, kind, passages)
    model, tokenizer = retriever.load(tmp_path), Tokenizer.load(tmp_path)
    with torch.inference_mode():
        read = [model(tokenizer.pad_batch(tokenizer.encode(texts, tokens)), role)
                for texts, tokens, role in ((QUESTIONS, 8, "query"), (TEXTS, 24, "passage"))]  # fmt: skip
        trained = {view: scores.numpy() for view, scores in model.scores(*read).items()}
    assert set(trained) == {*RETRIEVERS[kind].views, "sum"}
    for view, scores_QP in trained.items():
        rows = searched.run(queries, view).to_pylist()
        results = np.full_like(scores_QP, np.nan)
        for row in rows:
            results[int(row["query_id"][1:]), int(row["passage_id"][1:])] = row["score"]
        there = ~np.isnan(results)
        assert there.sum() >= 60 * len(QUESTIONS)  # every document
        assert np.abs(results - scores_QP)[there].max() < 1e-5 * np.abs(scores_QP).max()
        assert {row["view"] for row in rows} == {view}


def test_lists_end_with_the_last_requested_document(mixture: SearchableIndex, queries: Artifact[Queries]) -> None:
    rows = mixture.run(queries, "sum", documents=20).to_pylist()
    for number in range(len(QUESTIONS)):
        results = [row for row in rows if row["query_id"] == f"q{number}"]
        documents = [int(row["passage_id"][1:]) % 60 for row in results]
        assert len(set(documents)) == 20
        assert documents.count(documents[-1]) == 1
        assert [row["rank"] for row in results] == list(range(1, len(results) + 1))
        keys = [(row["score"], row["passage_id"]) for row in results]
        assert keys == sorted(keys, reverse=True)


def test_shards_give_the_same_run_and_are_not_searched_again(
    mixture: SearchableIndex, queries: Artifact[Queries], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Search(view="late", documents=10)
    complete = mixture.run_stage(search, *mixture.inputs(queries), settings=settings)
    monkeypatch.setattr("tasks.retrieval.search.QUERIES_PER_PART", 7)
    sharded = mixture.run_stage(search, *mixture.inputs(queries), settings=settings)
    assert len(list(sharded.path.glob("*.parquet"))) == 5
    one, other = read_table(complete, Run), read_table(sharded, Run)
    assert one.drop_columns("score") == other.drop_columns("score")
    assert np.allclose(one["score"], other["score"], rtol=1e-5)

    (sharded.path / "part-00004.parquet").unlink()  # as if it had been killed here
    untouched = {path: path.stat().st_mtime_ns for path in sharded.path.glob("*.parquet")}
    search.body(sharded.path, *mixture.inputs(queries), settings=settings)
    assert read_table(sharded, Run) == other
    assert all(path.stat().st_mtime_ns == time for path, time in untouched.items())


def test_an_accelerator_reads_the_passages_once_for_several_files_with_the_same_bytes(
    mixture: SearchableIndex, queries: Artifact[Queries], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.retrieval.search.QUERIES_PER_PART", 7)
    settings = Search(view="late", documents=10)
    by_file = mixture.run_stage(search, *mixture.inputs(queries), settings=settings)
    monkeypatch.setattr("tasks.retrieval.search.is_accelerator", lambda device: True)
    calls: list[int] = []
    original = ExactSearch.__call__
    monkeypatch.setattr(
        ExactSearch, "__call__", lambda self, rows, depth: calls.append(len(rows)) or original(self, rows, depth)
    )
    in_one_pass = mixture.run_stage(search, *mixture.inputs(queries), settings=settings)
    assert calls[0] == len(QUESTIONS)
    files = {path.name: path.read_bytes() for path in sorted(by_file.path.glob("*.parquet"))}
    assert list(files) == [f"part-{number:05d}.parquet" for number in range(5)]
    assert {path.name: path.read_bytes() for path in in_one_pass.path.glob("*.parquet")} == files

    (in_one_pass.path / "part-00002.parquet").unlink()  # as if it had been killed while it wrote the files of a shard
    search.body(in_one_pass.path, *mixture.inputs(queries), settings=settings)
    assert {path.name: path.read_bytes() for path in in_one_pass.path.glob("*.parquet")} == files


def test_the_progress_of_one_pass_is_reported_and_sums_to_its_queries(
    mixture: SearchableIndex, queries: Artifact[Queries], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.retrieval.search.is_accelerator", lambda device: True)
    reported: list[int] = []
    monkeypatch.setattr(
        "tasks.retrieval.search.run_shards",
        lambda job, shards: [
            job.work(ShardTask(job.out, shard, reported.append), *job.inputs, settings=job.settings) for shard in shards
        ],
    )
    search.body(tmp_path, *mixture.inputs(queries), settings=Search(view="sum", documents=60))
    assert sum(reported) == len(QUESTIONS)
    assert min(reported) > 0
    assert reported[0] <= len(QUESTIONS) / 2  # the pass over the passages is half of the work


def test_shards_are_large_but_every_process_has_as_many() -> None:
    def rows(total: int, documents: int, processes: int) -> list[int]:
        return [shard.rows for shard in query_shards(total, documents, processes)]

    assert rows(502_939, 250, 1) == [16 * 1024] * 30 + [502_939 - 30 * 16 * 1024]
    assert rows(502_939, 1010, 8) == [16 * 1024] * 30 + [502_939 - 30 * 16 * 1024]
    assert rows(502_939, 5000, 1)[0] == 3 * 1024
    assert rows(6980, 1000, 1) == [6980]
    assert rows(6980, 1000, 8) == [1024] * 6 + [6980 - 6 * 1024]
    assert rows(2049, 10**7, 1) == [1024, 1024, 1]
    assert rows(3, 1, 8) == [3]


@pytest.mark.parametrize(("kind", "view", "there"), [
    ("dpr", "late", "dense or sum"),
    ("hybrid", "bm25", "dense or lexical or sum"),
])  # fmt: skip
def test_an_unknown_view_is_refused_with_the_known_ones(
    kind: str,
    view: str,
    there: str,
    run_stage,
    passages: Artifact[Passages],
    queries: Artifact[Queries],
    tmp_path: Path,
) -> None:
    with pytest.raises(UserError, match=rf"search\.view: expected {there} for engine exact and .*, found {view}"):
        SearchableIndex(tmp_path, run_stage, kind, passages).run(queries, view)


def test_an_index_without_vectors_needs_no_encoder(
    written, passages: Artifact[Passages], queries: Artifact[Queries], tmp_path: Path
) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "index.json").write_text(json.dumps(Bm25(engine="bm25", k1=0.9, b=0.4).model_dump()))
    bm25: Artifact[Index] = Artifact("index", "bm25", tmp_path / "index")
    with pytest.raises(UserError, match=r"search\.view: expected bm25 for engine bm25, found dense"):
        search.body(tmp_path, bm25, None, queries, None, passages, settings=Search(view="dense", documents=1))
    none = written(Queries, [])
    search.body(tmp_path, bm25, None, none, None, passages, settings=Search(view="bm25", documents=1))


def test_vectors_of_other_passages_are_refused(written, mixture: SearchableIndex, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected the vectors of the passages"):
        index.body(tmp_path, written(Passages, []), mixture.vectors, None, settings=EXACT)


@pytest.mark.parametrize("documents", [1, 10_000])
def test_any_depth_is_answered(documents: int, mixture: SearchableIndex, queries: Artifact[Queries]) -> None:
    rows = mixture.run(queries, "lexical", documents=documents)
    assert len(rows) == (30 if documents == 1 else 30 * 83)
