"""Ranks of the own passages, against BM25's lists read one query at a time."""

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import parts, read_rows, write_rows
from storage.tables import Index, Passages, PseudoQueries
from tasks.pseudo_queries import round_trip as module
from tasks.pseudo_queries.column_rewrite import file_shards
from tasks.pseudo_queries.round_trip import RoundTrip, rank_part, round_trip
from tasks.retrieval.engines.bm25 import Bm25, open_index
from tasks.retrieval.index import index
from tasks.retrieval.shared_passages import share_passages
from tasks.runtime.shard import ShardJob, request, write_shard_of_request
from tests.passage_index import read_index
from tests.tasks.corpora import passage, pseudo_query

DEPTH = 7
SETTINGS = RoundTrip(depth=DEPTH)
COPIES = "many copies of one walrus"
pytestmark = pytest.mark.usefixtures("on_one_thread")


@pytest.fixture(scope="module")
def passages(written: Any) -> Artifact[Passages]:
    """Random words, whose order is not that of the ids; three are equal, and one has no words for Lucene."""
    draw = random.Random(1)
    words = [f"{start}{end}" for start in ("ba", "ko", "mi", "tu") for end in ("ran", "lo", "nik", "stel")]
    rows = [passage(f"d{n}#0", " ".join(draw.choices(words, k=draw.randint(3, 12)))) for n in range(40)]
    rows[5], rows[12], rows[30] = (passage(f"d{n}#0", COPIES) for n in (5, 12, 30))
    rows[20] = passage("d20#0", " ")
    rows[21] |= {"title": "gargoyle"}
    return written(Passages, rows)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def bm25(run_stage: Any, on_one_thread: Any, passages: Artifact[Passages]) -> Artifact[Index]:
    return run_stage(index, passages=passages, settings=Bm25(engine="bm25", k1=0.9, b=0.4))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def queries(passages: Artifact[Passages], tmp_path_factory: pytest.TempPathFactory) -> Artifact[PseudoQueries]:
    """In three files, of which one begins amid a passage's queries and one has no row."""
    draw, rows = random.Random(2), []
    for row in read_rows(passages, Passages):
        for rank in range(draw.randint(0, 4)):
            text = " ".join(draw.choices(row["text"].split() or ["of"], k=draw.randint(0, 2)))
            rows.append(pseudo_query(row["passage_id"], rank, text))
        if row["text"] == COPIES:
            rows += [pseudo_query(row["passage_id"], rank, "one walrus") for rank in (4, 5)]
        if row["title"]:
            rows.append(pseudo_query(row["passage_id"], 4, "gargoyle"))
            rows.append(pseudo_query(row["passage_id"], 5, "a zeppelin", kept=False, reason="relevance"))
    folder = tmp_path_factory.mktemp("queries")
    for number, some in ((1, rows[:33]), (4, []), (7, rows[33:])):
        write_rows(folder, PseudoQueries, some, f"part-{number:05d}")
    return Artifact("queries", "written", folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in parts(folder)}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return list(read_rows(Artifact("made", "here", folder), PseudoQueries))


def slow_ranks(bm25: Artifact[Index], passages: Artifact[Passages], rows: list[dict[str, Any]]) -> Iterator[int | None]:
    ids = read_index(passages)
    search = open_index(bm25.path, None, None, ids, "bm25")
    for row in rows:
        hits = search([row["query"]])([0], DEPTH)[0]
        names = [ids.ids[int(row)].as_py() for row in hits.rows]
        yield (names.index(row["passage_id"]) + 1 if row["passage_id"] in names else 0) if row["query"] else None


def test_ranks_are_those_of_the_list(bm25: Any, passages: Any, queries: Any, tmp_path: Path) -> None:
    round_trip.body(tmp_path, queries, passages, bm25, settings=SETTINGS)

    before, after = rows_of(queries.path), rows_of(tmp_path)
    ranks = slow_ranks(bm25, passages, before)
    assert after == [row | {"round_trip": rank} for row, rank in zip(before, ranks, strict=True)]
    assert list(contents(tmp_path)) == list(contents(queries.path))
    assert {0, 1, 2, 3, None} <= {row["round_trip"] for row in after}
    results = {(row["passage_id"], row["query"]): row["round_trip"] for row in after}
    assert [results[f"d{n}#0", "one walrus"] for n in (12, 30, 5)] == [1, 2, 3]  # as Anserini puts ties
    assert results["d21#0", "gargoyle"] == 1
    assert results["d21#0", "a zeppelin"] == 0


def test_the_same_bytes_block_by_block_and_in_another_process(
    bm25: Any, passages: Any, queries: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, little, elsewhere = (tmp_path / name for name in ("whole", "little", "elsewhere"))
    round_trip.body(whole, queries, passages, bm25, settings=SETTINGS)
    monkeypatch.setattr(module, "QUERIES_AT_ONCE", 4)
    round_trip.body(little, queries, passages, bm25, settings=SETTINGS)
    share_passages(elsewhere, passages)
    shard_request, counted = request(ShardJob(rank_part, elsewhere, (queries, passages, bm25), SETTINGS, "", "")), [0]
    for shard in file_shards(queries, passages):
        write_shard_of_request(json.loads(json.dumps(shard_request)), shard, lambda rows: counted.append(rows))

    assert contents(whole) == contents(little) == contents(elsewhere)
    assert sum(counted) == len(rows_of(queries.path))


def test_a_killed_run_keeps_its_finished_files(bm25: Any, passages: Any, queries: Any, tmp_path: Path) -> None:
    round_trip.body(tmp_path / "whole", queries, passages, bm25, settings=SETTINGS)
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    (tmp_path / "killed" / "part-00007.parquet").unlink()
    kept = {path.name: path.stat().st_ino for path in parts(tmp_path / "killed")}

    round_trip.body(tmp_path / "killed", queries, passages, bm25, settings=SETTINGS)
    round_trip.body(tmp_path / "killed", queries, passages, Artifact("gone", "x", tmp_path), settings=SETTINGS)

    assert kept.items() <= {path.name: path.stat().st_ino for path in parts(tmp_path / "killed")}.items()
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


@pytest.mark.parametrize("others", [["d1#0", "e#0", "d3#0"], ["d1#0", "e#0"], ["d1#0", "d7#0", "d3#0"]])
def test_queries_of_other_passages_are_refused(
    bm25: Any, passages: Any, written: Any, others: list[str], tmp_path: Path
) -> None:
    strangers = written(PseudoQueries, [pseudo_query(other, 0, "baran") for other in others])

    with pytest.raises(UserError, match=f"passage '{others[1]}' is not among {passages.reference}, or out of"):
        round_trip.body(tmp_path, strangers, passages, bm25, settings=SETTINGS)
    assert not parts(tmp_path)
