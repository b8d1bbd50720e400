"""How growth is measured, reported and drawn; docs/scale.md is what its generator writes."""

import json
import shutil
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import pytest

from benchmarks import (
    gpu_rates_page,
    growing,
    growth,
    invented,
    limits,
    panels,
    recipe_costs,
    results,
    scale,
    slopes,
    t5_base,
)
from flows.documentation.paper_coverage import reproducing_recipes
from storage.datasets import beir
from storage.store.store import Store

ROOT = Path(__file__).resolve().parents[2]
PEAK = scale.PEAKS["H200"]


def rows(*seconds: float, peaks: tuple[float, ...] = (100, 100, 104, 120)) -> list[dict[str, Any]]:
    """What was measured of a stage at the start's size and at three more."""
    sizes = (256, 4_000, 16_000, 64_000)
    return [
        {"documents": size, "seconds": duration, "peak_mib": peak, "bytes": 10 * size}
        for size, duration, peak in zip(sizes, seconds, peaks, strict=True)
    ]


def measured(**stages: list[dict[str, Any]]) -> dict[str, Any]:
    machine = {"processor": "a processor", "cores": 2, "load": 0.1, "versions": {"torch": "2"}}
    return {"start": 256, "minutes": 1.0, "stages": stages, "machine": machine}


def test_an_exponent_is_the_slope_without_the_start_up() -> None:
    result = measured(split=rows(2.0, 3.0, 6.0, 18.0), mine=rows(2.0, 3.0, 18.0, 258.0))

    assert slopes.seconds(result, "split") == [(4_000, 1.0), (16_000, 4.0), (64_000, 16.0)]
    linear, square = (slopes.slope(slopes.seconds(result, name)) for name in result["stages"])
    assert linear
    assert square
    assert linear.exponent == pytest.approx(1.0)
    assert (square.exponent, square.lowest, square.highest) == pytest.approx((2.0, 2.0, 2.0))
    assert slopes.faster(result) == ["mine"]
    # n log n by hand: between 4,000 and 64,000 the logarithm grows from 8.29 to 11.07, and n sixteenfold.
    assert slopes.n_log_n(result) == pytest.approx(1 + 0.2886 / 2.7726, abs=1e-3)


def test_an_uneven_growth_has_the_exponents_of_its_steps_as_bounds() -> None:
    result = slopes.slope([(1, 1.0), (4, 4.0), (16, 64.0)])
    assert result
    assert (result.exponent, result.lowest, result.highest) == pytest.approx((1.5, 1.0, 2.0))


def test_what_is_too_short_has_no_exponent() -> None:
    assert slopes.slope([(4_000, 0.01), (16_000, 0.04), (64_000, 0.16)]) is None
    result = slopes.slope([(4_000, 0.01), (16_000, 0.25), (64_000, 1.0)])
    assert result
    assert (result.exponent, result.lowest, result.highest) == pytest.approx((1.0, 1.0, 1.0))


def test_the_time_of_steps_excludes_that_before_them() -> None:
    name, before = next(iter(slopes.TAKEN_OFF.items()))
    result = measured(**{before: rows(1.0, 2.0, 5.0, 20.0), name: rows(2.0, 4.0, 7.0, 22.0)})
    assert slopes.seconds(result, name) == [(4_000, 2.0), (16_000, 2.0), (64_000, 2.0)]
    assert all(name in growing.STAGES for pair in slopes.TAKEN_OFF.items() for name in pair)


def test_memory_and_disk_are_given_by_document() -> None:
    result = measured(split=rows(2.0, 3.0, 6.0, 18.0))
    assert slopes.bytes_each(result, "split", "peak_mib") == 0  # 16 MiB more are a buffer's
    assert slopes.bytes_each(result, "split", "bytes") == 10
    result["stages"]["split"][-1]["peak_mib"] += 32
    assert slopes.bytes_each(result, "split", "peak_mib") == pytest.approx(48 * 2**20 / 48_000)


def test_an_invented_collection_has_the_requested_size_and_can_be_read(tmp_path: Path) -> None:
    invented.make_collection(tmp_path, 48)

    documents = list(beir.texts(tmp_path, "corpus"))
    assert len(documents) == 48
    assert all(row["text"] for row in documents)
    judged = {row["query_id"]: row["doc_id"] for row in beir.qrels(tmp_path, "all")}
    texts = {row["doc_id"]: row["text"] for row in documents}
    queries = {row["query_id"]: row["text"] for row in beir.queries(tmp_path, "all")}
    assert len(queries) == 3
    assert all(word in texts[judged[query]] for query, text in queries.items() for word in text.split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("growth")
    (built / "models").mkdir()  # they take seconds to make, and what is measured here needs none
    growth.prepare(built, (64,))
    return built


def test_a_stage_is_measured_anew_though_the_store_has_it(folder: Path) -> None:
    first = growth.measured(folder, "ingest", 64)
    assert first["documents"] == 64
    assert first["peak_mib"] > 10
    (built,) = (folder / "64" / "store" / "ingest_corpus").iterdir()
    (built / "of the first").touch()
    work = Store(folder / "64" / "store").work("ingest_corpus", built.name)
    work.mkdir(parents=True)
    (work / "part-00000.parquet").write_bytes(b"left by a run that was killed")

    again = growth.measured(folder, "ingest", 64)

    assert again["bytes"] == pytest.approx(first["bytes"], rel=0.01)  # but for what its manifest says of the time
    assert not (built / "of the first").exists()
    assert not work.exists()


def test_a_stage_whose_inputs_are_missing_is_refused(folder: Path) -> None:
    shutil.rmtree(folder / "64" / "store")
    with pytest.raises(SystemExit, match=r"begun by other code and lacks ingest_corpus: remove it"):
        growth.measured(folder, "split", 64)


def test_a_killed_run_resumes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def run(command: list[str], **options: Any) -> Any:
        calls.append(command[-2:])
        return type("Done", (), {"returncode": 0, "stdout": 'a line\n{"documents": 64, "seconds": 1.0}\n'})

    monkeypatch.setattr(growth.subprocess, "run", run)
    first = growth.measurement(folder, "split", 64)
    assert growth.measurement(folder, "split", 64) == first
    assert first["seconds"] == 1.0
    assert calls == [["split", "64"]]
    growth.prepare(folder, (64,))  # finds all of it


def test_every_stage_has_a_panel() -> None:
    result = measured(**{"a <stage>": rows(2.0, 3.0, 6.0, 18.0), "short": rows(1.0, 1.0, 1.0, 1.0)})
    drawn = panels.picture(result)
    texts = [element.text for element in xml.etree.ElementTree.fromstring(drawn).iter() if element.tag.endswith("text")]
    assert {
        "a <stage>",
        "short",
        "time n^1.00, memory 100 to 120 MiB",
        "time: too short, memory 100 to 120 MiB",
    } <= set(texts)
    assert drawn.count('<path class="time" d="M') == 2  # the legend's and one of the stages


def steps_at(**shares: float) -> dict[str, Any]:
    """Steps of CoT-MAE on an H100, a second each, that reached these shares of its peak."""
    rows = {f"cot_mae {stage}": (stage, share) for stage, share in shares.items()}
    return {
        "gpu": "h100-80",
        "counted": {
            name: {"recipe": "cot_mae", "stage": stage, "flops": share * 989e12}
            for name, (stage, share) in rows.items()
        },
        "measured": {name: {"seconds": 1.0} for name in rows},
    }


def rates_at(writing: float, scoring: float, searching: float) -> dict[str, Any]:
    """What was measured on an H200 that reached these shares of its peak."""
    peak, seconds = 989e12, 7.0
    reading = 1000 * t5_base.reading_flops(144) / (scoring * peak)
    written = 20_000 * t5_base.writing_flops(144) / (writing * peak)
    selecting = 2 * 768 * 4096 * 100_000 / (searching * peak)
    return {
        "machine": {"gpu": "NVIDIA H200"},
        "cases": {
            "generate": {
                "seconds": reading + written, "passages": 1000, "passage_tokens": 144, "query_tokens": 20_000,
            },
            "score": {"seconds": seconds, "flops": seconds * scoring * peak},
            "search dense": {
                "queries": 4096, "passages": 100_000, "next": {"seconds": selecting + 3.0, "scoring": 3.0},
            },
            "search late": {"queries": 100, "passages": 10_000, "next": {"seconds": 9.0015, "scoring": 9.0}},
        },
    }  # fmt: skip


RATES = rates_at(writing=0.1, scoring=0.1, searching=0.45)


def test_shares_of_the_peak_are_those_of_the_measured_seconds() -> None:
    shares = gpu_rates_page.shares(rates_at(writing=0.04, scoring=0.3, searching=0.02))

    assert (shares.writing, shares.scoring, shares.searching) == pytest.approx((0.04, 0.3, 0.02))
    seconds = t5_base.reading_flops(144) / 0.3 + 5 * 10 * t5_base.writing_flops(144) / 0.04
    assert shares.generating() == pytest.approx(t5_base.flops(144, 5) / seconds)


def test_flops_and_hours_are_those_by_hand() -> None:
    flops = {"pre-train": PEAK * 3600 * 45, "encode": PEAK * 3600 * 4.5, "generate queries": PEAK * 3600}
    pairs = {"dense": 1800 * 0.45 * 989e12 / (2 * 768), "late": 3600 * 1e9}  # half an hour, and one and a half
    costs = {name: {"flops": flops, "pairs": pairs} for name in recipe_costs.SYSTEMS}
    reached = scale.Reached(steps_at(pretrain=0.225, train=0.1, encode=0.3), RATES)
    lines = list(scale.reproductions(costs, reached))
    assert "| `cot_mote` | 10 | 200 | – | – | 15 | 2 | 227 | 227 | 28 | 3.5 |" in lines


def test_what_a_paper_used_is_given_as_a_share_of_its_chips_peak() -> None:
    row = {"recipe": "cot_mae", "share": "1/2", "chip": "A100", "chips": "8", "hours": "10"}
    flops = 2 * 0.25 * 8 * 10 * 3600 * scale.PEAKS["A100"]  # twice a quarter of what ten hours on eight can do

    used = scale._used(row, {"cot_mae": {"flops": {"pre-train": flops}}}, scale.Reached(steps_at(pretrain=0.5), RATES))

    assert used == ["8 A100, 10 h", "80", "25%", "5.6 h", f"{10 * 0.25 * 312 / (0.5 * 989.4):.2g} h"]


def test_what_is_beyond_a_limit_is_named() -> None:
    result = growth_result()
    small, large = (limits.needs(result, 1e9, limits.Rates(PEAK, PEAK, PEAK / 10), size) for size in limits.SIZES)
    bm25 = {need.stage: need for need in large}["index: BM25"]
    assert "Lucene: 2,147,483,519 in an index" in bm25.limits
    assert not [limit for need in small for limit in need.limits if limit.startswith("Lucene")]
    encoded = {need.stage: need for need in large}["encode"]
    assert encoded.hours == pytest.approx(1e10 * 1e9 / (64 * PEAK * 3600))
    written = {need.stage: need for need in large}["generate queries"]
    assert written.hours == pytest.approx(1e10 * t5_base.flops(144, 5) / (64 * PEAK / 10 * 3600))
    assert encoded.disk == 1e10 * 768 * 4
    assert all(b.hours >= 100 * a.hours * 0.99 for a, b in zip(small, large, strict=True))  # none below n
    assert (
        xml.etree.ElementTree.fromstring(limits.picture(dict(zip(limits.SIZES, (small, large), strict=True))))
        is not None
    )


def growth_result() -> dict[str, Any]:
    result: dict[str, Any] = json.loads(results.path_of("growth", "cpu").read_text())
    return result


def test_every_stage_was_measured_and_what_grows_fast_has_a_reason() -> None:
    results = growth_result()
    assert list(results["stages"]) == list(growing.STAGES)
    assert all(
        [row["documents"] for row in stage] == [growth.START, *growth.SIZES] for stage in results["stages"].values()
    )
    assert set(slopes.faster(results)) <= set(slopes.REASONS)
    for name in slopes.TAKEN_OFF:  # a step must not grow with the corpus
        step = slopes.slope(slopes.seconds(results, name))
        assert step is None or step.exponent < 0.3


@pytest.mark.parametrize("path", [scale.PAGE, scale.GROWTH, scale.LIMITS, scale.HOURS], ids=lambda path: path.name)
def test_the_documents_are_what_the_results_say(path: Path) -> None:
    assert path.read_text() == scale.documents()[path], f"{path.relative_to(ROOT)}: run python -m benchmarks.scale"


def test_what_the_papers_used_is_of_recipes_that_were_counted() -> None:
    costs = json.loads(results.path_of("recipe_costs", "cpu").read_text())
    assert set(costs) == {*recipe_costs.SYSTEMS, *reproducing_recipes()}
    assert {row["recipe"] for row in scale.reported()} <= set(costs)
    for row in scale.reported():
        assert row["chip"] in scale.PEAKS
        assert row["source"]
