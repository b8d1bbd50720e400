"""Errors for users: one line that says what is wrong, where, what was expected and what to do."""

import difflib
import errno
import re
from collections.abc import Collection

CUT = 60  # characters of a value in a message
LONGEST = 4_000  # characters of a message
CONTROL_PICTURES = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"} | {0x7F: "␡"}
ACTIVE = "\x80-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff"
"""Characters that a terminal acts on or cannot print: controls, changes of direction, halves of surrogate pairs."""

SCHEME = re.compile(r"(://|:/(?!/))(?!(?:user)?:PASSWORD@)")
"""The end of a URL's scheme, except in the example of our own messages.

`pathlib` leaves a single slash in a URL that was given as a path."""
WORD = re.compile(r"[^\s'\"<>]+")
SECRET = re.compile(r"([?&;]\w*(?:password|passwd|secret|token)=)[^&;]*", re.IGNORECASE)
"""A parameter of a URL that is secret by its name."""


class DamagedArtifact(Exception):
    """An artifact differs from its manifest. One line: which file, what was expected, what to do."""


class UserError(Exception):
    """A problem that the user can fix (exit code 2). The message is one line: what, where, expected, what to do.

    Credentials in URLs are masked, since the message goes to terminals, logs and Prefect's pages.
    """

    def __init__(self, message: str) -> None:
        super().__init__(masked(message))


def masked(text: str) -> str:
    """Return the text with *** in place of the user, the password and secret parameters of every URL in it.

    User and password are between the scheme and the last @ of a word: a password may have one. The time is linear in
    the length.
    """
    return WORD.sub(_masked_word, text)


def _masked_word(word: re.Match[str]) -> str:
    text = word[0]
    if not (scheme := SCHEME.search(text)):
        return text
    start, address = text[: scheme.end()], text[scheme.end() :]
    user, at, host = address.rpartition("@")
    if at and SECRET.search(user):  # a parameter with an @, or a password like a parameter: what follows may be secret
        return f"{start}***"
    return start + SECRET.sub(r"\1***", f"***@{host}" if at else address)


PATHS = {
    errno.ENAMETOOLONG: "the name is too long; give another path",
    errno.ENOTDIR: "a part of the path is a file; expected a folder; give another path",
    errno.EISDIR: "a folder; expected a file; give another path",
    errno.ELOOP: "a link that leads to itself; give another path",
    errno.EACCES: "no permission to read or write it; give another path",
    errno.EPERM: "no permission to read or write it; give another path",
    errno.EROFS: "the file system cannot be written to; give another path",
    errno.EIO: "input/output error; check the disk or the network file system",
    errno.ESTALE: "the network file system has lost it; run the same command again",
}
"""Messages for the system's errors about a path."""


def wrong_path(error: BaseException) -> str | None:
    """Return a message for an error of the system about a path, or None for any other error."""
    if not isinstance(error, OSError) or error.errno not in PATHS or error.filename is None:
        return None
    name = str(error.filename)
    return f"{name if len(name) <= LONGEST // 20 else quoted(name)}: {PATHS[error.errno]}"


def quoted(value: object) -> str:
    """Return a value as Python writes it, shortened to `CUT` characters."""
    if isinstance(value, str):
        return repr(value) if len(value) <= CUT else f"{value[:CUT]!r}… ({len(value):,} characters)"
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested thousands of levels deep, or a number of thousands of digits
        return f"a value of type {type(value).__name__} that is too large to show"
    return text if len(text) <= CUT else f"{text[:CUT]}…"


def suggestion(name: str, known: Collection[str], otherwise: str = "expected one of", cutoff: float = 0.6) -> str:
    """Return "did you mean …?" with the known name that resembles `name`; where none does, list the known names."""
    similar = difflib.get_close_matches(name, known, 1, cutoff)
    return f"did you mean {similar[0]}?" if similar else f"{otherwise} {', '.join(known)}"


def printable(text: str) -> str:
    """Return the text with visible signs in place of characters that are invisible or that a terminal acts on."""
    return re.sub(f"[{ACTIVE}]", lambda match: f"⟨U+{ord(match[0]):04X}⟩", text.translate(CONTROL_PICTURES))


def one_line(text: str) -> str:
    """Return the text as one line for a terminal, of at most `LONGEST` characters."""
    line = printable(masked(" ".join(text.split())))
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}… ({len(line):,} characters)"
