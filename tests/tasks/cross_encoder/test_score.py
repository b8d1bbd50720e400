"""A teacher's scores: which pairs, in which order, with what number; and runs in a new order."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.retrievers import cross_encoder
from models.retrievers.cross_encoder import encode_pair, pad_pairs
from models.tokens import Tokenizer
from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.rows import parts, read_table
from storage.store.store import Store
from storage.tables import Negatives, Passages, Positives, Queries, Run, TeacherScores, passage_text
from tasks.cross_encoder import pairs as pair_scoring
from tasks.cross_encoder import shared_pairs
from tasks.cross_encoder.pairs import Scoring
from tasks.cross_encoder.rerank import Reranking, rerank
from tasks.cross_encoder.score import score
from tests.models.retrievers.test_cross_encoder import folder_of, tiny_cross_encoder
from tests.tiny import WORDS, save_backbone

SETTINGS = Scoring(query_max_tokens=6, max_tokens=14)
RERANKING = Reranking(query_max_tokens=6, max_tokens=14, depth=4)
PASSAGES = [
    {"passage_id": f"p{n}", "doc_id": f"d{n // 2}", "title": "king" if n % 4 == 0 else "", "text": text, "start": 0,
     "end": len(text), "num_tokens": 8}
    for n in range(30)
    for text in [" ".join(np.random.default_rng(n).choice(WORDS, size=n % 13))]
]  # fmt: skip
QUERIES = {
    f"q{n}": " ".join(np.random.default_rng(100 + n).choice(WORDS, size=n % 7 + 1)) for n in (3, 1, 7, 2, 0, 9, 4)
}
POSITIVES = [("q0", "p5"), ("q3", "p0"), ("q0", "p2"), ("q7", "p9"), ("q8", "p1"), ("q2", "p28"), ("q2", "p12")]
NEGATIVES = [
    ("q0", "p9"), ("q0", "p7"), ("q0", "p5"), ("q3", "p9"), ("q3", "p9"), ("q1", "p29"), ("q1", "p3"), ("q8", "p4"),
    ("q7", "p13"), ("q7", "p14"), ("q7", "p4"),
]  # fmt: skip
EXPECTED = [
    ("q3", "p0"), ("q3", "p9"), ("q1", "p29"), ("q1", "p3"), ("q7", "p9"), ("q7", "p13"), ("q7", "p14"), ("q7", "p4"),
    ("q2", "p28"), ("q2", "p12"), ("q0", "p5"), ("q0", "p2"), ("q0", "p9"), ("q0", "p7"),
]  # fmt: skip


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return Source("teacher", folder_of(tiny_cross_encoder(), tmp_path_factory.mktemp("teacher")))


class Tables:
    """The tables above as artifacts, with changes."""

    def __init__(self, written: Any) -> None:
        self.written = written
        self.queries = written(Queries, [{"query_id": name, "text": text} for name, text in QUERIES.items()])
        self.passages = written(Passages, PASSAGES)

    def inputs(
        self, positives: Iterable[tuple[str, str]] = POSITIVES, negatives: Iterable[tuple[str, str]] = NEGATIVES
    ) -> Any:
        right = [{"query_id": query, "passage_id": passage, "doc_id": "d"} for query, passage in positives]
        wrong = [{"query_id": query, "passage_id": passage, "rank": 1, "score": 0.5} for query, passage in negatives]
        return self.queries, self.passages, self.written(Positives, right), self.written(Negatives, wrong)

    def run(self, lists: dict[str, list[int]], view: str = "dense") -> Artifact[Run]:
        return self.written(  # type: ignore[no-any-return]
            Run,
            [
                {"query_id": query, "passage_id": f"p{n}", "view": view, "rank": rank + 1, "score": -float(rank)}
                for query, results in lists.items()
                for rank, n in enumerate(results)
            ],
        )


@pytest.fixture
def tables(written: Any, store: Store) -> Tables:
    return Tables(written)


def pairs_of(folder: Path) -> list[tuple[str, str]]:
    rows = read_table(Artifact[TeacherScores]("score", "x", folder), TeacherScores)
    return list(zip(rows["query_id"].to_pylist(), rows["passage_id"].to_pylist(), strict=True))


def scores_of(folder: Path) -> list[float]:
    results: list[float] = read_table(Artifact[TeacherScores]("score", "x", folder), TeacherScores)["score"].to_pylist()
    return results


def slow_score(teacher: Source, query: str, passage: str) -> float:
    """One pair, alone in its batch."""
    tokenizer, row = Tokenizer.load(teacher.path), PASSAGES[int(passage[1:])]
    query_ids, text = tokenizer.token_ids([QUERIES[query], passage_text(row["title"], row["text"])])
    pair = encode_pair(tokenizer, query_ids, text, query_max_tokens=6, max_tokens=14)
    with torch.inference_mode():
        return float(cross_encoder.load(teacher.path)(pad_pairs(tokenizer, [pair]))[0])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in parts(folder)}


def test_each_pair_once_in_the_order_of_the_queries(tables: Tables, teacher: Source, tmp_path: Path) -> None:
    score.body(tmp_path, teacher, *tables.inputs(), settings=SETTINGS)

    assert pairs_of(tmp_path) == EXPECTED
    assert scores_of(tmp_path) == pytest.approx([slow_score(teacher, *pair) for pair in EXPECTED], abs=1e-5)
    assert np.std(scores_of(tmp_path)) > 0.1


@pytest.mark.parametrize("queries", [1, 2, 3])
def test_shards_hold_whole_queries(
    tables: Tables, teacher: Source, tmp_path: Path, queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_pairs, "QUERIES_PER_PART", queries)

    score.body(tmp_path, teacher, *tables.inputs(), settings=SETTINGS)

    assert pairs_of(tmp_path) == EXPECTED
    assert len(parts(tmp_path)) == -(-5 // queries)
    assert scores_of(tmp_path) == pytest.approx([slow_score(teacher, *pair) for pair in EXPECTED], abs=1e-5)


def test_little_batches_are_put_back_in_order(
    tables: Tables, teacher: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_scoring, "TOKENS_PER_BATCH", {"cpu": 20})

    score.body(tmp_path, teacher, *tables.inputs(), settings=SETTINGS)

    assert scores_of(tmp_path) == pytest.approx([slow_score(teacher, *pair) for pair in EXPECTED], abs=1e-5)


class Killed(BaseException):
    """Stands for a kill."""


def test_a_killed_scoring_keeps_its_finished_shards(
    tables: Tables, teacher: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_pairs, "QUERIES_PER_PART", 2)
    inputs, counted, forward = tables.inputs(), [], cross_encoder.CrossEncoder.forward
    score.body(tmp_path / "whole", teacher, *inputs, settings=SETTINGS)

    def dying(self: Any, pairs: Any) -> Any:
        counted.append(len(pairs))
        if len(counted) == 2:
            raise Killed
        return forward(self, pairs)

    monkeypatch.setattr(cross_encoder.CrossEncoder, "forward", dying)
    with pytest.raises(Killed):
        score.body(tmp_path / "killed", teacher, *inputs, settings=SETTINGS)
    assert len(parts(tmp_path / "killed")) == 1
    score.body(tmp_path / "killed", teacher, *inputs, settings=SETTINGS)
    score.body(tmp_path / "killed", Source("gone", tmp_path), *inputs, settings=SETTINGS)  # nothing is opened

    assert counted == [4, 6, 6, 4]
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_queries_and_passages_without_words(tables: Tables, teacher: Source, tmp_path: Path) -> None:
    blank = tables.written(Queries, [{"query_id": "q0", "text": ""}])
    _, passages, positives, negatives = tables.inputs([("q0", "p13")], [("q0", "p2")])  # p13 is empty too

    score.body(tmp_path, teacher, blank, passages, positives, negatives, settings=SETTINGS)

    assert pairs_of(tmp_path) == [("q0", "p13"), ("q0", "p2")]


def test_nothing_was_mined(tables: Tables, teacher: Source, tmp_path: Path) -> None:
    score.body(tmp_path, teacher, *tables.inputs(negatives=[]), settings=SETTINGS)

    assert set(pairs_of(tmp_path)) == {pair for pair in POSITIVES if pair[0] != "q8"}


def test_nothing_to_score(tables: Tables, teacher: Source, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="none of its queries has a positive or a negative"):
        score.body(tmp_path, teacher, *tables.inputs([("q8", "p1")], []), settings=SETTINGS)


def test_passages_that_are_not_there(tables: Tables, teacher: Source, tmp_path: Path) -> None:
    inputs = tables.inputs(negatives=[("q0", "p99")])

    with pytest.raises(UserError, match=f"{inputs[3].reference}: passage 'p99' is not among"):
        score.body(tmp_path, teacher, *inputs, settings=SETTINGS)


def test_teachers_that_cannot_score(tables: Tables, teacher: Source, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="teacher: max_tokens: expected at most 64, found 65"):
        score.body(tmp_path, teacher, *tables.inputs(), settings=SETTINGS.model_copy(update={"max_tokens": 65}))

    (tmp_path / "bert").mkdir()
    plain = Source("bert", save_backbone(tmp_path / "bert"))
    with pytest.raises(UserError, match=r"expected a cross-encoder of one label, found no bert\.pooler"):
        score.body(tmp_path / "out", plain, *tables.inputs(), settings=SETTINGS)

    encoder = tiny_cross_encoder()
    with torch.no_grad():
        encoder.bert.pooler.dense.bias.fill_(100)  # tanh gives 1
        encoder.classifier.weight.fill_(3e38)  # finite, but no sum of it
    (tmp_path / "broken").mkdir()
    broken = Source("broken", folder_of(encoder, tmp_path / "broken"))
    with pytest.raises(UserError, match="source/broken: its score of query 'q3' with passage 'p0' is not a number"):
        score.body(tmp_path / "out", broken, *tables.inputs(), settings=SETTINGS)
    assert not parts(tmp_path / "out")


LISTS = {"q3": [4, 9, 1, 22, 17, 3], "q0": [5, 6], "q9": [13, 26, 12, 0, 1], "q4": [2]}
"""Passages p13 and p26, p0 are cut or empty; the run's own order of queries is not the table's."""


def slow_lists(teacher: Source, lists: dict[str, list[int]], depth: int) -> list[tuple[str, str, int]]:
    """Each query's passages by score, then by descending id.

    Scores of different texts are so far apart that no rounding changes their order; equal texts have equal scores.
    """
    rows = []
    for query in (name for name in QUERIES if name in lists):
        scored = [(slow_score(teacher, query, f"p{n}"), f"p{n}") for n in lists[query][:depth]]
        gaps = np.diff(sorted(score for score, _ in scored))
        assert all(gap == 0 or gap > 0.01 for gap in gaps)
        rows += [(query, name, rank + 1) for rank, (_, name) in enumerate(sorted(scored, reverse=True))]
    return rows


@pytest.mark.parametrize(("depth", "queries"), [(1, 128), (4, 128), (4, 1), (100, 3)])
def test_reranked_lists(
    tables: Tables, teacher: Source, tmp_path: Path, depth: int, queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_pairs, "QUERIES_PER_PART", queries)
    settings = RERANKING.model_copy(update={"depth": depth})

    rerank.body(tmp_path, teacher, tables.run(LISTS), tables.queries, tables.passages, settings=settings)

    rows = read_table(Artifact[Run]("rerank", "x", tmp_path), Run).to_pylist()
    assert [(row["query_id"], row["passage_id"], row["rank"]) for row in rows] == slow_lists(teacher, LISTS, depth)
    assert {row["view"] for row in rows} == {"reranked"}
    for row in rows:
        assert row["score"] == pytest.approx(slow_score(teacher, row["query_id"], row["passage_id"]), abs=1e-5)


def test_equal_scores_fall_by_passage_id(tables: Tables, tmp_path: Path) -> None:
    encoder = tiny_cross_encoder()
    with torch.no_grad():
        encoder.classifier.weight.zero_()
    (tmp_path / "flat").mkdir()
    flat = Source("flat", folder_of(encoder, tmp_path / "flat"))

    rerank.body(
        tmp_path / "out",
        flat,
        tables.run({"q3": [10, 9, 1, 22, 17]}),
        tables.queries,
        tables.passages,
        settings=RERANKING,
    )

    rows = read_table(Artifact[Run]("rerank", "x", tmp_path / "out"), Run)
    assert rows["passage_id"].to_pylist() == ["p9", "p22", "p10", "p1"]


def test_equal_texts_have_equal_scores_anywhere_in_a_batch(tables: Tables, teacher: Source, tmp_path: Path) -> None:
    copied = [9, 17, 3] * 15
    rows = [{**PASSAGES[n], "passage_id": f"p{copy}"} for copy, n in enumerate(copied, 10)]
    inputs = tables.run({"q3": list(range(10, 55))}), tables.queries, tables.written(Passages, rows)

    rerank.body(tmp_path, teacher, *inputs, settings=RERANKING.model_copy(update={"depth": 100}))

    ranked = read_table(Artifact[Run]("rerank", "x", tmp_path), Run)
    scores = {n: slow_score(teacher, "q3", f"p{n}") for n in (9, 17, 3)}
    expected = sorted(range(10, 55), key=lambda copy: (scores[copied[copy - 10]], copy), reverse=True)
    assert ranked["passage_id"].to_pylist() == [f"p{copy}" for copy in expected]
    assert len(set(ranked["score"].to_pylist())) == 3


def test_a_killed_reranking_keeps_its_finished_shards(
    tables: Tables, teacher: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_pairs, "QUERIES_PER_PART", 1)
    inputs = tables.run(LISTS), tables.queries, tables.passages
    rerank.body(tmp_path / "whole", teacher, *inputs, settings=RERANKING)
    rerank.body(tmp_path / "half", teacher, *inputs, settings=RERANKING)
    (tmp_path / "half" / "part-00002.parquet").unlink()
    kept = {path.name: path.stat().st_mtime_ns for path in parts(tmp_path / "half")}

    rerank.body(tmp_path / "half", teacher, *inputs, settings=RERANKING)

    assert contents(tmp_path / "half") == contents(tmp_path / "whole")
    assert len(kept) == 3
    assert kept.items() <= {path.name: path.stat().st_mtime_ns for path in parts(tmp_path / "half")}.items()


def test_runs_that_cannot_be_reranked(tables: Tables, teacher: Source, tmp_path: Path, written: Any) -> None:
    rows = [
        {"query_id": "q3", "passage_id": "p1", "view": view, "rank": 1, "score": 1.0} for view in ("dense", "lexical")
    ]
    with pytest.raises(UserError, match="expected the lists of one view, found dense, lexical"):
        rerank.body(tmp_path, teacher, written(Run, rows), tables.queries, tables.passages, settings=RERANKING)
    with pytest.raises(UserError, match="it has no list of a query of"):
        rerank.body(tmp_path, teacher, tables.run({"q8": [1]}), tables.queries, tables.passages, settings=RERANKING)
