"""docs/queries.md: its columns are the table's, and its figures those that were measured."""

import json
import re

from benchmarks import split_at_size
from storage.tables import PseudoQueries

PAGE = split_at_size.PAGE.read_text()


def test_every_column_is_explained_in_order() -> None:
    table = PAGE.partition("## The table")[2].partition("\n## ")[0]

    added = ["built_at", "recipe_key"]  # by exports
    assert re.findall(r"^\| (\w+) \| \w", table, re.MULTILINE)[1:] == [*PseudoQueries.schema.names, *added]


def test_the_tables_are_made_of_what_was_measured() -> None:
    result = json.loads(split_at_size.RESULT.read_text())

    assert split_at_size.page(PAGE, result) == PAGE
    assert "DIFFERENT" not in PAGE
