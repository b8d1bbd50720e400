"""Write `docs/speed.md` and its figure from `benchmarks/results/`: `python -m benchmarks.page`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from benchmarks import NAMES, results
from benchmarks.contest import OURS

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE, PICTURE = DOCS / "speed.md", DOCS / "images" / "speed.svg"

WIDTH, ROW, CASE, HEADING, TOP, EDGE = 480, 34, 18, 34, 62, 12  # of the picture, in pixels
FASTEST, SLOWEST = 64.0, 0.5  # times, at the ends of its axis
STYLE = """
svg { background: #fff; color-scheme: light dark; font: 13px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif }
.ink { fill: #16202c } .soft { fill: #566272 } .head { font-weight: 600 } .small { font-size: 11px }
.met { fill: #1f5fbf } .missed { fill: #b45309 } .other { fill: #8b98a9 }
.rule { stroke: #dde2e9 } .goal { stroke: #16202c }
@media (prefers-color-scheme: dark) {
  svg { background: #182029 }
  .ink { fill: #e7ecf2 } .soft { fill: #a3b0bf }
  .met { fill: #6ea8fe } .missed { fill: #f0a35e } .other { fill: #66758a }
  .rule { stroke: #2d3845 } .goal { stroke: #e7ecf2 }
}
"""

TITLES = {"Bm25 mining": "BM25 mining", "Pretraining": "Pre-training"}
"""Titles of sections that are not the capitalised name of the benchmark."""

HEAD = """# Speed, compared with baselines

Written by `make bench` from `benchmarks/results/`. Each benchmark runs the project and its baselines in one process,
interleaved, on the same work. In a *turn* the project and every baseline do it once. Where results must be equal, that
is checked before a number is written; approximate engines and sampled texts differ, and their rows say how. On a CPU,
seconds are CPU seconds on one thread. A *speedup* is the median of the turns' ratios, with the lowest and the highest:
above 1 the project is faster. A *target* is what the project aims at. *Recorded* is the first measured speedup, or a
later one that replaced it: `make bench` fails where a speedup falls by more than a quarter below it.

![Speedup over each baseline, by benchmark; the tables below have the numbers](images/speed.svg)
"""
NO_GPU = (
    "No comparison with a baseline is stored yet; [log.md](log.md) has first figures, and\n"
    "[scale.md](scale.md#steps-on-a-gpu) the time and memory of the papers' steps.\n"
    "`python -m benchmarks --device cuda` runs the benchmarks that have a size for GPUs and writes this part.\n"
    "Pre-training and generating queries need only PyTorch and Transformers; benchmarks that lack a package are left\n"
    "out."
)


def documents() -> dict[Path, str]:
    """Return the contents of the page and its figure by path."""
    read = [result for name in NAMES if (result := results.read(results.path_of(name, "cpu")))]
    gpu = [result for name in NAMES if (result := results.read(results.path_of(name, "cuda")))]
    return {PAGE: page(read, gpu), PICTURE: picture([*read, *gpu])}


def page(benchmarks: Sequence[Mapping[str, Any]], gpu: Sequence[Mapping[str, Any]]) -> str:
    """Return the page."""
    return "\n".join([
        HEAD, *summary([*benchmarks, *gpu]), "",
        *(line for result in benchmarks for line in section(result)),
        "## On a GPU", "",
        *([line for result in gpu for line in section(result)] or [NO_GPU, ""]),
    ])  # fmt: skip


def summary(benchmarks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield how many targets are met, and a line for each baseline that is faster than the project."""
    every = [
        (f"{title(result)}, {name}", peer, ratio)
        for result in benchmarks
        for name, case in result["cases"].items()
        for peer, ratio in case["times_faster"].items()
    ]
    aimed = [ratio for _, _, ratio in every if ratio["target"] is not None]
    yield f"{sum(map(met, aimed))} of {len(aimed)} targets are met. Slower than the baseline:"
    yield ""
    slower = [
        f"- {name}: speedup {ratio['median']:.2g} over {peer}" for name, peer, ratio in every if ratio["median"] < 1
    ]
    yield from slower or ["- nothing"]


def title(result: Mapping[str, Any]) -> str:
    """Return the title of a benchmark's section."""
    words = str(result["benchmark"]).replace("_", " ").capitalize()
    return f"{TITLES.get(words, words)}{' on a GPU' if result['device'] == 'cuda' else ''}"


def section(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a benchmark's section: table, facts and machine."""
    yield from [f"## {title(result)}", "", result["what"], ""]
    for name, case in result["cases"].items():
        per = f"; the speedup is that of {case['per']} a second" if case.get("per") else ""
        heading = f"**{name}** ({case['turns']} turns{per})"
        yield from [heading, "", "| | seconds | speedup | target | recorded |", "|---|---|---|---|---|"]
        for contender, seconds in case["seconds"].items():
            yield f"| {contender} | {seconds:.4g} | {' | '.join(_words(case['times_faster'].get(contender)))} |"
        yield ""
        facts = [
            *(f"{unit} a second: {_rates(rates)}" for unit, rates in case["rates"].items()),
            *(f"{what}: {_said(value)}" for what, value in case["found"].items()),
        ]
        yield from [*(f"- {fact}" for fact in facts), *([""] if facts else [])]
    ran = result["machine"]
    versions = ", ".join(f"{package} {version}" for package, version in ran["versions"].items())
    where = ran.get("gpu") or f"{ran['processor']}, {ran['cores']} cores"
    yield from [f"<sub>{where}; load {ran['load']}; {result['minutes']} minutes; {versions}.</sub>", ""]


def _words(ratio: Mapping[str, Any] | None) -> list[str]:
    """Return the cells of a contender's speedup."""
    if ratio is None:
        return ["1", "", ""]
    target = "" if ratio["target"] is None else f"{ratio['target']:g} {'met' if met(ratio) else 'missed'}"
    return [
        f"{ratio['median']:.3g} ({ratio['lowest']:.3g} to {ratio['highest']:.3g})",
        target,
        f"{ratio['recorded']:.3g}",
    ]


def met(ratio: Mapping[str, Any]) -> bool:
    """Return whether a speedup reaches its target."""
    return bool(ratio["median"] >= ratio["target"])


def _said(value: object) -> str:
    """Format a fact, or several by name."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_said(part)}" for name, part in value.items())
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _rates(rates: Mapping[str, float]) -> str:
    return ", ".join(f"{contender} {rate:,.0f}" for contender, rate in rates.items())


def picture(benchmarks: Sequence[Mapping[str, Any]]) -> str:
    """Return an SVG with a bar for each speedup on a logarithmic axis, with a line at its target."""
    lines: list[str] = []
    height = TOP
    for result in benchmarks:
        height += HEADING
        lines.append(f'<text class="ink head" x="{EDGE}" y="{height - 8}">{escape(title(result))}</text>')
        for name, case in result["cases"].items():
            lines.append(f'<text class="soft small" x="{EDGE}" y="{height + 8}">{escape(_cut(name, 76))}</text>')
            height += CASE
            for peer, ratio in case["times_faster"].items():
                lines += _bar(height, peer, ratio)
                height += ROW
    height += EDGE
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>Speedup of {OURS} over each baseline</title>", f"<style>{STYLE}</style>",
        f'<text class="ink head" x="{EDGE}" y="20">Speedup over each baseline (logarithmic)</text>',
        *_legend(),
        *(line for times in (0.5, 1, 2, 4, 8, 16, 32, 64) for line in _tick(times, height)), *lines, "</svg>", "",
    ])  # fmt: skip


def _legend() -> Iterator[str]:
    """Yield the legend of colours and of the target line."""
    for column, (kind, words) in enumerate({"met": "target met", "missed": "missed", "other": "no target"}.items()):
        yield f'<rect class="{kind}" x="{EDGE + 90 * column}" y="29" width="9" height="9"/>'
        yield f'<text class="soft small" x="{EDGE + 90 * column + 14}" y="38">{words}</text>'
    yield f'<path class="goal" stroke-width="2" d="M{EDGE + 274} 27v13"/>'
    yield f'<text class="soft small" x="{EDGE + 280}" y="38">target</text>'


def _bar(top: int, words: str, ratio: Mapping[str, Any]) -> list[str]:
    start, end = sorted((_place(1.0), _place(ratio["median"])))
    kind = "other" if ratio["target"] is None else "met" if met(ratio) else "missed"
    number, goal = f"{ratio['median']:.3g}×", []
    if ratio["target"]:
        number += f", target {ratio['target']:g}×"
        goal = [f'<path class="goal" stroke-width="2" d="M{_place(ratio["target"]):.1f} {top + 14}v15"/>']
    return [
        f'<text class="ink" x="{EDGE}" y="{top + 12}">{escape(_cut(words, 46))}</text>',
        f'<text class="ink" x="{WIDTH - EDGE}" y="{top + 12}" text-anchor="end">{number}</text>',
        f'<rect class="{kind}" x="{start:.1f}" y="{top + 17}" width="{max(2.0, end - start):.1f}" height="9" rx="2"/>',
        *goal,
    ]  # fmt: skip


def _tick(times: float, height: int) -> list[str]:
    x = _place(times)
    return [
        f'<text class="soft" x="{x:.1f}" y="{TOP - 6}" text-anchor="middle">{times:g}</text>',
        f'<path class="rule" d="M{x:.1f} {TOP}V{height - EDGE}"/>',
    ]


def _place(times: float) -> float:
    """Return the horizontal position of a speedup."""
    within = min(FASTEST, max(SLOWEST, times))
    return 2 * EDGE + (WIDTH - 4 * EDGE) * math.log(within / SLOWEST) / math.log(FASTEST / SLOWEST)


def _cut(words: str, most: int) -> str:
    return words if len(words) <= most else f"{words[: most - 1]}…"


def write() -> None:
    """Write both."""
    for path, text in documents().items():
        path.write_text(text)


if __name__ == "__main__":
    write()
