"""Extrapolation of a stage from two sizes: power laws of time, lines of memory and disk, and what breaks."""

from dataclasses import replace

import pytest

from flows.rehearsal.measurement import (
    Measurement,
    by_stage_and_round,
    extrapolate,
    peak_memory,
    problems_of,
    reset_peak_memory,
)

SIZES, FULL = (1000, 4000), 16_000
LIMITS = {"memory": 1e9, "disk": 1e9}


def measurement(seconds: float, memory: int = 100, disk: int = 10, *, on_gpu: bool = False) -> Measurement:
    return Measurement("mine", "retriever_1", on_gpu, 5, seconds, memory, disk)


@pytest.mark.parametrize(("seconds", "growth", "hours"), [
    ((3600, 4 * 3600), 1.0, 16.0), ((3600, 16 * 3600), 2.0, 256.0), ((3600, 3600), 0.0, 1.0),
    ((3600, 1800), 0.0, 0.5),  # noise of the machine: no stage becomes faster with more passages
    ((3600, 64 * 3600), 2.0, 64 * 16.0),  # no stage grows faster than queries times passages
])  # fmt: skip
def test_time_grows_by_the_power_law_through_both_sizes(
    seconds: tuple[float, float], growth: float, hours: float
) -> None:
    small, large = (measurement(value) for value in seconds)

    stage = extrapolate(small, large, SIZES, FULL)

    assert stage.growth == pytest.approx(growth)
    assert stage.hours == pytest.approx(hours)


def test_memory_and_disk_grow_linearly() -> None:
    stage = extrapolate(measurement(1, 2**30, 10), measurement(1, 2**30 + 2**27, 40), SIZES, FULL)

    assert (stage.memory, stage.disk) == (2**30 + 5 * 2**27, 40 + 30 * 4)


def test_a_smaller_collection_needs_no_less_than_nothing() -> None:
    stage = extrapolate(measurement(1, 0, 0), measurement(4, 2**27, 30), SIZES, 10)

    assert (stage.memory, stage.disk) == (0, 0)


def test_noise_is_not_extrapolated() -> None:
    stage = extrapolate(measurement(0.01, 2**30), measurement(0.9, 2**30 + 2**20), SIZES, FULL)

    assert (stage.growth, stage.memory) == (1.0, 2**30 + 2**20)


def test_calls_of_a_stage_in_a_round_are_one_row() -> None:
    calls = [measurement(1, 7, 10), measurement(2, 5, 20), replace(measurement(4), round="retriever_2")]

    combined = by_stage_and_round(calls)

    assert combined == [replace(measurement(3, 7, 30), rows=10), calls[2]]


def test_the_time_of_a_tiny_model_is_not_extrapolated() -> None:
    assert extrapolate(measurement(1, on_gpu=True), measurement(9, on_gpu=True), SIZES, FULL).hours is None


def test_problems_name_stage_amount_and_limit() -> None:
    stage = extrapolate(measurement(3600, 2**30, 10), measurement(4 * 3600, 2**31, 10), SIZES, 200_000)

    memory, hours = stage.problems(LIMITS)

    assert memory == "mine retriever_1: about 67.3 GiB of memory, this machine has 953.7 MiB"
    assert hours == "mine retriever_1: about 200 hours on one process, growing as N^1.0"
    assert not extrapolate(measurement(1), measurement(4), SIZES, FULL).problems(LIMITS)


def test_a_store_keeps_the_artifacts_of_all_stages() -> None:
    stages = [extrapolate(measurement(1, disk=disk), measurement(1, disk=disk), SIZES, FULL) for disk in (2**29, 2**29)]

    assert problems_of(stages, LIMITS) == ["all stages: about 1.0 GiB of disk, this machine has 953.7 MiB"]
    assert problems_of(stages[:1], LIMITS) == []


def test_the_peak_of_memory_is_that_since_the_reset() -> None:
    if not peak_memory():
        pytest.skip("this system does not tell the peak of a process's memory")
    reset_peak_memory()
    before = peak_memory()
    block = bytearray(2**26)
    assert peak_memory() - before > 2**25
    del block
    reset_peak_memory()

    assert peak_memory() - before < 2**25
