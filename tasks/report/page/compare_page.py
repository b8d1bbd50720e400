"""The comparison of two runs: tables for the terminal and a self-contained HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from jinja2 import Template
from rich.table import Table
from rich.text import Text

from tasks.report.page.statistics import direction, mark, probability, signed
from tasks.report.page.templates import css, template

SIDES = ("A", "B")
TESTS = (
    "p < 0.05 by a two-sided paired t-test over the queries, with Holm's correction over the systems of a metric; "
    "randomisation: p of a paired randomisation test, not corrected"
)


def terminal_tables(content: Mapping[str, Any]) -> Iterator[Table | Text]:
    """Yield the parts of a comparison from top to bottom."""
    for side in content["sides"]:
        yield Text(f"{side['name']}  {side['title']} ({', '.join(key[:8] for key in side['keys'])})", "bold")
    settings = _table("settings that differ", *SIDES)
    for row in content["settings"]:
        settings.add_row(*map(Text, row))
    yield settings if content["settings"] else Text("no setting differs")
    artifacts = _table("artifacts", "both", *(f"only {side}" for side in SIDES), right=True)
    for stage in content["artifacts"]["stages"]:
        artifacts.add_row(stage["stage"], *(f"{count:,}" if count else "" for count in stage["counts"]))
    yield artifacts
    for line in notes(content):
        yield Text(line)
    tested = [split for split in content["splits"] if any(row["p"] is not None for row in grouped(split))]
    for split in content["splits"]:
        if split in tested:
            yield _metrics(split)
        if same := [named(row) for row in grouped(split) if row["p"] is None]:
            yield Text(f"the same run in both: {', '.join(dict.fromkeys(same))}")
    if tested:
        yield Text(f"▲ B is better, ▼ worse: {TESTS}")


def notes(content: Mapping[str, Any]) -> list[str]:
    """Return in words where the runs differ, and the collections and systems that only one has."""
    differences = [
        f"{side} differs from {other} at {', '.join(short(name) for name in names)}"
        for side, other, names in zip(SIDES, SIDES[::-1], content["artifacts"]["first"], strict=True)
        if names
    ]
    collections = [
        f"only {side} was evaluated on {', '.join(names)}"
        for side, names in zip(SIDES, content["alone"], strict=True)
        if names
    ]
    systems = [
        f"only {side} has {', '.join(names)} on {split['name']}"
        for split in content["splits"]
        for side, names in zip(SIDES, split["alone"], strict=True)
        if names
    ]
    return differences + collections + systems


def short(reference: str) -> str:
    """Return a stage with the first characters of its key."""
    stage, _, key = reference.partition("/")
    return f"{stage} {key[:8]}"


def page(content: Mapping[str, Any]) -> str:
    """Return the HTML of a comparison; equal content gives equal bytes."""
    return _template().render(content, css=css("report"), notes=notes(content), tests=TESTS)


def named(row: Mapping[str, Any]) -> str:
    """Return the names of the compared systems."""
    before, after = row["runs"]
    return str(before) if before == after else f"{before} → {after}"


def number(value: float, spread: float | None) -> str:
    """Format a mean, with the standard deviation over several seeds."""
    return f"{value:.3f}" if spread is None else f"{value:.3f} ± {spread:.3f}"


def verdict(row: Mapping[str, Any]) -> str:
    """Return the result of the t-test: a mark and the corrected p-value."""
    if row["p"] is None:
        return "same run"
    return f"{mark(direction(row))} {chance(row['p_holm'])}".strip()


def grouped(split: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the rows of a split by system, the headline's first."""
    runs = [split["headline"], *(row["runs"] for row in split["rows"])]
    return sorted(split["rows"], key=lambda row: runs.index(row["runs"]))


def chance(p: float) -> str:
    """Format a p-value for a column."""
    return probability(p).removeprefix("= ")


def _metrics(split: Mapping[str, Any]) -> Table:
    table = _table(split["name"], "metric", *SIDES, "B − A", "t-test", "randomisation", right=True)
    before = ""
    for row in grouped(split):
        if row["p"] is None:
            continue
        name = named(row)
        table.add_row(
            name if name != before else "", row["metric"],
            *(number(*values) for values in zip(row["values"], row["spreads"], strict=True)), signed(row["difference"]),
            verdict(row), chance(row["p_randomisation"]),
        )  # fmt: skip
        before = name
    return table


def _table(first: str, *others: str, right: bool = False) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=right)
    return table


@cache
def _template() -> Template:
    return template("compare.html.j2", named=named, verdict=verdict, chance=chance, grouped=grouped, number=number)
