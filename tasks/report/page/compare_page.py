"""Two runs side by side: tables for the terminal, and the same as a page without script, request or unescaped text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from jinja2 import Template
from rich.table import Table
from rich.text import Text

from tasks.report.page.statistics import direction, mark, probability
from tasks.report.page.templates import css, signed, template

SIDES = ("A", "B")
TESTS = (
    "p < 0.05 by a two-sided paired t-test over the queries, with Holm's correction over the rows of a metric; "
    "random: p of a paired randomisation test, not corrected"
)


def terminal_tables(content: Mapping[str, Any]) -> Iterator[Table | Text]:
    """What a comparison says, from above to below."""
    for side in content["sides"]:
        yield Text(f"{side['name']}  {side['title']} ({', '.join(key[:8] for key in side['keys'])})", "bold")
    settings = _table("settings that differ", *SIDES)
    for row in content["settings"]:
        settings.add_row(*map(Text, row))
    yield settings if content["settings"] else Text("no setting differs")
    made = _table("made of", "both", *(f"{each} alone" for each in SIDES), right=True)
    for each in content["artifacts"]["stages"]:
        made.add_row(each["stage"], *(f"{count:,}" if count else "" for count in each["counts"]))
    yield made
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
    """Where the runs part, on what only one was measured, and which rows only one has, in words."""
    parts = [
        f"{side} parts from {other} at {', '.join(short(name) for name in names)}"
        for side, other, names in zip(SIDES, SIDES[::-1], content["artifacts"]["first"], strict=True)
        if names
    ]
    alone = [
        f"{side} alone was measured on {', '.join(names)}"
        for side, names in zip(SIDES, content["alone"], strict=True)
        if names
    ]
    rows = [
        f"{side} alone has {', '.join(names)} on {split['name']}"
        for split in content["splits"]
        for side, names in zip(SIDES, split["alone"], strict=True)
        if names
    ]
    return parts + alone + rows


def short(reference: str) -> str:
    """A stage and the beginning of a key."""
    stage, _, key = reference.partition("/")
    return f"{stage} {key[:8]}"


def page(content: Mapping[str, Any]) -> str:
    """The HTML of a comparison. Equal content makes equal bytes."""
    return _template().render(content, css=css("report"), notes=notes(content), tests=TESTS)


def named(row: Mapping[str, Any]) -> str:
    """Which rows are compared."""
    before, after = row["runs"]
    return str(before) if before == after else f"{before} → {after}"


def number(value: float, spread: float | None) -> str:
    """A mean, with the spread over seeds where there are several."""
    return f"{value:.3f}" if spread is None else f"{value:.3f} ± {spread:.3f}"


def verdict(row: Mapping[str, Any]) -> str:
    """What the t-test says of a row: a mark and Holm's p."""
    if row["p"] is None:
        return "same run"
    return f"{mark(direction(row))} {chance(row['p_holm'])}".strip()


def grouped(split: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rows of a split by run, the headline's first."""
    runs = [split["headline"], *(row["runs"] for row in split["rows"])]
    return sorted(split["rows"], key=lambda row: runs.index(row["runs"]))


def chance(p: float) -> str:
    """A probability in a column of such."""
    return probability(p).removeprefix("= ")


def _metrics(split: Mapping[str, Any]) -> Table:
    table = _table(split["name"], "metric", *SIDES, "B − A", "t-test", "random", right=True)
    before = ""
    for row in grouped(split):
        if row["p"] is None:
            continue
        name = named(row)
        table.add_row(
            name if name != before else "", row["metric"],
            *(number(*each) for each in zip(row["values"], row["spreads"], strict=True)), signed(row["difference"]),
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
