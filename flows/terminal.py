"""The terminal: what commands print. Texts of recipes, collections, names and paths are shown as they are.

Rich would read `[brackets]` in a text as its markup and `:words:` as emoji, and a terminal obeys escape sequences.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from storage.errors import printable


class Terminal(Console):
    """A console that reads no markup and replaces what would act on the terminal."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """A text to print, in the width of what is shown."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of anything, also of a `Text`; Rich's own styles are no part of a segment's text."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def unwrapped(*, stderr: bool = False) -> Terminal:
    """For lines, which are not wrapped at the terminal's width."""
    return Terminal(stderr=stderr, soft_wrap=True)


def say(text: str) -> None:
    """Print a line, or several, on standard output."""
    print(printable(text))


out = unwrapped()
"""Standard output, for the lines and tables of commands."""
