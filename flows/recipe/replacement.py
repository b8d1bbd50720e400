"""What `--replace` names: the queries of all passages, of a bucket of them, or of the documents of a file."""

from __future__ import annotations

import re
from typing import Any

from flows.recipe.schema import Recipe
from storage.errors import UserError

ALL, BUCKET = "all", re.compile(r"bucket:([0-9a-f]{2})", re.IGNORECASE)
EXPECTED = "expected `all`, `bucket:` and two hexadecimal digits, or a file of document ids"
NO_QUERIES = "queries: this recipe generates none; expected a section as in configs/quickstart.yaml"


def check_replacement(recipe: Recipe[Any], what: str) -> None:
    """Raise UserError for a recipe without queries, and for a bucket that cannot be one; files are not read."""
    if recipe.queries is None:
        raise UserError(NO_QUERIES)
    if what.lower().startswith("bucket:") and not BUCKET.fullmatch(what):
        raise UserError(f"--replace {what}: {EXPECTED}")
