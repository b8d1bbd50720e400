"""docs/queries.md: its columns are the table's, and its figures those that were measured."""

import json
import re

import pytest

from benchmarks import split_at_size, t5_base
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


def test_flops_are_those_of_the_formula_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WIDTH": 1, "INNER": 0, "VOCABULARY": 0}.items():
        monkeypatch.setattr(t5_base, name, value)

    # 2 x 12 x (4 + 2) for a token and 4 x 12 x 3 for looking at three, whether it is read or written.
    assert t5_base.flops(3, 5) == (3 + 5 * t5_base.QUERY_TOKENS) * (144 + 144)
