"""What `docs/scale.md` takes from generation, a teacher's scores and exact search as measured on a GPU.

All is made of `results/gpu_rates.cuda.json`, which `benchmarks.gpu_rates` writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks import results, t5_base
from benchmarks.recipe_costs import PASSAGES, QUERIES, WIDTH
from flows.plan.gpus import Gpu, find_gpu

Result = Mapping[str, Any]
TERA = 1e12
VIEWS = ("dense", "lexical", "late")


@dataclass(frozen=True)
class Shares:
    """The shares of the peak that were reached."""

    writing: float
    """The tokens of queries, which a T5 writes one after the other."""
    scoring: float
    """A cross-encoder's scores."""
    searching: float
    """The products of exact dense search, in the time in which candidates are selected."""

    def generating(self, length: float = t5_base.MAX_TOKENS) -> float:
        """Return the share of a passage with the queries that recipes count: it is read as fast as a teacher reads."""
        tokens = t5_base.QUERY_TOKENS * t5_base.QUERIES
        read, written = t5_base.reading_flops(length), tokens * t5_base.writing_flops(length)
        return (read + written) / (read / self.scoring + written / self.writing)


def read() -> Result:
    """Return what was measured."""
    return results.read(results.path_of("gpu_rates", "cuda"))


def shares(result: Result) -> Shares:
    """Return the shares of the peak."""
    peak, cases = gpu_of(result).teraflops * TERA, result["cases"]
    scoring = cases["score"]["flops"] / cases["score"]["seconds"] / peak
    wrote, dense = cases["generate"], cases["search dense"]
    reading = wrote["passages"] * t5_base.reading_flops(wrote["passage_tokens"]) / (scoring * peak)
    written = wrote["query_tokens"] * t5_base.writing_flops(wrote["passage_tokens"])
    products = 2 * WIDTH * dense["queries"] * dense["passages"]
    return Shares(written / (wrote["seconds"] - reading) / peak, scoring, products / selecting(dense) / peak)


def gpu_of(result: Result) -> Gpu:
    """Return the GPU that was measured."""
    return find_gpu({"NVIDIA H200": "h200", "NVIDIA H100 80GB HBM3": "h100-80"}[result["machine"]["gpu"]])


def selecting(case: Result) -> float:
    """Return the seconds in which the GPU selected candidates, when it had the vectors."""
    return float(case["next"]["seconds"] - case["next"]["scoring"])


def seconds_per_pair(result: Result, view: str) -> float:
    """Return the GPU's seconds for a pair of a query and a passage in exact search."""
    case = result["cases"][f"search {view}"]
    return selecting(case) / float(case["queries"] * case["passages"])


def section(result: Result) -> Iterator[str]:
    """Yield what was measured of generation and of a teacher."""
    machine, wrote, scored = result["machine"], result["cases"]["generate"], result["cases"]["score"]
    reached = shares(result)
    yield (
        f"Measured on one {machine['gpu']} (`python -m benchmarks.gpu_rates`), with random weights and one thread on "
        "the host; seconds are the median of three turns, with the range. Random weights end no query, so that each "
        f"has {wrote['query_tokens'] / wrote['queries']:.0f} tokens. The share of the peak of generated tokens follows "
        "if passages are read as fast as a teacher reads pairs, which was not measured apart."
    )
    yield from ["", "| work | amount | seconds | a second | of the peak |", "|---|---|---|---|---|"]
    yield (
        f"| a T5-base generates queries | {wrote['queries']:,} for {wrote['passages']:,} passages of "
        f"{wrote['passage_tokens']} tokens | {_range(wrote)} | {wrote['queries'] / wrote['seconds']:,.0f} queries, "
        f"{wrote['query_tokens'] / wrote['seconds']:,.0f} tokens | {reached.writing:.1%} |"
    )
    yield (
        f"| a BERT-base scores pairs, as a teacher | {scored['pairs']:,} of {scored['tokens']} tokens "
        f"| {_range(scored)} | {scored['pairs'] / scored['seconds']:,.0f} pairs | {reached.scoring:.0%} |"
    )
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    yield ""
    yield (
        f"<sub>{machine['gpu']}; {machine['processor']}, {machine['cores']} cores; load {machine['load']}; "
        f"{versions}.</sub>"
    )
    yield ""


def searches(result: Result) -> Iterator[str]:
    """Yield what was measured of exact search, and what mining MS MARCO would take by these rates."""
    yield (
        f"Measured on one {result['machine']['gpu']} (`python -m benchmarks.gpu_rates`): lists of "
        f"{result['cases']['search dense']['depth']} passages, with random vectors of these sizes. The first pass "
        "also reads the vectors from files in the system's cache and copies them to the GPU, which has them in the "
        "next. Within each, one core scored the lists in double precision; in the current code several cores do. The "
        f"last two columns are proportional, to pairs and to queries: for {QUERIES:,} queries and {PASSAGES:,} "
        "passages, without what is read and copied. They are longer than counted below, most of all for late "
        "interaction, which was measured with few texts: mine it with an approximate index (`mine_approximate`)."
    )
    yield from ["", "| representation | queries | passages | first pass, s | next pass, s | of this, scoring on one "
                "core, s | hours of one GPU | hours of one core |", "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for view in VIEWS:
        case = result["cases"][f"search {view}"]
        scoring, gpu = case["next"]["scoring"], seconds_per_pair(result, view) * QUERIES * PASSAGES / 3600
        yield (
            f"| {view} | {case['queries']:,} | {case['passages']:,} | {case['first']['seconds']:.2f} "
            f"| {case['next']['seconds']:.2f} | {scoring:.2f} | {gpu:.2g} "
            f"| {scoring * QUERIES / case['queries'] / 3600:.2g} |"
        )
    yield ""


def _range(case: Result) -> str:
    return f"{case['seconds']:.2f} ({case['fastest']:.2f} to {case['slowest']:.2f})"
