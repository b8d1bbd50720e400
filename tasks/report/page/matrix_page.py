"""A matrix of runs for the terminal and as one HTML file: the grid of states, then means, intervals and tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from jinja2 import Template
from rich.table import Table
from rich.text import Text

from tasks.report.page.statistics import direction, mark, probability, signed
from tasks.report.page.templates import css, template, three

Content = Mapping[str, Any]
SIGNS = {"complete": "✓", "running": "…", "failed": "✗", "interrupted": "‖", "missing": "·"}
COLOURS = {"complete": "green", "running": "blue", "failed": "red", "interrupted": "yellow", "missing": ""}
METHOD = (
    "Intervals (95 %) and tests take seeds and queries as random samples: quasi-F (Clark 1973) over a table of seeds "
    "by queries; with one seed they hold for other queries only. ▲ better, ▼ worse: p < 0.05 after Holm's correction "
    "over the comparisons of a metric. Two systems are compared in the seeds that both have. Two seeds are few: where "
    "the seeds vary, the test then finds a difference too often."
)


def terminal_tables(content: Content) -> Iterator[Table | Text]:
    """Yield the grid, the failures, the means of the headline's metric, and the tests."""
    yield Text(f"matrix {content['name']}", "bold")
    yield _grid(content)
    yield Text(counts_in_words(content))
    for cell in content["cells"]:
        if cell["error"]:
            yield Text(f"failed: {cell['variant']} seed={cell['seed']}: {cell['error']}", "red")
    if content["results"]:
        yield _means(content)
    rows = [row for row in comparisons(content) if row["metric"] == content["metric"]]
    if rows:
        table = Table("comparison", box=None, padding=(0, 2, 0, 0))
        for heading in ("difference", "95 % interval", "p_holm"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in rows:
            table.add_row(compared(row), signed(row["difference"]), interval(row, True), verdict(row))
        yield table
        yield Text(METHOD)


def counts_in_words(content: Content) -> str:
    """Return the number of runs in each state, and of stages: `9 runs: 3 complete, 6 missing; 210 of 342 stages …`."""
    states = [cell["state"] for cell in content["cells"]]
    counts = ", ".join(f"{states.count(state)} {state}" for state in SIGNS if state in states)
    stages = content["stages"]
    return (
        f"{len(states)} runs: {counts}; they share {stages['different']:,} stages "
        f"({stages['of_all_runs']:,} counted run by run), {stages['cached']:,} cached"
    )


def comparisons(content: Content) -> list[Mapping[str, Any]]:
    """Return all tests: between variants, then within each."""
    return [*content["comparisons"], *content["within"]]


def compared(row: Mapping[str, Any]) -> str:
    """Return the two systems of a test."""
    if row["variant"] == row["than"]:
        return f"{row['variant']}: {row['run']} − {row['baseline']}"
    if row["run"] == row["baseline"]:
        return f"{row['variant']} − {row['than']}: {row['run']}"
    return f"{row['variant']}: {row['run']} − {row['than']}: {row['baseline']}"


def interval(row: Mapping[str, Any], with_sign: bool = False) -> str:
    """Format an interval."""
    number = signed if with_sign else three
    return f"[{number(row['low'])}, {number(row['high'])}]"


def verdict(row: Mapping[str, Any]) -> str:
    """Return the mark and the corrected p-value of a test."""
    return f"{mark(direction(row))} {probability(row['p_holm']).removeprefix('= ')}".strip()


def page(content: Content) -> str:
    """Return the self-contained HTML file; equal content gives equal bytes."""
    metrics = list(dict.fromkeys([content["metric"], *(row["metric"] for row in content["results"])]))
    by_variant = {name: [cell for cell in content["cells"] if cell["variant"] == name] for name in content["variants"]}
    return _template().render(
        content, css=css("report"), by_variant=by_variant, metrics=metrics if content["results"] else [],
        counts=counts_in_words(content), comparisons=comparisons(content), method=METHOD, signs=SIGNS,
    )  # fmt: skip


def _grid(content: Content) -> Table:
    table = Table("run", box=None, padding=(0, 2, 0, 0))
    for seed in content["seeds"]:
        table.add_column(f"seed {seed}", no_wrap=True)
    for variant in content["variants"]:
        cells = [cell for cell in content["cells"] if cell["variant"] == variant]
        table.add_row(Text(variant), *(Text(described(cell), COLOURS[cell["state"]]) for cell in cells))
    return table


def described(cell: Mapping[str, Any]) -> str:
    """Return a run's state; of one that has begun, also how many of its stages are built."""
    begun = cell["state"] not in ("complete", "missing") or cell["built"]
    count = f" {cell['built']}/{cell['stages']}" if begun and cell["state"] != "complete" else ""
    return f"{SIGNS[cell['state']]} {cell['state']}{count}"


def _means(content: Content) -> Table:
    table = Table("run", "system", box=None, padding=(0, 2, 0, 0))
    for heading in (content["metric"], "95 % interval", "seeds"):
        table.add_column(heading, justify="right", no_wrap=True)
    before = ""
    for row in content["results"]:
        if row["metric"] == content["metric"]:
            style = "bold" if content["mains"][row["variant"]] == row["run"] else ""
            name = row["variant"] if row["variant"] != before else ""
            cells = (three(row["mean"]), interval(row), str(row["seeds"]))
            table.add_row(Text(name), Text(row["run"], style), *cells)
            before = row["variant"]
    return table


@cache
def _template() -> Template:
    return template("matrix.html.j2", compared=compared, interval=interval, verdict=verdict, described=described)
