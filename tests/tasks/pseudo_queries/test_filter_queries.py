"""Which pseudo-queries a cut drops, against the definition read row by row."""

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from storage import rows as stored
from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import parts, read_rows, write_rows
from storage.tables import PseudoQueries
from tasks.pseudo_queries.column_rewrite import file_shards
from tasks.pseudo_queries.filter_queries import Cut, Limits, cut_part, filter_queries, percentile
from tasks.pseudo_queries.filter_settings import Filtering
from tasks.runtime.shard import ShardJob, request, write_shard_of_request
from tests.tasks.corpora import pseudo_query

pytestmark = pytest.mark.usefixtures("store")
CUTS = [
    {"round_trip": 3, "relevance": None},
    {"round_trip": None, "relevance": {"threshold": 0.5}},
    {"round_trip": None, "relevance": {"percentile": 70}},
    {"round_trip": 1, "relevance": {"percentile": 12.5}},
    {"round_trip": 9, "relevance": {"threshold": -2}},
]


def cut(**values: Any) -> Cut:
    return Cut.model_validate_json(json.dumps({"round_trip": None, "relevance": None} | values))


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Artifact[PseudoQueries]:
    """Scored, in two files; scores tie, an earlier cut has dropped some, and some are empty."""
    draw, rows = random.Random(4), []
    for n in range(90):
        scores = {"round_trip": draw.randrange(6), "relevance": float(np.float32(draw.randint(-20, 20) / 10))}
        dropped = {"kept": False, "reason": draw.choice(["round trip", "relevance"])} if n % 4 == 0 else {}
        rows.append(pseudo_query(f"d{n}", 0, "q", **scores, **dropped) if n % 7 else pseudo_query(f"d{n}", 0, ""))
    folder = tmp_path_factory.mktemp("queries")
    write_rows(folder, PseudoQueries, rows[:50], "part-00003")
    write_rows(folder, PseudoQueries, rows[50:], "part-00004")
    return Artifact("queries", "written", folder)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return list(read_rows(Artifact("made", "here", folder), PseudoQueries))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in parts(folder)}


def slow_percentile(numbers: list[float], percent: float) -> float:
    """Integers alone, so that nothing is rounded; percents have three digits at most."""
    return sorted(numbers)[-(-round(percent * 1000) * (len(numbers) - 1) // 100_000)]


def slowly_cut(rows: list[dict[str, Any]], settings: dict[str, Any]) -> list[dict[str, Any]]:
    least, last = settings["relevance"] or {"threshold": -math.inf}, settings["round_trip"]
    if "percentile" in least:
        scores = [row["relevance"] for row in rows if row["query"]]
        least = {"threshold": slow_percentile(scores, least["percentile"])}
    results = []
    for row in rows:
        reason = ""
        if not row["query"]:
            reason = "empty"
        elif last is not None and row["round_trip"] not in range(1, last + 1):
            reason = "round trip"
        elif row["relevance"] < least["threshold"]:
            reason = "relevance"
        results.append(row | {"kept": reason == "", "reason": reason})
    return results


@pytest.mark.parametrize("block", [10_000, 7])
@pytest.mark.parametrize("settings", CUTS)
def test_cuts(
    queries: Any, settings: dict[str, Any], block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "ROWS_PER_GROUP", block)

    filter_queries.body(tmp_path, queries, settings=cut(**settings))

    results = rows_of(tmp_path)
    assert results == slowly_cut(rows_of(queries.path), settings)
    assert len({row["reason"] for row in results}) > 2
    assert list(contents(tmp_path)) == list(contents(queries.path))


def test_another_cut_of_a_filtered_table_is_that_of_the_scored_one(queries: Any, tmp_path: Path) -> None:
    once, twice, again = (tmp_path / name for name in ("once", "twice", "again"))
    filter_queries.body(once, queries, settings=cut(**CUTS[3]))
    filter_queries.body(twice, Artifact("filtered", "once", once), settings=cut(**CUTS[2]))
    filter_queries.body(again, queries, settings=cut(**CUTS[2]))

    assert contents(twice) == contents(again) != contents(once)


def test_a_killed_run_goes_on_and_another_process_writes_the_same(queries: Any, tmp_path: Path) -> None:
    whole, elsewhere, least = tmp_path / "whole", tmp_path / "elsewhere", 1.100000023841858
    filter_queries.body(whole, queries, settings=cut(round_trip=4, relevance={"threshold": least}))
    shard_request = request(ShardJob(cut_part, elsewhere, (queries,), Limits(round_trip=4, relevance=least), "", ""))
    write_shard_of_request(json.loads(json.dumps(shard_request)), file_shards(queries)[1], lambda rows: None)
    (before,) = [path.stat().st_ino for path in parts(elsewhere)]
    filter_queries.body(elsewhere, queries, settings=cut(round_trip=4, relevance={"threshold": least}))

    assert contents(elsewhere) == contents(whole)
    assert before == (elsewhere / "part-00004.parquet").stat().st_ino
    assert any(row["kept"] and row["relevance"] == least for row in rows_of(whole))  # not rounded on the way


def test_missing_scores_and_cuts_that_keep_nothing(written: Any, queries: Any, tmp_path: Path) -> None:
    half = written(PseudoQueries, [
        pseudo_query("a", 0, "q", round_trip=1, relevance=1.0), pseudo_query("a", 1, ""),
        pseudo_query("b", 0, "q", round_trip=1), pseudo_query("b", 1, "q", relevance=1.0),
    ])  # fmt: skip
    with pytest.raises(UserError, match=r"filter\.cut\.relevance: .*: query 0 of passage 'b' has no relevance"):
        filter_queries.body(tmp_path, half, settings=cut(relevance={"percentile": 50}))
    with pytest.raises(UserError, match=r"filter\.cut\.round_trip: .*: query 1 of passage 'b' has no round_trip"):
        filter_queries.body(tmp_path, half, settings=cut(round_trip=1))
    assert not parts(tmp_path)

    with pytest.raises(
        UserError, match=r"keeps no query of .* \(77 dropped by relevance, 13 empty\); lower the cutoff"
    ):
        filter_queries.body(tmp_path, queries, settings=cut(relevance={"threshold": 2.1}))
    for empty in (written(PseudoQueries, [pseudo_query("a", 0, "")]), written(PseudoQueries, [])):
        with pytest.raises(UserError, match="it keeps no query"):
            filter_queries.body(tmp_path / empty.key, empty, settings=cut(relevance={"percentile": 50}))


@pytest.mark.parametrize("percent", [0.001, 7, 50, 66.667, 70, 99.9])
def test_percentiles_are_those_of_the_sorted_numbers(percent: float) -> None:
    draw = np.random.default_rng(5)
    for size in (1, 2, 3, 101, 1001):
        spread = np.concatenate([draw.normal(3, 4, size), draw.normal(0, 1e-39, size), [0.0, -0.0, 3.5, 3.5, -1e38]])
        for numbers in (spread, np.round(spread[:size]), np.full(size, -2.5)):
            column = draw.permutation(numbers).astype(np.float32)
            result = percentile(lambda column=column: np.array_split(column, 3), percent)
            assert result == slow_percentile(column.tolist(), percent)
            interpolated = np.percentile(column.astype(np.float64), percent)
            assert (column >= result).sum() == (column >= interpolated - 1e-12 * abs(interpolated)).sum()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"relevance": None}, "cut.relevance: expected null where no relevance is scored"),
        ({"round_trip": None}, "cut.round_trip: expected null where no round_trip is scored"),
        ({"round_trip": None, "relevance": None, "cut": None}, "to change and drop nothing, set filter to null"),
        ({"cut": {"round_trip": 11, "relevance": None}}, "cut.round_trip: expected at most 10, .* found 11"),
        ({"cut": {"round_trip": None, "relevance": None}}, "to drop no query, set cut to null"),
        ({"cut": {"round_trip": 3, "relevance": {"percentile": 100}}}, "less than 100"),
        ({"cut": {"round_trip": 3, "relevance": 5}}, "Input should be an object"),
    ],
)
def test_sections_that_ask_for_what_is_not_there(changes: dict[str, Any], message: str) -> None:
    section = {
        "round_trip": {"depth": 10}, "relevance": {"model": "a", "query_max_tokens": 64, "max_tokens": 512},
        "cut": {"round_trip": 3, "relevance": {"percentile": 70}},
    }  # fmt: skip
    Filtering.model_validate_json(json.dumps(section | {"cut": None}))

    result = Filtering.model_validate_json(json.dumps(section))
    assert result.relevance
    assert result.relevance.scoring.model_dump() == {"query_max_tokens": 64, "max_tokens": 512}
    with pytest.raises(ValidationError, match=message):
        Filtering.model_validate_json(json.dumps(section | changes))
