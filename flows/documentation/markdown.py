"""Markdown that the generated pages of the documentation consist of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from storage.errors import UserError


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, in whose cells bars and line ends cannot end a cell or a row."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def with_part(text: str, part: str, marks: tuple[str, str], file: Path) -> str:
    """Return a file's text with the part between two marks replaced. Raises UserError where a mark is missing."""
    before, first, rest = text.partition(marks[0])
    _, last, after = rest.partition(marks[1])
    if not first or not last:
        raise UserError(f"{file}: expected the lines {' and '.join(map(str.strip, marks))}; results go between them")
    return before + first + part + last + after


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
