"""Lines of a text file, plain or gzipped, with their numbers, so that every complaint names its row."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from storage.errors import UserError


def plain_or_gzipped(path: Path) -> Path | None:
    """The file that is there: `path` itself, else `path` with .gz; None if neither is."""
    for candidate in (path, path.with_name(path.name + ".gz")):
        if candidate.is_file():
            return candidate
    return None


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Every line that is not blank, without its end, after where it stands: ("FILE line 17", text)."""
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                where = f"{path} line {number}"
                if text := _decoded(line, where).rstrip("\r\n"):
                    yield where, text
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        after = f"after line {number}" if number else "at its start"
        raise UserError(f"{path}: the gzip file is cut off or damaged {after}; fetch it again ({error})") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None


def read_json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every JSON object of a file with one on each line, after where it stands."""
    for where, text in read_lines(path):
        if text.isspace():
            continue
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a plain ValueError
            raise UserError(f"{where}: not valid JSON ({error})") from None
        if not isinstance(value, dict):
            raise UserError(f"{where}: expected a JSON object, found {type(value).__name__}")
        yield where, value


def text_field(row: dict[str, Any], name: str, where: str) -> str:
    """A field that must be there and be text that UTF-8 can hold (JSON can spell half a surrogate pair)."""
    if name not in row:
        raise UserError(f"{where}: the field '{name}' is missing; found {', '.join(sorted(row)) or 'none'}")
    value = row[name]
    if not isinstance(value, str):
        raise UserError(f"{where}: the field '{name}' must be text, found {json.dumps(value)[:40]}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{where}: the field '{name}' has half a surrogate pair at character {error.start}") from None
    return value


def _decoded(line: bytes, where: str) -> str:
    try:
        return line.decode("utf-8-sig" if where.endswith(" line 1") else "utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8 (byte {error.start + 1} is 0x{line[error.start]:02x})") from None
