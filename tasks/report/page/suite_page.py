"""The leaderboard of a suite for a terminal, in Markdown, and as one HTML file: models by collections, with an average.

A column is a collection or a group of collections, with the unweighted mean of its members, as in BEIR for CQADupStack.
The average is the mean of the columns if all have the same metric. Missing members are stated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Template
from rich.table import Table
from rich.text import Text

from tasks.report.page.corpus_page import marked
from tasks.report.page.statistics import direction, mark, top
from tasks.report.page.templates import css, template

MARKS = "better or worse than {first} (paired t-test over the queries, Holm, p < 0.05)"

Content = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A column: a metric, averaged over one or more collections."""

    name: str
    metric: str
    members: Sequence[str]
    of: int
    """The number of members if none is missing."""

    @property
    def heading(self) -> str:
        """The name, and the number of members if some are missing."""
        return self.name if len(self.members) == self.of else f"{self.name} ({len(self.members)} of {self.of})"


@dataclass(frozen=True)
class Cell:
    """A model's value in a column."""

    value: float
    best: bool
    sign: int
    """1 if significantly better than the first model, -1 if worse, else 0; always 0 for untested groups."""


def columns(content: Content) -> list[Column]:
    """Return the columns with at least one collection, in the suite's order."""
    shown = []
    for name, size in content["columns"].items():
        members = [collection for collection in content["collections"] if collection["column"] == name]
        if members:
            shown.append(Column(name, members[0]["metric"], [member["name"] for member in members], size))
    return shown


def average(content: Content) -> Column | None:
    """Return the average column; None if the columns have different metrics or there is only one."""
    shown = columns(content)
    if len(shown) < 2 or len({column.metric for column in shown}) > 1:
        return None
    return Column("average", shown[0].metric, [column.name for column in shown], len(content["columns"]))


def table(content: Content) -> dict[str, list[Cell]]:
    """Return the cells of each model: one per column, then the average if there is one."""
    known = {(row["dataset"], row["run"], row["metric"]): row["value"] for row in content["rows"]}
    tested = {(row["dataset"], row["run"], row["metric"]): direction(row) for row in content["comparisons"]}
    values = {
        run: [_mean([known[member, run, column.metric] for member in column.members]) for column in columns(content)]
        for run in content["models"]
    }
    signs = {
        run: [
            tested.get((column.members[0], run, column.metric), 0) if column.of == 1 else 0
            for column in columns(content)
        ]
        for run in content["models"]
    }
    if average(content):
        values = {run: [*row, _mean(row)] for run, row in values.items()}
        signs = {run: [*row, 0] for run, row in signs.items()}
    best = [max(column_values) for column_values in zip(*values.values(), strict=True)]
    return {
        run: [Cell(*cell) for cell in zip(values[run], map(float.__eq__, values[run], best), signs[run], strict=True)]
        for run in values
    }


def terminal_table(content: Content) -> Table:
    """Return the table for the terminal, with the best of each column in bold."""
    terminal = Table(title=content["title"], title_justify="left")
    terminal.add_column("model", overflow="fold")
    for heading in headings(content):
        terminal.add_column(heading, justify="right", overflow="fold")
    for run, cells in table(content).items():
        terminal.add_row(run, *(Text(_shown(cell), "bold" if cell.best else "") for cell in cells))
    return terminal


def as_markdown(content: Content) -> str:
    """Return the table and its notes in Markdown."""
    heads = [marked(head) for head in headings(content)]
    title = marked(content["title"])
    lines = [f"# {title}", "", f"| model | {' | '.join(heads)} |", f"|---|{'---:|' * len(heads)}"]
    for run, cells in table(content).items():
        shown = (f"**{_shown(cell)}**" if cell.best else _shown(cell) for cell in cells)
        lines.append(f"| {marked(run)} | {' | '.join(shown)} |")
    return "\n".join([*lines, "", marked(notes(content))]) + "\n"


def headings(content: Content) -> list[str]:
    """Return the headings of the columns, with the metric if metrics differ."""
    shown, last = columns(content), average(content)
    same = len({column.metric for column in shown}) == 1
    heads = [column.heading if same else f"{column.heading} {column.metric}" for column in shown]
    return [*heads, last.heading] if last else heads


def notes(content: Content) -> str:
    """Return the notes on the numbers, in sentences."""
    metrics = {column.metric for column in columns(content)}
    sentences = [f"{min(metrics)}; {content['description']}." if len(metrics) == 1 else f"{content['description']}."]
    if len(content["models"]) > 1:
        sentences.append(f"▲▼: {MARKS.format(first=next(iter(content['models'])))}.")
    if any(not row["titles"] for row in content["rows"]):
        sentences.append("Texts are without titles.")
    sentences += [f"Omitted: {why}." for why in content["absent"].values()]
    sentences += [
        f"{row['run']} on {row['dataset']}: expected {row['expected']:.4f} {row['metric']} "
        f"({content['expected_from']}), measured {row['found']:.4f}."
        for row in content["expected"]
        if not row["alike"]
    ]
    return " ".join(sentences)


def page(content: Content) -> str:
    """Return the self-contained HTML file; equal content gives equal bytes."""
    return _template().render(
        content, css=css("report"), table=table(content), headings=headings(content),
        notes=notes(content), bars=[_bars(content, column) for column in columns(content)],
        queries={row["dataset"]: row["queries"] for row in content["rows"]},
    )  # fmt: skip


def _bars(content: Content, column: Column) -> dict[str, Any]:
    """Return the bars of a column, with confidence intervals if the column is one collection."""
    index = columns(content).index(column)
    values = {run: cells[index].value for run, cells in table(content).items()}
    spans = {
        row["run"]: (row["low"], row["high"])
        for row in content["intervals"]
        if column.of == 1 and (row["dataset"], row["metric"]) == (column.members[0], column.metric)
    }
    end = top([*values.values(), *(high for _, high in spans.values())])
    rows = []
    for run, value in values.items():
        low, high = spans.get(run, (value, value))
        rows.append({"run": run, "value": value, "low": low, "high": high, "width": value / end, "left": low / end,
                     "span": (high - low) / end})  # fmt: skip
    return {"name": column.heading, "metric": column.metric, "end": end, "rows": rows}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _shown(cell: Cell) -> str:
    return f"{cell.value:.3f}{mark(cell.sign)}"


@cache
def _template() -> Template:
    return template("suite.html.j2", four=lambda value: f"{value:.4f}", mark=mark)
