"""What `pretrieve plan` prints: texts and numbers of each stage, and the sum of the hours."""

from pathlib import Path

import pytest

from flows.plan.estimates import StageEstimate, _without_hours, estimated
from flows.plan.gpu_needs import Need
from flows.plan.gpus import find_gpu
from flows.plan.show import _cells, legend, plan_table, stage_as_json, total_time


def row(hours: float | None, *, cached: bool = False) -> StageEstimate:
    return StageEstimate("encode", "", "0", cached, hours=hours)


def test_a_stage_for_programs_has_its_numbers_next_to_the_texts_of_the_table() -> None:
    estimate = StageEstimate("encode", "retriever_1", "0123", False, 1.25e15, 2e18, 3 * 2**20, 1234.56)

    assert stage_as_json(estimate) == {
        "stage": "encode", "round": "retriever_1", "key": "0123", "state": "to build", "tokens": "1.25e15",
        "flops": "2.00e18", "disk": "~3.0 MiB", "hours": "~1,234.6",
        "num_tokens": 1.25e15, "num_flops": 2e18, "disk_bytes": 3 * 2**20, "num_hours": 1234.56,
    }  # fmt: skip


def test_what_is_not_known_is_a_question_only_where_texts_pass_through_an_encoder() -> None:
    encode = stage_as_json(StageEstimate("encode", "", "–", False, is_counted=True))
    ingest = stage_as_json(StageEstimate("ingest_corpus", "", "–", False))

    assert (encode["tokens"], encode["flops"], encode["disk"], encode["hours"]) == ("?", "?", "", "")
    assert (ingest["tokens"], ingest["flops"]) == ("", "")
    assert [encode[name] for name in ("num_tokens", "num_flops", "disk_bytes", "num_hours")] == [None] * 4


def test_only_estimates_are_marked() -> None:
    assert stage_as_json(StageEstimate("encode", "", "0", True, disk_bytes=1024))["disk"] == "1.0 KiB"


def test_the_hours_of_stages_to_build_are_added_up() -> None:
    rows = [row(513_914.2), row(1.5), row(None), row(None, cached=True)]

    assert total_time(rows) == "in total: ~513,916 hours, for 2 of 3 stages to build; the others have no estimate"


def test_less_than_an_hour_is_given_in_minutes() -> None:
    assert total_time([row(0.076), row(0.07), row(0.0003)]) == "in total: ~8 min 47 s, for 3 of 3 stages to build"


def test_stages_that_have_hours_on_the_gpu_are_not_listed_without_hours() -> None:
    rows = [row(None), StageEstimate("mine", "", "0", False)]
    known, unknown = (Need("encode", "", 1, "float32", 1, True, "", hours) for hours in (2.0, None))

    assert _without_hours(rows, [known]) == ["no hours are estimated for mine: no rate is known for them"]
    assert _without_hours(rows, [unknown]) == ["no hours are estimated for encode, mine: no rate is known for them"]
    assert _without_hours(rows[:1], [known]) == []


def test_the_legend_explains_the_signs_that_the_table_has() -> None:
    assert "~ marks an estimate" in legend([row(1.0)])
    assert "number of texts" not in legend([StageEstimate("ingest_corpus", "", "–", False)])
    unknown = StageEstimate("encode", "", "–", False, is_counted=True)
    assert legend([unknown]).endswith("?: the number of texts is not known yet")


def test_without_an_estimate_there_is_no_total() -> None:
    assert total_time([row(None), row(None, cached=True)]) == ""


def test_the_table_gives_times_with_their_units() -> None:
    times = [_cells(row(hours))["hours"] for hours in (4.2 / 3600, 0.5, 5.2, 1234.56)]

    assert times == ["~4.2 s", "~30 min 0 s", "~5 h 12 min", "~1,235 h"]
    assert [column.header for column in plan_table("title", []).columns][-1] == "time"


def test_searches_are_told_apart_by_their_split_and_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRETRIEVE_CACHE", str(tmp_path))
    rows = [_cells(stage) for stage in estimated("quickstart", tmp_path / "store", [], find_gpu("h200")).rows]

    searches = [(stage["stage"], stage["round"]) for stage in rows if stage["stage"].startswith("search")]
    assert len(set(searches)) == len(searches) > 5
    assert ("search few_train", "bm25") in searches
    assert ("search many_test", "bm25_doc2query") in searches
    assert ("search many_test", "retriever_1") in searches
    ingested = [stage["stage"] for stage in rows if stage["stage"].startswith("ingest_")]
    assert len(set(ingested)) == len(ingested) == 5
    assert max(len(stage["stage"]) for stage in rows) == len("pseudo_queries_as_queries")  # no wider than before


def test_bm25_without_titles_is_a_system_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRETRIEVE_CACHE", str(tmp_path))
    changes = ["evaluate.bm25_without_titles=true", "split.titles=true", "dataset.path=nowhere"]
    stages = estimated("small/beir", tmp_path / "store", changes, find_gpu("h200")).rows

    systems = [stage.system for stage in stages if stage.stage == "search" and not stage.round]
    assert {"bm25", "bm25_without_titles"} <= set(systems)
