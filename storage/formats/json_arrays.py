"""Read the objects of one large JSON array, plain or gzipped, one in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from storage.errors import UserError
from storage.formats.lines import open_plain_or_gzipped


def read_json_array(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ("FILE item 17", object) for each object; items count from 1.

    Raises UserError for a file that is cut off, is not JSON, or is not one array of objects.
    """
    import ijson

    number = 0
    with open_plain_or_gzipped(path, lambda: f"item {number}" if number else "") as file:
        try:
            for number, value in enumerate(ijson.items(file, "item"), 1):
                if not isinstance(value, dict):
                    raise UserError(f"{path} item {number}: expected a JSON object, found {type(value).__name__}")
                yield f"{path} item {number}", value
        except (ijson.JSONError, ValueError) as error:  # a byte that is not UTF-8, or a number of thousands of digits
            reason = str(error).removeprefix("b'").replace("\\n", "\n").splitlines()[0]
            after = f"after item {number}" if number else "at its start"
            raise UserError(f"{path}: the JSON is cut off or damaged {after}; fetch it again ({reason})") from None
    if not number:
        raise UserError(f"{path}: expected an array of JSON objects, found none")
