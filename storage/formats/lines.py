"""Read the lines of a text file, plain or gzipped, with their numbers, so that each error names its row.

The error for a file that is cut off or is something else (an error page of a server, an archive, a pointer of Git LFS)
says so.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

from storage.errors import UserError, quoted

PAGE = "a web page or a server's message instead of the file; fetch the file itself"
WRONG_FORMATS = {
    b"version https://git-lfs": "a pointer of Git LFS instead of the file; `git lfs pull` fetches the file",
    b"pk\x03\x04": "a zip archive; unpack it",
    b"<!doctype": PAGE,
    b"<html": PAGE,
    b"<?xml": PAGE,
}
"""Messages for files that are not text, by their first bytes in lower case."""
GZIP = b"\x1f\x8b"
TAR = slice(257, 262)  # the bytes with a tar archive's signature


def plain_or_gzipped(path: Path) -> Path | None:
    """Return `path` if it is a file, else `path` with .gz if that is one, else None."""
    for candidate in (path, path.with_name(path.name + ".gz")):
        if candidate.is_file():
            return candidate
    return None


@contextlib.contextmanager
def open_plain_or_gzipped(path: Path, progress: Callable[[], str]) -> Iterator[BufferedReader | gzip.GzipFile]:
    """Open a file for reading bytes, uncompressed if it is gzipped.

    Raises UserError where it is something else, cannot be read, or is cut off. `progress` returns the last position
    that was read ("line 7"), for the message.
    """
    try:
        with path.open("rb") as file:
            zipped = path.suffix == ".gz"
            _refuse_wrong_format(path, file, gzipped=zipped)
            if not zipped:
                yield file
                return
            with gzip.open(file) as unpacked:
                _refuse_wrong_format(path, unpacked, gzipped=False)
                yield unpacked
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        after = f"after {progress()}" if progress() else "at its start"
        raise UserError(f"{path}: the gzip file is cut off or damaged {after}; fetch it again ({error})") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None


def read_lines(path: Path, *, keep_blank: bool = False) -> Iterator[tuple[str, str]]:
    """Yield ("FILE line 17", text) for every line that is not blank, or for every line, without its line end."""
    number = 0
    with open_plain_or_gzipped(path, lambda: f"line {number}" if number else "") as file:
        for number, line in enumerate(file, 1):
            where = f"{path} line {number}"
            if (text := _decoded(line, where).rstrip("\r\n")) or keep_blank:
                yield where, text


def read_json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ("FILE line 17", object) for every line of a JSON-lines file."""
    for where, text in read_lines(path):
        if text.isspace():
            continue
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:  # a number of 5,000 digits raises a plain ValueError
            raise UserError(f"{where}: not valid JSON ({error})") from None
        if not isinstance(value, dict):
            raise UserError(f"{where}: expected a JSON object, found {type(value).__name__}")
        yield where, value


def text_field(row: dict[str, Any], name: str, where: str) -> str:
    """Return a required text field. Raises UserError for half a surrogate pair, too, which JSON can spell."""
    if name not in row:
        raise UserError(f"{where}: the field '{name}' is missing; found {', '.join(sorted(row)) or 'none'}")
    value = row[name]
    if not isinstance(value, str):
        raise UserError(f"{where}: the field '{name}' must be text, found {_as_json(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{where}: the field '{name}' has half a surrogate pair at character {error.start}") from None
    return value


def answer_list(value: object, where: str) -> list[str]:
    """Return the answers that are not empty: every passage contains an empty one. Raises UserError for other types."""
    if not isinstance(value, list):
        raise UserError(f"{where}: the answers must be a list of texts, found {quoted(value)}")
    answers = [text_field({"answers": answer}, "answers", where) for answer in value]
    return [answer for answer in answers if answer.strip()]


def _as_json(value: object) -> str:
    """Return the beginning of a value as JSON, or as Python writes one of Parquet that JSON cannot have."""
    try:
        return json.dumps(value)[:40]
    except RecursionError:
        return quoted(value)
    except TypeError:  # bytes, a date, a decimal
        return f"{quoted(value)}; convert the column to text"


def _decoded(line: bytes, where: str) -> str:
    try:
        return line.decode("utf-8-sig" if where.endswith(" line 1") else "utf-8")
    except UnicodeDecodeError as error:
        found = f"byte {error.start + 1} is 0x{line[error.start]:02x}"
        raise UserError(
            f"{where}: not UTF-8 ({found}); convert the file, for example by `iconv -f latin1 -t utf-8`, or remove it"
        ) from None


def _refuse_wrong_format(path: Path, file: BufferedReader | gzip.GzipFile, *, gzipped: bool) -> None:
    start = file.peek(TAR.stop)
    beginning = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if problem := next(
        (message for signature, message in WRONG_FORMATS.items() if beginning.startswith(signature)), None
    ):
        raise UserError(f"{path}: {problem}")
    if start[TAR] == b"ustar":
        raise UserError(f"{path}: a tar archive; unpack it")
    if start.startswith(GZIP) and not gzipped:
        raise UserError(f"{path}: gzipped, though its name does not say so; add .gz to the name, or unpack it")
