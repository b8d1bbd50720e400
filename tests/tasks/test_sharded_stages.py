"""Stages that work in shards write the same bytes with one, two and three processes, and after a kill between shards.

The processes are played by this one: it reads each shard's request from JSON and keeps nothing of the shard before.
"""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from models.retrievers import retriever
from storage.artifact import Artifact, Source
from storage.rows import parts
from storage.store.store import Store
from storage.tables import Checkpoint, Negatives, Passages, Positives, PseudoQueries, Queries
from tasks.corpus import token_counts
from tasks.cross_encoder import shared_pairs
from tasks.cross_encoder.pairs import Scoring
from tasks.cross_encoder.rerank import Reranking, rerank
from tasks.cross_encoder.score import score
from tasks.pretraining import context_shards
from tasks.pretraining.count_terms import count_terms
from tasks.pretraining.pair_contexts import Pairing, pair_contexts
from tasks.retrieval import fuse as fusing
from tasks.retrieval import search as searching
from tasks.retrieval.encode import Encoding, encode
from tasks.retrieval.engines.bm25 import Bm25
from tasks.retrieval.engines.exact import Exact
from tasks.retrieval.fuse import Fusion, fuse
from tasks.retrieval.index import index
from tasks.retrieval.search import Search, search
from tasks.runtime import process_pool, shard
from tasks.runtime.shard import Shard, ShardJob, request, write_shard_of_request
from tasks.session import Execution, Session, session
from tests.models.retrievers.test_cross_encoder import folder_of, tiny_cross_encoder
from tests.tasks.corpora import pseudo_query
from tests.tiny import WORDS, save_tokenizer, tiny_retriever

DRAW = random.Random(1)
PASSAGES = [
    {"passage_id": f"d{n // 3}#{n % 3}", "doc_id": f"d{n // 3}", "title": "", "start": 0, "end": 9, "num_tokens": 9,
     "text": " ".join(DRAW.choices(WORDS, k=DRAW.randint(1, 12)))}
    for n in range(60)
]  # fmt: skip
IDS = [row["passage_id"] for row in PASSAGES]
QUERIES = {f"q{n}": " ".join(DRAW.choices(WORDS, k=4)) for n in range(24)}
LIMITS = {"query_max_tokens": 8, "max_tokens": 24}
Body = Callable[[Path], None]


@pytest.fixture(scope="module")
def bodies(
    written: Any, run_stage: Any, on_one_thread: Session, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Body]:
    """The body of each stage, with its inputs, to be called with a folder."""
    folder = tmp_path_factory.mktemp("models")
    retriever.save(tiny_retriever("mixture"), folder)
    save_tokenizer(folder)
    (folder / "teacher").mkdir()
    teacher: Source = Source("teacher", folder_of(tiny_cross_encoder(), folder / "teacher"))
    checkpoint, tokenizer = Artifact[Checkpoint]("train", "mixture", folder), Source("tiny", folder)
    passages = written(Passages, PASSAGES)
    queries = written(Queries, [{"query_id": name, "text": text} for name, text in QUERIES.items()])
    generated = written(
        PseudoQueries, [pseudo_query(name, 0, "a king") for number, name in enumerate(IDS) if number % 5]
    )
    positives = written(Positives, [
        {"query_id": name, "passage_id": passage, "doc_id": passage.split("#")[0]}
        for name, passage in zip(QUERIES, IDS[::2], strict=False)
    ])  # fmt: skip
    negatives = written(Negatives, [
        {"query_id": name, "passage_id": passage, "rank": rank, "score": 1.0}
        for name in QUERIES for rank, passage in enumerate(DRAW.sample(IDS, 6), 1)
    ])  # fmt: skip
    vectors = run_stage(encode, passages=passages, checkpoint=checkpoint,
                   settings=Encoding(query_max_tokens=8, passage_max_tokens=24))  # fmt: skip
    exact = run_stage(index, passages=passages, vectors=vectors, settings=Exact(engine="exact"))
    bm25 = run_stage(index, passages=passages, settings=Bm25(engine="bm25", k1=0.9, b=0.4))
    runs = [
        run_stage(search, index=exact, vectors=vectors, queries=queries, checkpoint=checkpoint, passages=passages,
             settings=Search(view=view, documents=8))
        for view in ("dense", "lexical")
    ]  # fmt: skip
    pairing = Pairing(pseudo_queries=1, passages=["nearby"], alone="itself", max_tokens=20, language="en", seed=1)
    pairs = run_stage(pair_contexts, passages=passages, pseudo_queries=generated, tokenizer=tokenizer, settings=pairing)
    scoring, reranking = Scoring.model_validate(LIMITS), Reranking.model_validate({**LIMITS, "depth": 5})
    return {
        "pair_contexts": lambda out: pair_contexts.body(out, passages, generated, tokenizer, settings=pairing),
        "count_terms": lambda out: count_terms.body(out, pairs, tokenizer),
        "search": lambda out: search.body(
            out, exact, vectors, queries, checkpoint, passages, settings=Search(view="sum", documents=8)
        ),
        "search BM25": lambda out: search.body(
            out, bm25, None, queries, None, passages, settings=Search(view="bm25", documents=8)
        ),
        "fuse": lambda out: fuse.body(out, runs, None, settings=Fusion(kind="sum", depth=7)),
        "score": lambda out: score.body(out, teacher, queries, passages, positives, negatives, settings=scoring),
        "rerank": lambda out: rerank.body(out, teacher, runs[0], queries, passages, settings=reranking),
    }


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_shards, "ROWS_PER_SHARD", 8)
    monkeypatch.setattr(token_counts, "TEXTS_PER_SHARD", 8)
    monkeypatch.setattr(searching, "QUERIES_PER_PART", 4)
    monkeypatch.setattr(fusing, "QUERIES_PER_SHARD", 4)
    monkeypatch.setattr(shared_pairs, "QUERIES_PER_PART", 2)
    monkeypatch.setattr(shared_pairs, "PARTS_PER_SHARD", 2)


def play_processes(
    job: ShardJob, shards: Sequence[Shard], processes: int, done: Callable[[int], object], *, write: int | None = None
) -> None:
    """Write the first `write` shards, or all, as several processes do, the last of each process first."""
    described = json.dumps(request(job))
    for number in range(processes):
        shard._loaded.clear()
        for some in reversed(shards[:write][number::processes]):
            write_shard_of_request(json.loads(described), some, done)


def run(body: Body, out: Path, processes: int) -> dict[str, bytes]:
    execution = Execution(workers=processes, threads=1, device="cpu", processes=processes)
    with session(Session(Store(out.parent / "store"), execution)):
        body(out)
    return {path.name: path.read_bytes() for path in parts(out)}


STAGES = ("pair_contexts", "count_terms", "search", "search BM25", "fuse", "score", "rerank")


@pytest.mark.parametrize("name", STAGES)
def test_bytes_do_not_depend_on_the_number_of_processes(
    name: str, bodies: dict[str, Body], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def played(job: ShardJob, shards: Sequence[Shard], processes: int, done: Callable[[int], object]) -> None:
        calls.append(len(shards))
        play_processes(job, shards, processes, done)

    monkeypatch.setattr(process_pool, "run_in_processes", played)
    written = {processes: run(bodies[name], tmp_path / str(processes), processes) for processes in (1, 2, 3)}

    assert written[1] == written[2] == written[3]
    assert len(calls) == 2
    assert min(calls) > 5


@pytest.mark.parametrize("name", STAGES)
def test_a_killed_stage_resumes_after_its_last_finished_shard(
    name: str, bodies: dict[str, Body], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """Stands for a kill."""

    counts: list[int] = []

    def dying(job: ShardJob, shards: Sequence[Shard], processes: int, done: Callable[[int], object]) -> None:
        counts.append(len(shards))
        play_processes(job, shards, processes, done, write=4 if len(counts) == 1 else None)
        if len(counts) == 1:
            raise Killed

    complete = run(bodies[name], tmp_path / "complete", 1)
    monkeypatch.setattr(process_pool, "run_in_processes", dying)
    with pytest.raises(Killed):
        run(bodies[name], tmp_path / "killed", 2)

    assert run(bodies[name], tmp_path / "killed", 2) == complete
    assert counts[1] == counts[0] - 4
