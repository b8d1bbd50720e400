"""Every benchmark runs at a small size, and its contenders agree."""

from importlib import import_module

import pytest
import torch

from benchmarks import NAMES
from benchmarks.contest import OURS


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_contenders_of_a_benchmark_agree(name: str) -> None:
    """Each contender works once; `test_contest.py` checks how turns are measured."""
    num_cases = 0
    for case in import_module(f"benchmarks.{name}").cases(
        "cpu", small=True
    ):  # the next case may remove this one's data
        assert OURS in case.contenders
        assert set(case.targets) <= set(case.contenders)
        with torch.compiler.set_stance("force_eager"):  # test_compilation.py compares compiled layers with others
            results = {contender: work() for contender, work in case.contenders.items()}
        case.compared(results)
        for unit in case.units.values():
            assert all((unit(result) if callable(unit) else unit) > 0 for result in results.values())
        num_cases += 1
    assert num_cases
