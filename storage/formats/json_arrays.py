"""Objects of one large JSON array, one in memory; plain or gzipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from storage.errors import UserError
from storage.formats.lines import opened


def read_json_array(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object after where it stands: ("FILE item 17", object), from 1.

    Raises UserError for a file that ends in the middle, is no JSON, or has another thing than objects in one array.
    """
    import ijson

    number = 0
    with opened(path, lambda: f"item {number}" if number else "") as file:
        try:
            for number, value in enumerate(ijson.items(file, "item"), 1):
                if not isinstance(value, dict):
                    raise UserError(f"{path} item {number}: expected a JSON object, found {type(value).__name__}")
                yield f"{path} item {number}", value
        except (ijson.JSONError, ValueError) as error:  # a byte that is no UTF-8, or a number without end
            why = str(error).removeprefix("b'").replace("\\n", "\n").splitlines()[0]
            after = f"after item {number}" if number else "at its start"
            raise UserError(f"{path}: the JSON is cut off or damaged {after}; fetch it again ({why})") from None
    if not number:
        raise UserError(f"{path}: expected an array of JSON objects, found none")
