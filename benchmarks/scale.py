"""Write `docs/scale.md`, its pictures and `results/recipe_hours.json`: `python -m benchmarks.scale`.

Made of `results/growth.json`, `results/recipe_costs.json`, what was measured on a GPU (`results/gpu_steps.cuda.json`
and `results/gpu_rates.cuda.json`) and what the papers say that they used (`reported_costs.csv`). Nothing is measured
here.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from benchmarks import gpu_page, gpu_rates_page, limits, mining_costs, panels, rehearsals, results, slopes, t5_base
from benchmarks.contest import OURS
from benchmarks.invented import QUERY_EVERY
from benchmarks.limits import in_bytes, short
from benchmarks.recipe_costs import SYSTEMS, WIDTH
from storage.files import write_atomically

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE, GROWTH, LIMITS = DOCS / "scale.md", DOCS / "images" / "growth.svg", DOCS / "images" / "limits.svg"
HOURS = results.path_of("recipe_hours", "cpu")
REPORTED = Path(__file__).parent / "reported_costs.csv"
PEAKS = {"V100": 125e12, "A100": 312e12, "H200": 989.4e12}
"""FLOPs a second in half precision, dense, as NVIDIA's data sheets have them (V100: tensor cores, float16)."""
CHIP, TARGET, NUMBERS = "H200", 0.45, (1, 8, 64)
"""The GPU for which hours are given, the share of its peak that is the target, and how many GPUs."""
KINDS = ("generate queries", "pre-train", "teacher", "train", "encode", "search")
STEPS = {"pre-train": "pretrain", "train": "train", "encode": "encode"}
"""The kinds with a step measured on a GPU, and its stage."""
ENCODED = "cot_mae_query_as_context"  # the recipe whose dense vectors are those of large collections
CORES_PER_GPU = 4
"""The target of how many cores build the batches of a GPU."""
Result = Mapping[str, Any]


def documents() -> dict[Path, str]:
    """Return the contents of the page and its figures by path."""
    growth, costs, steps = (results.read(results.path_of(*name)) for name in (
        ("growth", "cpu"), ("recipe_costs", "cpu"), ("gpu_steps", "cuda")
    ))  # fmt: skip
    reached = Reached(steps, gpu_rates_page.read())
    rates = limits.Rates(
        *(reached.of(kind, ENCODED) * PEAKS[CHIP] for kind in ("encode", "search", "generate queries"))
    )
    flops = limits.encoding_flops(costs, ENCODED, 2)
    needs = {size: limits.needs(growth, flops, rates, size) for size in limits.SIZES}
    return {
        PAGE: page(growth, costs, reached, needs), GROWTH: panels.picture(growth), LIMITS: limits.picture(needs),
        HOURS: json.dumps(all_hours(costs, reached), indent=1) + "\n",
    }  # fmt: skip


@dataclass(frozen=True)
class Reached:
    """The shares of the peak that were reached on a GPU."""

    steps: Result
    rates: Result

    def of(self, kind: str, recipe: str) -> float:
        """Return the share of a kind of stage."""
        if stage := STEPS.get(kind):
            return gpu_page.share_of_peak(self.steps, recipe, stage)
        shares = gpu_rates_page.shares(self.rates)
        return {"generate queries": shares.generating(), "teacher": shares.scoring, "search": shares.searching}[kind]


def page(growth: Result, costs: Result, reached: Reached, needs: Mapping[int, list[limits.Need]]) -> str:
    """Return the page."""
    return "\n".join([
        "# Scale", "",
        "Written by `make growth` from `benchmarks/results/` and `benchmarks/reported_costs.csv`; no number is typed.",
        "The text above each table states what is measured, counted and assumed.", "",
        "## How each stage grows", "", *growing(growth),
        "## Steps on a GPU", "", *gpu_page.section(reached.steps),
        "## Generation and a teacher on a GPU", "", *gpu_rates_page.section(reached.rates),
        "## What a reproduction of each paper costs", "", *reproductions(costs, reached),
        "## What mining costs by representation", "", *gpu_rates_page.searches(reached.rates),
        *mining_costs.section(TARGET, CHIP, PEAKS[CHIP]),
        "## How many cores feed the GPUs", "",
        *feeding(costs, results.read(results.path_of("batches", "cpu")), reached),
        "## What limits at 100 million and at 10 billion passages", "", *limiting(needs, reached),
        "## Rehearsals", "", *rehearsals.section(),
    ])  # fmt: skip


def growing(growth: Result) -> Iterator[str]:
    """Yield the table of measured growth, and the stages that grow faster than n log n."""
    sizes = [row["documents"] for row in next(iter(growth["stages"].values()))[1:]]
    ran = growth["machine"]
    yield (
        f"Measured with a synthetic collection of {', '.join(f'{size:,}' for size in sizes[:-1])} and {sizes[-1]:,} "
        f"documents, and with {growth['start']:,}, whose seconds are subtracted as start-up; each stage ran once in "
        f"its own process on one thread. The models are tiny, so that growth is visible. One document in "
        f"{QUERY_EVERY} has a query. The exponent is the slope of log CPU seconds over log documents, with the least "
        f"and greatest between neighbouring sizes; n log n has {slopes.n_log_n(growth):.2f} here. Memory is anonymous "
        f"memory with {growth['start']:,} and with {sizes[-1]:,} documents; bytes of memory and "
        "disk per additional document are those between the two largest sizes: memory that grew by less than "
        f"{slopes.FLAT_MIB:.0f} MiB there is called flat, since buffers and the allocator vary by as much."
    )
    yield from ["", "![Time and memory of each stage by the collection's size](images/growth.svg)", ""]
    seconds = " | ".join(f"{size:,}, s" for size in sizes)
    yield f"| stage | {seconds} | exponent | memory, MiB | memory per document, at most | disk per document |"
    yield f"|---|{'---|' * len(sizes)}---|---|---|---|"
    for name, rows in growth["stages"].items():
        points = slopes.seconds(growth, name)
        time = slopes.slope(points)
        exponent = f"{time.exponent:.2f} ({time.lowest:.2f} to {time.highest:.2f})" if time else "too short to measure"
        memory, disk = (slopes.bytes_each(growth, name, what) for what in ("peak_mib", "bytes"))
        in_bytes = f"{memory:,.0f}" if memory else "flat", f"{disk:,.0f}"
        yield (
            f"| {name} | {' | '.join(f'{max(0.0, value):.2f}' for _, value in points)} | {exponent} "
            f"| {rows[0]['peak_mib']:.0f} to {rows[-1]['peak_mib']:.0f} | {' | '.join(in_bytes)} |"
        )
    yield from ["", "What grows faster than n log n:", ""]
    yield from [f"- {name}: {slopes.REASONS.get(name, slopes.UNKNOWN)}" for name in slopes.faster(growth)] or [
        "- nothing"
    ]
    yield from ["", "What takes more memory for more documents:", ""]
    yield from [
        f"- {name}: {slopes.MEMORY_REASONS.get(name, slopes.UNKNOWN)}"
        for name in growth["stages"]
        if slopes.bytes_each(growth, name, "peak_mib")
    ] or ["- nothing"]
    versions = ", ".join(f"{package} {version}" for package, version in ran["versions"].items())
    yield ""
    yield (
        f"<sub>{ran['processor']}, {ran['cores']} cores; load {ran['load']}; {growth['minutes']} minutes of CPU; "
        f"{versions}.</sub>"
    )
    yield ""


def reproductions(costs: Result, reached: Reached) -> Iterator[str]:
    """Yield GPU hours by paper and stage, hours on several GPUs, and the hardware that the papers used."""
    yield (
        "Hours are counted FLOPs over a share of the GPU's peak. In pre-training, training and encoding the share is "
        "what [the recipe's own step](#steps-on-a-gpu) reached; a recipe without a measured step gets that of the "
        "first step of this kind in the table there. It was measured on an "
        f"{reached.steps['gpu'].partition('-')[0].upper()}; the {CHIP} has the same peak and a faster memory. A "
        f"teacher's training and scores are taken to reach what [scores reached](#generation-and-a-teacher-on-a-gpu), "
        f"{reached.of('teacher', ''):.0%}, and generation {reached.of('generate queries', ''):.1%}, which follows from "
        "the same table. Exact search takes the "
        "[measured seconds](#what-mining-costs-by-representation) for each pair of a query and a passage. "
        "`pretrieve plan RECIPE --gpu NAME` has other hours: those of the stages that run an encoder or write "
        "queries, each operation at the rate that fits all measured steps, and each query at its full length."
    )
    yield (
        "FLOPs are counted as `pretrieve plan` counts them, every text at its full length, so they are upper bounds: "
        "shorter texts cost less, since padding is not computed. Only pseudo-queries are taken to have "
        f"{t5_base.QUERY_TOKENS} tokens, as trained generators' have, and not the most that a recipe allows. "
        "Pre-training by epochs is counted "
        "with the collection sizes that `benchmarks/recipe_costs.py` assumes. Splitting and BM25 need no GPU. Work is "
        "assumed to divide evenly among GPUs."
    )
    yield from ["", f"GPU hours on an {CHIP}:", "", f"| recipe | {' | '.join(KINDS)} | sum | "
                + " | ".join(f"hours on {number}" for number in NUMBERS) + " |",
                f"|---|{'---|' * (len(KINDS) + 1 + len(NUMBERS))}"]  # fmt: skip
    for recipe in SYSTEMS:
        hours = [hours_of(kind, recipe, costs, reached) for kind in KINDS]
        cells = [short(hour) if hour else "–" for hour in hours] + [short(sum(hours))]
        cells += [short(sum(hours) / number) for number in NUMBERS]
        yield f"| `{recipe}` | {' | '.join(cells)} |"
    yield from ["",
                "Compared with what the papers used for pre-training, and with the share of their chips' peak that "
                f"this was; the target is {TARGET:.0%}:", "",
                "| recipe | what | the authors' GPUs and time | GPU hours | share of the peak reached | hours on these "
                f"at {TARGET:.0%} | hours on 8 {CHIP}, estimated | source |",
                "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for row in reported():
        yield f"| `{row['recipe']}` | {row['what']} | {' | '.join(_used(row, costs, reached))} | {row['source']} |"
    yield ""


def hours_of(kind: str, recipe: str, costs: Result, reached: Reached) -> float:
    """Return the hours of a kind of stage of a recipe on one GPU; 0 where it has none."""
    if kind == "search":
        pairs = costs[recipe]["pairs"].items()
        seconds = (number * gpu_rates_page.seconds_per_pair(reached.rates, view) for view, number in pairs)
        return float(sum(seconds) / 3600)
    return float(costs[recipe]["flops"].get(kind, 0.0) / (reached.of(kind, recipe) * PEAKS[CHIP] * 3600))


def all_hours(costs: Result, reached: Reached) -> dict[str, Any]:
    """Return the GPU, and the hours on one by recipe and kind of stage, to four digits."""
    hours = {
        recipe: {kind: float(f"{hours:.4g}") for kind in KINDS if (hours := hours_of(kind, recipe, costs, reached))}
        for recipe in costs
    }
    return {"gpu": CHIP, "hours": hours}


def _used(row: Mapping[str, str], costs: Result, reached: Reached) -> list[str]:
    """Return chips and hours, chip hours, utilisation, hours at the target, and our hours."""
    chips = f"{row['chips']} {row['chip']}".strip()
    if not row["hours"]:
        return [f"{chips}, hours not stated", "–", "–", "–", "–"]
    part = Fraction(row["share"])
    flops = costs[row["recipe"]]["flops"]["pre-train"] * part
    ours = hours_of("pre-train", row["recipe"], costs, reached)
    chip_hours = int(row["chips"]) * float(row["hours"])
    peak = PEAKS[row["chip"]] * 3600
    return [
        f"{chips}, {row['hours']} h", f"{chip_hours:,.0f}", f"{flops / (chip_hours * peak):.0%}",
        f"{short(flops / (int(row['chips']) * TARGET * peak))} h", f"{short(part * ours / 8)} h",
    ]  # fmt: skip


def reported() -> list[dict[str, str]]:
    """Return the rows of `reported_costs.csv`."""
    with REPORTED.open(newline="") as file:
        return list(csv.DictReader(file))


def feeding(costs: Result, batches: Result, reached: Reached) -> Iterator[str]:
    """Yield the cores that build the batches of a pre-training as fast as GPUs compute them."""
    yield (
        f"Measured on one core: texts a second, from token ids on disk to masked and padded tensors "
        "(`python -m benchmarks batches`; [speed.md](speed.md) names the machine). Computed: the texts that an "
        f"{CHIP} reads a second at {TARGET:.0%} of its peak, the target, by the FLOPs counted above, and the cores "
        "that build as many. The measured steps reached less, so these read fewer texts. Not included: copies to the "
        "GPU, and what the training process itself computes. "
        f"The target is {CORES_PER_GPU} cores for each GPU."
    )
    yield from ["", f"| recipe | texts a second: one core | one {CHIP} | the measured step | cores for 1 "
                "| cores for 8 | target |", "|---|---|---|---|---|---|---|"]  # fmt: skip
    for name, case in batches["cases"].items():
        recipe = name.partition(",")[0]
        built = case["rates"]["texts"][OURS]
        per_text = costs[recipe]["flops"]["pre-train"] / case["found"]["texts in the pre-training"]
        read = TARGET * PEAKS[CHIP] / per_text
        measured = reached.of("pre-train", recipe) * PEAKS[CHIP] / per_text
        cores = read / built
        met = "met" if cores <= CORES_PER_GPU else "missed"
        texts = f"{built:,.0f} | {read:,.0f} | {measured:,.0f}"
        yield f"| `{recipe}` | {texts} | {short(cores)} | {short(8 * cores)} | {met} |"
    yield ""


def limiting(needs: Mapping[int, list[limits.Need]], reached: Reached) -> Iterator[str]:
    """Yield a table for each size, and the exceeded limits."""
    yield (
        "Extrapolated, far beyond the measured sizes. CPU stages are extrapolated from their largest measured size by "
        "their exponent, but at least by 1, counting a document as a passage: those in shards or threads "
        f"({', '.join(limits.SHARED)}) on {limits.CORES} cores of the machine above, the others on one. The time of "
        "FAISS's graph is scaled by the number of dimensions; that of BM25's search is a lower bound, since a query "
        "costs more if more passages contain its words. GPU stages are FLOPs of a "
        f"BERT-base ({limits.MAX_TOKENS} tokens) or a T5-base ({limits.QUERIES_EACH} queries) on {limits.GPUS} {CHIP} "
        f"at {reached.of('encode', ENCODED):.0%} of their peak in encoding ([measured](#steps-on-a-gpu)), "
        f"{reached.of('search', ENCODED):.1%} in search ([measured](#what-mining-costs-by-representation)) and "
        f"{reached.of('generate queries', ENCODED):.1%} in generation "
        "([measured](#generation-and-a-teacher-on-a-gpu)); "
        f"exact search has one query for {QUERY_EVERY} passages. "
        f"Vectors have {WIDTH} dimensions of {limits.FLOAT} bytes. Memory and disk are those per additional document, "
        f"above; memory is an upper bound. Limits are a week, {in_bytes(limits.MEMORY)} of memory, "
        f"{in_bytes(limits.DISK)} of disk, and limits of the software. Pre-training takes the recipe's steps, whatever "
        "the corpus."
    )
    yield from ["", "![Hours of each stage at both sizes](images/limits.svg)", ""]
    for size, rows in needs.items():
        yield from [f"**{size:,} passages**", "", *limits.table(rows), ""]
        longest = max(rows, key=lambda need: need.hours)
        limited = [f"{need.stage} ({', '.join(need.limits)})" for need in rows if need.limits]
        yield (
            f"{longest.stage[0].upper()}{longest.stage[1:]} takes longest, {short(longest.hours)} hours. "
            f"Beyond a limit: {'; '.join(limited) or 'nothing'}."
        )
        yield ""


def write() -> None:
    """Write the page and its pictures."""
    for path, text in documents().items():
        write_atomically(path, text)


if __name__ == "__main__":
    write()
