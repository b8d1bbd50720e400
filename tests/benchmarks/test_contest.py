"""Interleaved contenders: a ratio is a baseline's seconds over ours in each turn; a fall by a quarter is reported."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import contest, page, results
from benchmarks.contest import OURS, Case, held

ROOT = Path(__file__).resolve().parents[2]
DEVICES = ("cpu", "cuda")


@pytest.fixture
def by_the_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock that only work moves on."""
    now = [0.0]

    def work(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(contest, "clock", lambda device: now[0])
    return work


def test_ratios_are_of_turns_and_the_first_turn_is_not_counted(by_the_clock: Callable[[float], None]) -> None:
    ours, theirs = iter([100.0, 1.0, 2.0, 4.0]), iter([100.0, 3.0, 2.0, 20.0])
    order: list[str] = []

    def contender(name: str, seconds: Iterator[float]) -> Callable[[], str]:
        def work() -> str:
            order.append(name)
            by_the_clock(next(seconds))
            return name

        return work

    results = held(Case(
        "work", {OURS: contender("ours", ours), "peer": contender("peer", theirs)}, {"peer": 1.5}, repeats=3,
        compared=lambda returned: {"made": dict(returned)}, units={"rows": 10, "letters": len},
    ))  # fmt: skip

    assert results["times_faster"]["peer"] == {"median": 3.0, "lowest": 1.0, "highest": 5.0, "target": 1.5}
    assert results["seconds"] == {OURS: 2.0, "peer": 3.0}
    assert results["rates"] == {"rows": {OURS: 5.0, "peer": 3.333}, "letters": {OURS: 2.0, "peer": 1.333}}
    assert results["found"] == {"made": {OURS: "ours", "peer": "peer"}}
    assert order == ["ours", "peer", "ours", "peer", "peer", "ours", "ours", "peer"]  # each begins in its turn


def test_a_speedup_per_unit_does_not_reward_results_that_are_shorter(by_the_clock: Callable[[float], None]) -> None:
    def contender(text: str) -> Callable[[], str]:
        def work() -> str:
            by_the_clock(float(len(text)))  # both are as fast
            return text

        return work

    results = held(
        Case("work", {OURS: contender("ab"), "peer": contender("abcd")}, units={"letters": len}, per="letters")
    )

    assert results["times_faster"]["peer"] == {"median": 1.0, "lowest": 1.0, "highest": 1.0, "target": None}
    assert [results["per"], results["seconds"]] == ["letters", {OURS: 2.0, "peer": 4.0}]


def test_the_page_counts_targets_and_names_what_is_slower() -> None:
    ratios = {
        "fast": {"median": 2.0, "target": 1.5},
        "slow": {"median": 0.5, "target": 1.0},
        "equal": {"median": 1.0, "target": None},
    }
    cases = {"work": {"times_faster": ratios}}
    lines = list(page.summary([{"benchmark": "bm25_mining", "device": device, "cases": cases} for device in DEVICES]))

    assert lines[0] == "2 of 4 targets are met. Slower than the baseline:"
    assert lines[2:] == [
        "- BM25 mining, work: speedup 0.5 over slow", "- BM25 mining on a GPU, work: speedup 0.5 over slow"
    ]  # fmt: skip


def test_results_that_differ_end_a_benchmark() -> None:
    def unequal(returned: Any) -> dict[str, Any]:
        assert returned[OURS] == returned["peer"], "other lists"
        return {}

    with pytest.raises(AssertionError, match="other lists"):
        held(Case("work", {OURS: lambda: 1, "peer": lambda: 2}, compared=unequal, repeats=1))


def test_work_of_children_counts() -> None:
    burn = [sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"]
    started = contest.clock("cpu")
    subprocess.run(burn, check=True)
    slept = contest.clock("cpu")
    time.sleep(0.2)
    assert slept - started > 0.25
    assert contest.clock("cpu") - slept < 0.15


def result(median: float) -> dict[str, Any]:
    ratio = {"median": median, "lowest": median, "highest": median, "target": 2.0}
    case = {"seconds": {OURS: 1.0, "a & b": median}, "times_faster": {"a & b": ratio}, "rates": {}}
    case |= {"turns": 5, "found": {"n": {"of one": 3.0, "of all": 0.25}}}
    return {
        "benchmark": "exact_search", "what": "Search.", "device": "cpu", "minutes": 1.0, "cases": {"100 rows": case},
        "machine": {"processor": "a processor", "cores": 2, "load": 0.1, "versions": {"numpy": "2"}},
    }  # fmt: skip


def test_the_recorded_ratio_stays_until_it_is_recorded_anew(tmp_path: Path) -> None:
    path = tmp_path / "results" / "exact_search.json"
    first = results.write(path, result(2.0), record=False)
    assert results.fallen(first) == []

    slower = results.write(path, result(1.6), record=False)
    assert results.fallen(slower) == []  # by a fifth
    fallen = results.write(path, result(1.4), record=False)  # by less than a quarter of the last, more of the recorded
    [complaint] = results.fallen(fallen)
    assert all(word in complaint for word in ("exact_search", "100 rows", "1.4", "a & b", "2.0"))
    assert json.loads(path.read_text()) == fallen

    assert results.fallen(results.write(path, result(1.4), record=True)) == []
    assert results.lost(results.read(path), result(1.0)) == []
    renamed = {**result(1.0), "cases": {"200 rows": result(1.0)["cases"]["100 rows"]}}
    [gone] = results.lost(results.read(path), renamed)
    assert all(word in gone for word in ("exact_search", "100 rows", "a & b", "--record"))
    assert [ratio["recorded"] for _, _, ratio in results.ratios(results.read(path))] == [1.4]


def test_the_page_tells_every_number_and_what_was_missed() -> None:
    met, missed = result(3.0), result(1.5)
    for measurement in (met, missed):
        for _, _, ratio in results.ratios(measurement):
            ratio["recorded"] = 2.5
    text = page.page([met], [missed])
    assert "| a & b | 3 | 3 (3 to 3) | 2 met | 2.5 |" in text
    assert "**100 rows** (5 turns)" in text
    assert "- n: of one 3, of all 0.25\n" in text
    assert "| a & b | 1.5 | 1.5 (1.5 to 1.5) | 2 missed | 2.5 |" in text.partition("## On a GPU")[2]
    assert page.NO_GPU in page.page([met], [])
    drawn = page.picture([met, missed])
    assert [drawn.count(f'class="{kind}"') for kind in ("goal", "met", "missed", "other")] == [3, 2, 2, 1]  # legend too
    assert "a &amp; b" in drawn


@pytest.mark.parametrize("path", [page.PAGE, page.PICTURE], ids=lambda path: path.name)
def test_the_documents_are_what_the_results_say(path: Path) -> None:
    assert path.read_text() == page.documents()[path], f"{path.relative_to(ROOT)} is old: run make bench"


def test_an_unknown_benchmark_is_refused() -> None:
    done = subprocess.run([sys.executable, "-m", "benchmarks", "splitin"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "splitin" in done.stderr
    assert "splitting" in done.stderr
