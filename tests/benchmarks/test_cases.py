"""Every benchmark still runs, at a small size, and its contenders still agree."""

import dataclasses
from importlib import import_module

import pytest

from benchmarks import NAMES
from benchmarks.contest import OURS, held


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_runs_and_its_contenders_agree(name: str) -> None:
    module = import_module(f"benchmarks.{name}")
    cases = list(module.cases("cpu", small=True)) if "cpu" in module.DEVICES else []
    assert cases
    for case in cases:
        assert OURS in case.contenders
        assert set(case.targets) <= set(case.contenders)
        found = held(dataclasses.replace(case, repeats=1))
        assert set(found["seconds"]) == set(case.contenders)
