"""A teacher's scores: which pairs, in which order, with what number."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.retrievers import cross_encoder
from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.rows import parts, read_table
from storage.tables import Queries, TeacherScores
from tasks.cross_encoder import pairs as pair_scoring
from tasks.cross_encoder import shared_pairs
from tasks.cross_encoder.pairs import Scoring
from tasks.cross_encoder.score import score
from tests.models.retrievers.test_cross_encoder import folder_of, tiny_cross_encoder
from tests.tasks.cross_encoder.score_tables import POSITIVES, Tables, contents, slow_score
from tests.tiny import save_backbone

SETTINGS = Scoring(query_max_tokens=6, max_tokens=14)
EXPECTED = [
    ("q3", "p0"), ("q3", "p9"), ("q1", "p29"), ("q1", "p3"), ("q7", "p9"), ("q7", "p13"), ("q7", "p14"), ("q7", "p4"),
    ("q2", "p28"), ("q2", "p12"), ("q0", "p5"), ("q0", "p2"), ("q0", "p9"), ("q0", "p7"),
]  # fmt: skip


def pairs_of(folder: Path) -> list[tuple[str, str]]:
    rows = read_table(Artifact[TeacherScores]("score", "x", folder), TeacherScores)
    return list(zip(rows["query_id"].to_pylist(), rows["passage_id"].to_pylist(), strict=True))


def scores_of(folder: Path) -> list[float]:
    results: list[float] = read_table(Artifact[TeacherScores]("score", "x", folder), TeacherScores)["score"].to_pylist()
    return results


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
