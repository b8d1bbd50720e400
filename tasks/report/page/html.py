"""The report as one self-contained HTML file: no script, no request to a server, every text escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from jinja2 import Template

from tasks.report.page.chart_geometry import dots, plot, scatter, sizes
from tasks.report.page.corpus_page import SHARES, share, value
from tasks.report.page.histograms import columns_of_lengths
from tasks.report.page.lineage_graph import drawing
from tasks.report.page.statistics import (
    claimed,
    direction,
    equal_metrics,
    headline_rows,
    highest,
    mark,
    marks,
    probability,
    signed,
    top,
    verdict,
)
from tasks.report.page.templates import css, template
from tasks.report.page.transfer_table import elsewhere
from tasks.runtime.formatting import duration, in_units, short, watt_hours
from tasks.session import Done

# The labels of the measures of query_quality that the report shows.
QUALITY = {
    "queries": "queries kept", "mean_words": "words on average", **SHARES, "passages_without_queries":
    "passages without a query",
}  # fmt: skip
LONGEST_STAGES = 16  # the stages whose time the page shows
SECTIONS = {
    "claims": "Claims", "runs": "All systems", "paper": "Comparison with the paper",
    "wins": "Query by query", "metrics": "All metrics",
    "tests": "Significance tests", "transfer": "On other collections", "experts": "Wins per representation",
    "overlap": "Overlap of rankings", "analyses": "", "curves": "Learning curves",
    "pseudo_queries": "Pseudo-queries", "storage": "Storage per passage", "costs": "Cost",
    "lineage": "Lineage", "environment": "Environment", "recipe": "Recipe",
}  # fmt: skip
"""The sections of the page in their order, with their titles; `analyses` is replaced by one section per analysis."""
PUBLISHED_ONLY: dict[str, Any] = {"curves": {}, "stages": [], "costs": None, "environments": []}
"""The parts that only a published page has, since they differ from run to run."""
OPTIONAL: dict[str, Any] = {"claims": None}
"""The parts that only the reports of some recipes have."""


def page(content: Mapping[str, Any]) -> str:
    """Return the HTML of the content of a `report.json`; equal content gives equal bytes."""
    content = {**content, "rows": headline_rows(content["rows"])}
    parts = {**PUBLISHED_ONLY, **OPTIONAL, **content}
    quality = content["quality"] or {}
    shown = {
        "verdicts": _verdicts(content),
        "bars": _bars(content),
        "heads": _heads(content),
        "highest": highest(content["rows"], content["headline"]["main"], content["headline"]["metric"]),
        "equal_metrics": equal_metrics(content["rows"]),
        "table": _table(content, content["runs"], content["headline"]["baseline"]),
        "further": [_further(split, content) for split in content["splits"]],
        "among_paper": [dots(table) for table in content["among"]],
        "elsewhere": elsewhere(content["transfer"], content["groups"], content["headline"]["main"]),
        "scatter": scatter(content["grid"]) if content["grid"] else None,
        "plots": [plot(name, curves) for name, curves in sorted(parts["curves"].items())],
        "times": _times(parts["stages"]),
        "cost_figures": _cost_figures(parts["costs"]),
        "sizes": sizes(content["storage"]),
        "lineage_svg": drawing(_done(parts["stages"])) if parts["stages"] else "",
        "quality_figures": _quality(quality),
        "lengths": columns_of_lengths(quality.get("words", {})),
    }
    return reported("report.html.j2").render(
        parts,
        css=css("report"),
        split=content["rows"][0]["split"],
        titles=content["rows"][0]["titles"],
        num_queries=max(row["queries"] for row in content["rows"]),
        sections=_sections(parts, shown),
        **shown,
    )


@cache
def reported(name: str) -> Template:
    """Return a template with the filters of reports."""
    return template(
        name,
        printed=printed,
        like=lambda value, theirs: f"{value:.{len(printed(theirs)) - 2}f}",
        duration=duration,
        in_units=in_units,
        watt_hours=watt_hours,
        probability=probability,
        direction=direction,
        mark=mark,
        verdict=verdict,
        claimed=claimed,
        sized=sized,
        short=short,
    )


def printed(value: float) -> str:
    """Format a number of a paper with three digits, or four if it has them."""
    return f"{value:.4f}".removesuffix("0")


def sized(number: float) -> str:
    """Format a number of bytes: `1,536`, `12.5`, `0`."""
    return f"{number:,.0f}" if number >= 100 or number == round(number) else f"{number:,.1f}"


def _sections(parts: Mapping[str, Any], shown: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the sections that have content, each with its template."""
    present = {
        "claims": parts["claims"], "runs": True, "paper": parts["beside"] or shown["among_paper"],
        "wins": parts["wins"] or parts["grid"],
        "metrics": True, "tests": parts["comparisons"], "transfer": parts["transfer"], "experts": parts["experts"],
        "overlap": parts["overlap"], "analyses": parts["analyses"], "curves": shown["plots"],
        "pseudo_queries": parts["quality"], "storage": parts["storage"], "costs": parts["costs"],
        "lineage": parts["stages"], "environment": parts["environments"], "recipe": True,
    }  # fmt: skip
    sections: list[dict[str, Any]] = []
    for name, title in SECTIONS.items():
        if name == "analyses":
            sections += [_analysis(number, analysis) for number, analysis in enumerate(parts["analyses"], 1)]
        elif present[name]:
            sections.append({"id": name, "title": title, "template": f"sections/{name}.html.j2", "analysis": None})
    return sections


def _analysis(number: int, analysis: Mapping[str, Any]) -> dict[str, Any]:
    results = analysis["found"]
    of_round = f" of {results['round']}" if results.get("round") else ""
    return {
        "id": f"analysis-{number}", "title": f"{analysis['name'].replace('_', ' ').capitalize()}{of_round}",
        "template": f"analyses/{analysis['name']}.html.j2", "analysis": results, "number": number,
    }  # fmt: skip


def _verdicts(content: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the tests of the headline's metric, those of the headline's systems first."""
    head = content["headline"]
    tested = [row for row in content["comparisons"] if row["metric"] == head["metric"]]
    pair = (head["main"], head["baseline"])
    return sorted(tested, key=lambda row: ((row["run"], row["baseline"]) != pair, row["run"] != head["main"]))


def _heads(content: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the numbers at the top of the page: value, label and note."""
    head = content["headline"]
    rows = {row["run"]: row["value"] for row in content["rows"] if row["metric"] == head["metric"]}
    spans = {row["run"]: row for row in content["intervals"] if row["metric"] == head["metric"]}
    ours, span = rows[head["main"]], spans[head["main"]]
    change = ours - rows[head["baseline"]]
    heads = [
        (
            f"{ours:.3f}",
            f"{head['metric']} of {head['main']}",
            f"95 % confidence interval {span['low']:.3f} to {span['high']:.3f}",
        ),
        (signed(change), f"difference from {head['baseline']}", ""),
    ]
    for row in content["beside"]:
        if (row["run"], row["metric"].lower()) == (head["main"], head["metric"].lower()) and row["ours"] is not None:
            where = "inside" if row["low"] <= row["theirs"] <= row["high"] else "outside"
            label = "reported in the paper" if row["rows"] else "the recipe's own number"
            heads.append((f"{row['theirs']:.3f}", label, f"{where} our 95 % confidence interval"))
    return heads


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


def _table(measured: Mapping[str, Any], runs: Sequence[str] | Mapping[str, str], baseline: str) -> dict[str, Any]:
    """Return systems by metrics; a cell has the value, whether it is the best, the test's sign, and the spread."""
    rows = {(row["run"], row["metric"]): row for row in measured["rows"]}
    metrics = list(dict.fromkeys(row["metric"] for row in measured["rows"]))
    best = {metric: max(row["value"] for row in measured["rows"] if row["metric"] == metric) for metric in metrics}
    marked = marks(measured["comparisons"], baseline)
    lines = []
    for run in runs:
        cells = []
        for metric in metrics:
            row = rows.get((run, metric), {"value": None})
            sign = marked.get((run, metric), 0)
            cells.append((row["value"], row["value"] == best[metric], sign, row.get("spread")))
        lines.append((run, cells))
    return {"metrics": metrics, "lines": lines}


def _further(measured: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "split": measured["rows"][0]["split"], "queries": max(row["queries"] for row in measured["rows"]),
        "table": _table(measured, content["runs"], content["headline"]["baseline"]),
    }  # fmt: skip


def _times(stages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    ordered = sorted(stages, key=lambda stage: -stage["seconds"])
    longest = max((stage["seconds"] for stage in stages), default=0.0) or 1.0
    return {
        "rows": [{**stage, "width": stage["seconds"] / longest} for stage in ordered[:LONGEST_STAGES]],
        "shorter": len(ordered[LONGEST_STAGES:]),
    }


def _cost_figures(costs: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Return the total costs as formatted values with their labels."""
    if costs is None:
        return []
    figures = [(duration(costs["seconds"]), "total time of all stages")]
    if len(costs["devices"]) > 1:
        figures += [(duration(device["seconds"]), f"of it on {device['device']}") for device in costs["devices"]]
    if costs["cpu_seconds"] is not None:
        figures.append((duration(costs["cpu_seconds"]), "CPU time"))
        figures.append((in_units(costs["peak_memory_mib"] * 2**20), "peak memory of a process"))
    figures += [(watt_hours(joules), f"energy, {part}") for part, joules in (costs["energy_joules"] or {}).items()]
    return figures


def _done(stages: Sequence[Mapping[str, Any]]) -> list[Done]:
    """Return the stages as the lineage graph needs them."""
    names = ("stage", "round", "key", "cached", "seconds", "rows", "inputs")
    return [Done(**{name: stage[name] for name in names}) for stage in stages]


def _quality(quality: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the measures of the pseudo-queries as formatted values with their labels."""
    trip = quality.get("round_trip")
    figures = [(share(trip["success@10"]), "find their own passage in the BM25 top 10")] if trip else []
    known = [name for name in QUALITY if name in quality]
    return figures + [((share if name in SHARES else value)(quality[name]), QUALITY[name]) for name in known]
