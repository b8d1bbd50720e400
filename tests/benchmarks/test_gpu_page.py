"""What docs/scale.md takes from the steps measured on a GPU."""

from typing import Any

import pytest

from benchmarks import gpu_page, gpu_steps, results
from flows.plan.gpus import Gpu, find_gpu

STEPS = {"a pretrain": (4e14, 1e11), "b pretrain": (1e14, 8e11), "c train": (3e14, 3e11)}  # FLOPs, bytes


def result_at(product_share: float, bandwidth_share: float) -> dict[str, Any]:
    """Steps that took as long as these shares say."""
    h100 = find_gpu("h100-80").model_copy(update={"product_share": product_share, "bandwidth_share": bandwidth_share})
    counted = {
        name: {"recipe": name[0], "stage": name[2:], "flops": flops, "moved_bytes": moved}
        for name, (flops, moved) in STEPS.items()
    }
    measured = {name: {"seconds": h100.seconds(flops, moved)} for name, (flops, moved) in STEPS.items()}
    return {"gpu": "h100-80", "counted": counted, "measured": measured}


@pytest.mark.parametrize("shares", [(0.37, 0.81), (0.9, 0.25)])
def test_the_fit_finds_the_shares_of_which_the_times_were_made(shares: tuple[float, float]) -> None:
    assert gpu_page.fitted_shares(result_at(*shares)) == shares


def test_the_default_shares_are_those_fitted_to_the_measured_steps() -> None:
    defaults = tuple(Gpu.model_fields[name].default for name in ("product_share", "bandwidth_share"))
    assert defaults == gpu_page.fitted_shares(results.read(gpu_steps.PATH))


def test_a_share_of_the_peak_is_that_of_the_recipe_s_step_or_of_the_first() -> None:
    result = result_at(0.5, 0.5)
    seconds = {name: step["seconds"] for name, step in result["measured"].items()}

    of_a, of_b = (flops / seconds[name] / 989e12 for name, flops in (("a pretrain", 4e14), ("b pretrain", 1e14)))
    for recipe, expected in (("b", of_b), ("b_of_another_length", of_b), ("z", of_a)):
        assert gpu_page.share_of_peak(result, recipe, "pretrain") == pytest.approx(expected)


def test_every_step_was_counted_and_measured() -> None:
    result, steps = results.read(gpu_steps.PATH), {work.name for work in gpu_steps.works()}
    assert set(result["counted"]) == set(result["measured"]) == steps
