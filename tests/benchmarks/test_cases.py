"""Every benchmark still runs, at a small size, and its contenders still agree."""

import dataclasses
from importlib import import_module

import pytest

from benchmarks import NAMES
from benchmarks.contest import OURS, held


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_runs_and_its_contenders_agree(name: str) -> None:
    module = import_module(f"benchmarks.{name}")
    told = 0
    for case in module.cases("cpu", small=True):  # one after the other: a case's data may be gone with the next
        assert OURS in case.contenders
        assert set(case.targets) <= set(case.contenders)
        found = held(dataclasses.replace(case, repeats=1))
        assert set(found["seconds"]) == set(case.contenders)
        told += 1
    assert told
