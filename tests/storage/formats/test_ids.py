"""Hashes that choose slices and splits, and ids that stand twice."""

from unicodedata import category

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import UserError
from storage.formats.ids import Unique, checked_id, in_slice, share

IDS = [f"document-{i}" for i in range(20_000)]


def test_shares_are_those_of_sha256() -> None:
    # printf a | sha256sum, and printf "s\0a" | sha256sum
    assert share("a") == pytest.approx(int("ca978112ca1bbdca", 16) / 2**64, abs=2**-52)
    assert share("a", salt="s") == pytest.approx(int("4cfd2308ceb4735a", 16) / 2**64, abs=2**-52)


@pytest.mark.parametrize("fraction", [0.01, 0.3, 0.9])
def test_a_slice_has_its_share_and_is_part_of_larger_slices(fraction: float) -> None:
    kept = {passage_id for passage_id in IDS if in_slice(passage_id, fraction)}

    # 4 standard deviations of a binomial count
    assert abs(len(kept) - fraction * len(IDS)) < 4 * (len(IDS) * fraction * (1 - fraction)) ** 0.5
    assert all(in_slice(name, fraction + 0.1) for name in kept)


def test_none_keeps_all() -> None:
    assert all(in_slice(passage_id, None) for passage_id in IDS[:100])


def test_a_salt_draws_independently() -> None:
    low = [passage_id for passage_id in IDS if share(passage_id) < 0.3]
    in_both = sum(share(name, salt="other") < 0.3 for name in low)

    assert abs(in_both / len(low) - 0.3) < 0.03


@given(st.text(max_size=5))
def test_an_id_is_refused_if_a_run_file_could_not_hold_it(value: str) -> None:
    if value.split() == [value] and not any(category(character) == "Cc" for character in value.replace("\ufeff", "\0")):
        assert checked_id(value, "row") == value
    else:
        with pytest.raises(UserError):
            checked_id(value, "row")


@given(st.lists(st.text(max_size=2)))
def test_duplicates_are_always_suspected_and_nothing_else(values: list[str]) -> None:
    seen = Unique()
    for value in values:
        seen.add(value)

    assert seen.suspects() == {hash(value) for value in values if values.count(value) > 1}


def test_a_duplicate_is_named_with_both_its_rows_in_one_file_or_two() -> None:
    rows = [("a.tsv line 1", "x"), ("a.tsv line 2", "y"), ("a.tsv line 5", "y"), ("b.tsv line 1", "x")]

    assert complaint(rows[:3]) == "a.tsv line 5: the id y is already in line 2; ids must be unique"
    assert complaint([rows[0], rows[3]]) == "b.tsv line 1: the id x is already in a.tsv line 1; ids must be unique"
    unique = Unique()
    unique.add("x")
    unique.check(lambda: pytest.fail("ids that are unique are not read again"))


def complaint(rows: list[tuple[str, str]]) -> str:
    seen = Unique()
    for _, value in rows:
        seen.add(value)
    with pytest.raises(UserError) as error:
        seen.check(lambda: rows)
    return str(error.value)
