"""The report as one HTML file: no script, no request to anywhere, every text escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from tasks.page.figures import direction, mark, marks, probability, top, verdict
from tasks.page.histograms import columns_of_lengths
from tasks.page.queries import SHARES, share, value
from tasks.units import duration, short

FOLDER = Path(__file__).parent
# What the report shows of what query_quality measures, in words.
QUALITY = {
    "queries": "queries kept", "mean_words": "words on average", **SHARES, "passages_without_queries":
    "passages without a query",
}  # fmt: skip
PLOT_WIDTH, PLOT_HEIGHT = 300, 120
LONGEST_STAGES = 16  # as many as the page shows the time of


def page(content: Mapping[str, Any]) -> str:
    """The HTML of a `report.json`'s content. Equal content makes equal bytes."""
    parts = {"stages": [], "curves": {}, "experts": [], "overlap": [], "storage": [], **content}
    return _template().render(
        parts,
        css=(FOLDER / "report.css").read_text(),
        split=content["rows"][0]["split"],
        num_queries=max(row["queries"] for row in content["rows"]),
        verdicts=_verdicts(content),
        bars=_bars(content),
        table=_table(content),
        plots=[plot(name, curves) for name, curves in sorted(parts["curves"].items())],
        times=_times(parts["stages"]),
        quality_figures=_quality(content["quality"] or {}),
        lengths=columns_of_lengths((content["quality"] or {}).get("words", {})),
        beside=beside_the_paper(content),
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {
        "three": lambda value: f"{value:.3f}",
        "signed": lambda value: f"{'−' if value < 0 else '+'}{abs(value):.3f}",
        "percent": lambda share: f"{100 * share:.2f}%",
        "duration": duration,
        "probability": probability,
        "direction": direction,
        "mark": mark,
        "verdict": verdict,
        "sized": sized,
        "short": short,
    }
    return environment.get_template("report.html.j2")


def sized(number: float) -> str:
    """Bytes as they are read: `1,536`, `12.5`, `0`."""
    return f"{number:,.0f}" if number >= 100 or number == round(number) else f"{number:,.1f}"


def _verdicts(content: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The tests on the headline's metric, the headline's own pair first."""
    head = content["headline"]
    tested = [row for row in content["comparisons"] if row["metric"] == head["metric"]]
    pair = (head["main"], head["baseline"])
    return sorted(tested, key=lambda row: ((row["run"], row["baseline"]) != pair, row["run"] != head["main"]))


def _bars(content: Mapping[str, Any]) -> dict[str, Any]:
    metric = content["headline"]["metric"]
    spans = {row["run"]: row for row in content["intervals"] if row["metric"] == metric}
    rows = [row for row in content["rows"] if row["metric"] == metric]
    end = top([spans[row["run"]]["high"] for row in rows])
    return {
        "ticks": [end * quarter / 4 for quarter in range(5)],
        "rows": [
            {**row, "low": spans[row["run"]]["low"], "high": spans[row["run"]]["high"],
             "width": row["value"] / end, "left": spans[row["run"]]["low"] / end,
             "span": (spans[row["run"]]["high"] - spans[row["run"]]["low"]) / end}
            for row in rows
        ],
    }  # fmt: skip


def _table(content: Mapping[str, Any]) -> dict[str, Any]:
    values = {(row["run"], row["metric"]): row["value"] for row in content["rows"]}
    metrics = list(dict.fromkeys(row["metric"] for row in content["rows"]))
    best = {metric: max(values[run, metric] for run in content["runs"]) for metric in metrics}
    marked = marks(content)
    spreads = {(row["run"], row["metric"]): row.get("spread") for row in content["rows"]}
    lines = [
        (
            run,
            [
                (values[run, metric], values[run, metric] == best[metric], marked.get((run, metric), 0),
                 spreads[run, metric])
                for metric in metrics
            ],
        )
        for run in content["runs"]
    ]  # fmt: skip
    return {"metrics": metrics, "lines": lines}


def plot(name: str, curves: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, Any]:
    """The lines of one training as SVG points, with the ends of both axes."""
    points = [point for curve in curves.values() for point in curve]
    last, highest = max(step for step, _ in points), max(value for _, value in points)
    highest = highest or 1.0

    def placed(curve: Sequence[Sequence[float]]) -> str:
        return " ".join(
            f"{PLOT_WIDTH * step / max(last, 1):.1f},{PLOT_HEIGHT * (1 - max(value, 0) / highest):.1f}"
            for step, value in curve
        )

    return {
        "name": name, "steps": round(last), "highest": highest, "width": PLOT_WIDTH, "height": PLOT_HEIGHT,
        "lines": [{"name": each, "points": placed(curve), "first": curve[0][1], "last": curve[-1][1]}
                  for each, curve in sorted(curves.items())],
    }  # fmt: skip


def _times(stages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    ordered = sorted(stages, key=lambda stage: -stage["seconds"])
    longest = max((stage["seconds"] for stage in stages), default=0.0) or 1.0
    return {
        "rows": [{**stage, "width": stage["seconds"] / longest} for stage in ordered[:LONGEST_STAGES]],
        "shorter": len(ordered[LONGEST_STAGES:]),
        "here": sum(stage["seconds"] for stage in stages if not stage["cached"]),
        "in_all": sum(stage["seconds"] for stage in stages),
    }


def _quality(quality: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Each figure as shown, and what it is."""
    trip = quality.get("round_trip")
    figures = [(share(trip["success@10"]), "find their own passage in BM25's top 10")] if trip else []
    known = [name for name in QUALITY if name in quality]
    return figures + [((share if name in SHARES else value)(quality[name]), QUALITY[name]) for name in known]


def beside_the_paper(content: Mapping[str, Any]) -> list[tuple[str, str, float, float | None]]:
    """Run, metric, the paper's value and ours, for each value that the recipe reports."""
    ours = {(row["run"], row["metric"].lower()): row["value"] for row in content["rows"]}
    main, found = content["headline"]["main"], []
    for name, given in content["reported"].items():
        for metric, number in given.items() if isinstance(given, Mapping) else [(name, given)]:
            if isinstance(number, int | float):
                run = name if isinstance(given, Mapping) else main
                found.append((run, metric, float(number), ours.get((run, metric.lower()))))
    return found
