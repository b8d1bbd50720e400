"""The lineage graph of a run: a row per stage, in the order of the chain, and a line for each artifact.

A line begins at the stage that built the artifact, goes down to the last stage that reads it, and has a dot wherever a
stage does. The drawing is SVG, since it must be readable with a hundred stages in a narrow column; Mermaid, which
Prefect's UI draws too, makes a map of forty stages whose words cannot be read.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from tasks.runtime.formatting import duration
from tasks.session import Done

SVG = "http://www.w3.org/2000/svg"
ROW, LANE, LETTER = 20, 9, 6.2  # heights and widths in pixels; a letter's is that of the font below
COLOURS = ("#1971c2", "#c2255c", "#2b8a3e", "#e8590c", "#6741d9", "#0b7285", "#a61e4d", "#5c940d")
STYLE = (
    "text{font:11px sans-serif;dominant-baseline:middle}.n{text-anchor:end}.k{font-family:monospace;fill:#555}"
    "circle{stroke:#2b8a3e}.built{fill:#2b8a3e}.stored{fill:#fff}"
    "g path{fill:none;stroke-opacity:.65}g circle{stroke:none}"
    + "".join(f".lane-{n}{{stroke:{colour};fill:{colour}}}" for n, colour in enumerate(COLOURS))
)
"""Where no page says how it looks; the report's own style has the same classes."""


@dataclass(frozen=True)
class Lane:
    """The line of one artifact."""

    column: int
    built_in: int
    """The row of the stage that built the artifact."""
    read: Sequence[int]
    """The rows of the stages that read it, rising."""


def input_rows(done: Sequence[Done]) -> list[list[int]]:
    """Return for each stage the rows of the stages whose artifacts it reads."""
    rows = {stage.reference: row for row, stage in enumerate(done)}
    return [sorted({rows[reference] for reference in flat(stage.inputs) if reference in rows}) for stage in done]


def flat(inputs: Sequence[Any]) -> Iterator[str]:
    """Yield the references among a stage's inputs; an input may be a list or absent."""
    for value in inputs:
        yield from value if isinstance(value, list) else [] if value is None else [value]


def lanes(sources: Sequence[Sequence[int]]) -> list[Lane]:
    """Return a line for each artifact that a stage reads, in the first column that is free in all its rows."""
    free_from: list[int] = []  # by column, the row from which on it is free
    lines = []
    for built_in in range(len(sources)):
        if read := [row for row, inputs in enumerate(sources) if built_in in inputs]:
            column = next((column for column, row in enumerate(free_from) if row <= built_in), len(free_from))
            free_from[column:] = [read[-1], *free_from[column + 1 :]]
            lines.append(Lane(column, built_in, read))
    return lines


def drawing(done: Sequence[Done]) -> str:
    """Return the lineage as SVG for a page that has the style of its classes."""
    lines = lanes(input_rows(done))
    nodes = LANE * (2 + max((line.column for line in lines), default=0))  # where the stages' dots stand
    words = nodes + 28
    keys = words + LETTER * max((len(named(stage)) for stage in done), default=0) + 10
    width, height = keys + 205, ROW * len(done) + 4
    parts = [_line(line, nodes) for line in lines]
    for row, stage in enumerate(done):
        y = _y(row)
        parts.append(f'<circle class="{"stored" if stage.cached else "built"}" cx="{nodes}" cy="{y}" r="4"/>')
        parts.append(f'<text class="n" x="{words - 5}" y="{y}">{row + 1}</text>')
        parts.append(f'<text x="{words}" y="{y}">{escape(named(stage))}</text>')
        parts.append(f'<text class="k" x="{keys:.0f}" y="{y}">{stage.key[:8]}</text>')
        parts.append(f'<text class="n" x="{keys + 135:.0f}" y="{y}">{duration(stage.seconds)}</text>')
        if stage.rows is not None:
            parts.append(f'<text class="n" x="{keys + 200:.0f}" y="{y}">{stage.rows:,}</text>')
    return f'<svg xmlns="{SVG}" class="lineage" width="{width:.0f}" height="{height}">{"".join(parts)}</svg>'


def standalone(svg: str) -> str:
    """Return a drawing with its style and a white background."""
    start = svg.index(">") + 1
    return f'{svg[:start]}<style>{STYLE}</style><rect width="100%" height="100%" fill="#fff"/>{svg[start:]}'


def named(done: Done) -> str:
    """Return the name of a stage with its round."""
    return f"{done.stage} ({done.round})" if done.round else done.stage


def as_image(svg: str, words: str) -> str:
    """Return a drawing as an image in Markdown, with `words` for readers who do not see it."""
    return f"![{words}](data:image/svg+xml;base64,{b64encode(svg.encode()).decode()})"


def _line(line: Lane, nodes: int) -> str:
    x = LANE * (line.column + 1)
    path = f"M{nodes} {_y(line.built_in)}H{x}V{_y(line.read[-1])}" + "".join(
        f"M{x} {_y(row)}H{nodes}" for row in line.read
    )
    dots = "".join(f'<circle cx="{x}" cy="{_y(row)}" r="2"/>' for row in line.read)
    return f'<g class="lane-{line.column % len(COLOURS)}"><path d="{path}"/>{dots}</g>'


def _y(row: int) -> int:
    return ROW * row + ROW // 2 + 2
