"""The terminal output of commands. Texts of recipes, collections, names and paths are shown unchanged.

Rich would interpret `[brackets]` as markup and `:words:` as emoji, and a terminal interprets escape sequences.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from storage.errors import printable


class Terminal(Console):
    """A console that interprets no markup and replaces control characters.

    In a notebook it writes to the streams, too. As outputs of their own, lines would fill the cell, and part the stream
    of the progress bars.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, force_jupyter=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text to print, with control characters replaced."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable with control characters replaced, but keep Rich's own styles."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def unwrapped(*, stderr: bool = False) -> Terminal:
    """Return a console that does not wrap lines at the terminal's width."""
    return Terminal(stderr=stderr, soft_wrap=True)


def say(text: str) -> None:
    """Print one or several lines on standard output."""
    print(printable(text))


def say_json(value: Any) -> None:
    """Print a value as JSON for programs: in ASCII, paths as texts."""
    print(json.dumps(value, indent=1, default=str))


out = unwrapped()
"""Standard output, for the lines and tables of commands."""
