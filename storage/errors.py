"""Errors that say what is wrong, where, and what to do: one line each."""

import difflib
import errno
import re
from collections.abc import Collection

CUT = 60  # characters of a value that a message shows
LONGEST = 4_000  # characters of a message
SIGNS = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"} | {0x7F: "␡"}
ACTING = "\x80-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff"
"""What would act on a terminal or cannot be written: controls, changes of direction, halves of surrogate pairs."""


SCHEME = re.compile(r"(://|:/(?!/))(?!:PASSWORD@)")
"""The end of an address' scheme; not that of our messages' own example.

A single slash is what `pathlib` leaves of an address that was given as a path."""
WORD = re.compile(r"[^\s'\"<>]+")


class DamagedArtifact(Exception):
    """The bytes of an artifact are not those in its manifest. One line: which file, what was expected, what to do."""


class UserError(Exception):
    """Something the user can mend (exit code 2). The message is one line: what, where, expected, what to do.

    Credentials in addresses are masked, since the message goes to terminals, logs and Prefect's pages.
    """

    def __init__(self, message: str) -> None:
        super().__init__(masked(message))


def masked(text: str) -> str:
    """Return the text with *** in place of the user and password of every address in it.

    They are what is between the scheme and the last @ of a word: a password may have one. The time is linear.
    """
    return WORD.sub(_masked_word, text)


def _masked_word(word: re.Match[str]) -> str:
    text = word[0]
    if not (scheme := SCHEME.search(text)):
        return text
    _, at, host = text[scheme.end() :].rpartition("@")
    return f"{text[: scheme.end()]}***@{host}" if at else text


PATHS = {
    errno.ENAMETOOLONG: "the name is too long",
    errno.ENOTDIR: "a part of the path is a file; expected a folder",
    errno.EISDIR: "a folder; expected a file",
    errno.ELOOP: "a link that leads to itself",
    errno.EACCES: "no permission to read or write it",
    errno.EPERM: "no permission to read or write it",
    errno.EROFS: "the file system cannot be written to",
}
"""What the system says of a path that a user has given."""


def wrong_path(error: BaseException) -> str | None:
    """A message for an error of the system that is about a path; None for others."""
    if not isinstance(error, OSError) or error.errno not in PATHS or error.filename is None:
        return None
    name = str(error.filename)
    return f"{name if len(name) <= LONGEST // 20 else quoted(name)}: {PATHS[error.errno]}; give another path"


def quoted(value: object) -> str:
    """A value in quotes as Python writes it, of at most `CUT` characters: its beginning where it is longer."""
    if isinstance(value, str):
        return repr(value) if len(value) <= CUT else f"{value[:CUT]!r}… ({len(value):,} characters)"
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # of thousands of levels, or a number of thousands of digits
        return f"a value of type {type(value).__name__} that is too large to show"
    return text if len(text) <= CUT else f"{text[:CUT]}…"


def suggestion(name: str, known: Collection[str], otherwise: str = "expected one of", cutoff: float = 0.6) -> str:
    """Return "did you mean …?" with the known name that resembles `name`; where none does, list the known names."""
    similar = difflib.get_close_matches(name, known, 1, cutoff)
    return f"did you mean {similar[0]}?" if similar else f"{otherwise} {', '.join(known)}"


def printable(text: str) -> str:
    """A text of which nothing is hidden and nothing acts: control characters and the like are shown as signs."""
    return re.sub(f"[{ACTING}]", lambda found: f"⟨U+{ord(found[0]):04X}⟩", text.translate(SIGNS))


def one_line(text: str) -> str:
    """The text for a terminal in one line of at most `LONGEST` characters."""
    line = printable(masked(" ".join(text.split())))
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}… ({len(line):,} characters)"
