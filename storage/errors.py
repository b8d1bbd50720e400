"""Errors that say what is wrong, where, and what to do: one line each."""

import re

CUT = 60  # characters of a value that a message shows
LONGEST = 4_000  # characters of a message
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
"""What would act on a terminal instead of being shown: escapes, changes of direction; and halves of surrogate pairs."""


class UserError(Exception):
    """Something the user can mend (exit code 2). The message is one line: what, where, expected, what to do."""


def quoted(value: object) -> str:
    """A value in quotes as Python writes it, of at most `CUT` characters: its beginning where it is longer."""
    if isinstance(value, str):
        return repr(value) if len(value) <= CUT else f"{value[:CUT]!r}… ({len(value):,} characters)"
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # of thousands of levels, or a number of thousands of digits
        return f"a value of type {type(value).__name__} that is too large to show"
    return text if len(text) <= CUT else f"{text[:CUT]}…"


def printable(text: str) -> str:
    """The text for a terminal: what would act on it, such as an escape sequence, is replaced by U+FFFD."""
    return CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)


def one_line(text: str) -> str:
    """The text for a terminal in one line of at most `LONGEST` characters."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}… ({len(line):,} characters)"
