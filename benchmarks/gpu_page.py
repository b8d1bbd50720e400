"""The section of `docs/scale.md` about steps measured on a GPU, and what the page's hours take from them.

All is made of `results/gpu_steps.cuda.json`, which `benchmarks.gpu_steps` writes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from benchmarks.gpu_steps import TURNS
from flows.plan.gpus import Gpu, find_gpu

Result = Mapping[str, Any]
TERA, GIGA = 1e12, 1e9
SHARES = np.arange(0.2, 1.001, 0.01)  # those that are tried


def fitted_shares(result: Result) -> tuple[float, float]:
    """Return the shares of the peak and of the bandwidth with which the counted times are closest to the measured ones.

    Closest is the least sum of squared relative differences, over all steps; shares are whole percents.
    """
    gpu = find_gpu(result["gpu"])
    steps = [(step, result["measured"][name]["seconds"]) for name, step in result["counted"].items()]
    products = np.array([step["flops"] / (gpu.teraflops * TERA) / seconds for step, seconds in steps])
    others = np.array([step["moved_bytes"] / (gpu.gigabytes_per_second * GIGA) / seconds for step, seconds in steps])
    counted = products / SHARES[:, None, None] + others / SHARES[None, :, None]
    row, column = np.unravel_index(((counted - 1) ** 2).sum(-1).argmin(), counted.shape[:2])
    return round(float(SHARES[row]), 2), round(float(SHARES[column]), 2)


def share_of_peak(result: Result, recipe: str, stage: str) -> float:
    """Return the share of the peak that a recipe's stage reached.

    A recipe without such a step has that of the recipe whose name its own begins with, else of the stage's first step.
    """
    steps = [step for step in result["counted"].items() if step[1]["stage"] == stage]
    name, step = next((step for step in steps if recipe.startswith(step[1]["recipe"])), steps[0])
    return float(step["flops"] / result["measured"][name]["seconds"] / (find_gpu(result["gpu"]).teraflops * TERA))


def section(result: Result) -> Iterator[str]:
    """Yield the table of counted and measured steps, and what it shows."""
    gpu, machine, rates = find_gpu(result["gpu"]), result["machine"], result["rates"]
    yield (
        f"Measured on one {machine['gpu']} (`python -m benchmarks.gpu_steps measure`): steps of training and batches "
        "of encoding, in bfloat16, with random weights of BERT-base's shape and texts of full length. A step has the "
        "copy to the GPU, both passes with dropout, clipping and AdamW. *Counted* is what "
        f"`pretrieve plan RECIPE --gpu {result['gpu']}` says of them: products at "
        f"{gpu.product_share:.0%} of the peak, other operations at {gpu.bandwidth_share:.0%} of the bandwidth. "
        "These two are fitted to this table, so its seconds do not test them. Memory has no fitted figure. "
        f"Seconds are the median of {TURNS} steps, with the range."
    )
    yield from ["", "| step | rows | counted, s | measured, s | measured / counted | of the peak | counted, GB "
                "| measured, GB |", "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    ratios: list[float] = []
    memories: dict[str, list[float]] = defaultdict(list)
    for name, step in result["counted"].items():
        measured = result["measured"][name]
        seconds = counted_seconds(gpu, step)
        ratios.append(measured["seconds"] / seconds)
        memories[step["stage"]].append(step["peak_bytes"] / measured["peak_bytes"])
        recipe, _, what = name.partition(" ")
        yield (
            f"| `{recipe}` {what} | {step['rows']} | {seconds:.3f} | {measured['seconds']:.3f} "
            f"({measured['fastest']:.3f} to {measured['slowest']:.3f}) | {ratios[-1]:.2f} "
            f"| {share_of_peak(result, step['recipe'], step['stage']):.0%} | {step['peak_bytes'] / GIGA:.1f} "
            f"| {measured['peak_bytes'] / GIGA:.1f} |"
        )
    trainings = memories["train"] + memories["pretrain"]
    yield from [
        "",
        f"- **Time**: measured over counted is {min(ratios):.2f} to {max(ratios):.2f}. The card itself reached "
        f"{rates['products'] / TERA:.0f} TFLOP/s in a large product ({rates['products'] / gpu.teraflops / TERA:.0%} of "
        f"the peak) and {rates['bytes'] / GIGA:,.0f} GB/s in a copy "
        f"({rates['bytes'] / gpu.gigabytes_per_second / GIGA:.0%} of the bandwidth).",
        f"- **Memory**: counted over measured is {min(trainings):.2f} to {max(trainings):.2f} in training and "
        f"{min(memories['encode']):.2f} to {max(memories['encode']):.2f} in encoding. It is never below what was used.",
        "",
        f"<sub>{machine['gpu']}; {machine['processor']}, {machine['cores']} cores; load {machine['load']}; "
        f"{', '.join(f'{package} {version}' for package, version in machine['versions'].items())}.</sub>",
        "",
    ]


def counted_seconds(gpu: Gpu, step: Mapping[str, Any]) -> float:
    """Return the time that `pretrieve plan` counts for a step in bfloat16."""
    seconds = gpu.seconds(step["flops"], step["moved_bytes"])
    assert seconds is not None, gpu
    return seconds
