"""A cross-encoder's scores of pseudo-queries, each pair alone in its batch."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.retrievers import cross_encoder
from models.retrievers.cross_encoder import encode_pair, pad_pairs
from models.tokens import Tokenizer
from storage import rows as stored
from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.rows import parts, read_rows, write_rows
from storage.tables import Passages, PseudoQueries, passage_text
from tasks.cross_encoder.pairs import Scoring
from tasks.pseudo_queries.column_rewrite import file_shards
from tasks.pseudo_queries.relevance import relevance, score_part
from tasks.runtime.shard import ShardJob, request, write_shard_of_request
from tests.models.retrievers.test_cross_encoder import folder_of, tiny_cross_encoder
from tests.tasks.corpora import passage, pseudo_query
from tests.tiny import WORDS

SETTINGS = Scoring(query_max_tokens=6, max_tokens=14)
DRAW = np.random.default_rng(3)
PASSAGES = [
    passage(f"d{n}", " ".join(DRAW.choice(WORDS, size=n % 13)), title="king" if n % 4 == 0 else "") for n in range(30)
]
QUERIES = [
    pseudo_query(f"d{n}", rank, " ".join(DRAW.choice(WORDS, size=(n + rank) % 7)))
    for n in range(30)
    if n % 3
    for rank in range(n % 5)
]
pytestmark = pytest.mark.usefixtures("store")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return Source("encoder", folder_of(tiny_cross_encoder(), tmp_path_factory.mktemp("encoder")))


@pytest.fixture(scope="module")
def passages(written: Any) -> Artifact[Passages]:
    return written(Passages, PASSAGES)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Artifact[PseudoQueries]:
    """In two files, the second of which begins amid a passage's queries."""
    folder = tmp_path_factory.mktemp("queries")
    write_rows(folder, PseudoQueries, QUERIES[:17], "part-00001")
    write_rows(folder, PseudoQueries, QUERIES[17:], "part-00002")
    return Artifact("queries", "written", folder)


def slow_scores(encoder: Source, rows: list[dict[str, Any]]) -> Iterator[float]:
    tokenizer, model = Tokenizer.load(encoder.path), cross_encoder.load(encoder.path)
    for row in rows:
        own = PASSAGES[int(row["passage_id"][1:])]
        query_ids, text = tokenizer.token_ids([row["query"], passage_text(own["title"], own["text"])])
        pair = encode_pair(tokenizer, query_ids, text, query_max_tokens=6, max_tokens=14)
        with torch.inference_mode():
            yield float(model(pad_pairs(tokenizer, [pair]))[0])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in parts(folder)}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return list(read_rows(Artifact("made", "here", folder), PseudoQueries))


@pytest.mark.parametrize("block", [10_000, 4])
def test_every_query_that_is_not_empty_is_scored(
    encoder: Source, passages: Any, queries: Any, tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "ROWS_PER_GROUP", block)

    relevance.body(tmp_path, queries, passages, encoder, settings=SETTINGS)

    results = rows_of(tmp_path)
    assert [row | {"relevance": None} for row in results] == QUERIES
    assert [row["relevance"] is None for row in results] == [not row["query"] for row in QUERIES]
    written = [row for row in results if row["query"]]
    assert [row["relevance"] for row in written] == pytest.approx(list(slow_scores(encoder, written)), abs=1e-5)
    assert np.std([row["relevance"] for row in written]) > 0.1
    assert 0 < len(written) < len(results)
    assert list(contents(tmp_path)) == list(contents(queries.path))


def test_a_killed_run_goes_on_and_another_process_writes_the_same(
    encoder: Source, passages: Any, queries: Any, tmp_path: Path
) -> None:
    whole, elsewhere = tmp_path / "whole", tmp_path / "elsewhere"
    relevance.body(whole, queries, passages, encoder, settings=SETTINGS)
    job, counted = ShardJob(score_part, elsewhere, (queries, passages, encoder), SETTINGS, "", ""), [0]
    for shard in file_shards(queries, passages)[1:]:
        write_shard_of_request(json.loads(json.dumps(request(job))), shard, lambda rows: counted.append(rows))
    kept = {path.name: path.stat().st_ino for path in parts(elsewhere)}
    relevance.body(elsewhere, queries, passages, encoder, settings=SETTINGS)
    relevance.body(elsewhere, queries, passages, Source("gone", tmp_path), settings=SETTINGS)  # nothing is opened

    assert len(kept) == 1
    assert kept.items() <= {path.name: path.stat().st_ino for path in parts(elsewhere)}.items()
    assert contents(elsewhere) == contents(whole)
    assert sum(counted) == len(QUERIES) - 17


@pytest.mark.parametrize(
    "others", [["d1", "e", "d3"], ["d1", "e"], ["d1", "d7", "d3"], ["d3", "d1"], ["d1", "d0", "d2"]]
)
def test_queries_of_other_passages_are_refused(
    encoder: Source, passages: Any, written: Any, others: list[str], tmp_path: Path
) -> None:
    strangers = written(PseudoQueries, [pseudo_query(other, 0, "music") for other in others])

    with pytest.raises(UserError, match=rf"passage '\w+' is not among {passages.reference}, or out of order"):
        relevance.body(tmp_path, strangers, passages, encoder, settings=SETTINGS)
    assert not parts(tmp_path)


def test_scores_that_are_no_numbers(passages: Any, written: Any, tmp_path: Path) -> None:
    broken = tiny_cross_encoder()
    with torch.no_grad():
        broken.classifier.weight.fill_(3e38)  # finite, so that it is loaded, and too large to be added up
    (tmp_path / "broken").mkdir()
    encoder = Source("broken", folder_of(broken, tmp_path / "broken"))
    queries = written(PseudoQueries, [pseudo_query("d1", 0, ""), pseudo_query("d1", 1, "music")])

    with pytest.raises(UserError, match="source/broken: its score of query 1 of passage 'd1' is not a number"):
        relevance.body(tmp_path / "out", queries, passages, encoder, settings=SETTINGS)
    long = Scoring(query_max_tokens=6, max_tokens=65)
    with pytest.raises(UserError, match=r"filter\.relevance: max_tokens: expected at most 64, found 65"):
        relevance.body(tmp_path / "out", queries, passages, encoder, settings=long)
    assert not parts(tmp_path / "out")
