"""Portions: all items in order, none too large unless one alone is."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from storage.batched import arrow_blocks, portions


@given(st.lists(st.text(max_size=6)), st.integers(0, 12), st.none() | st.integers(1, 4))
def test_portions_hold_what_they_may(items: list[str], limit: int, number: int | None) -> None:
    results = list(portions(iter(items), size=len, limit=limit, number=number))

    assert [item for some in results for item in some] == items
    assert all(sum(map(len, some)) <= limit or len(some) == 1 for some in results)
    assert all(0 < len(some) <= (number or len(some)) for some in results)


def test_portions_are_as_large_as_they_may_be() -> None:
    assert list(portions(["aa", "b", "c", "ddddd", ""], size=len, limit=4)) == [["aa", "b", "c"], ["ddddd"], [""]]
    assert list(portions("abcde", size=len, limit=4, number=2)) == [["a", "b"], ["c", "d"], ["e"]]


def test_rows_become_arrow_tables_of_the_schema() -> None:
    schema = pa.schema([("id", pa.int64())])

    blocks = list(arrow_blocks(({"id": number} for number in range(5)), schema, 2))

    assert [block["id"].to_pylist() for block in blocks] == [[0, 1], [2, 3], [4]]
    assert {block.schema for block in blocks} == {schema}
