"""What every reader promises, checked for each file of `storage/datasets`."""

import inspect
from pathlib import Path

import pytest

from storage import datasets
from storage.errors import UserError

FUNCTIONS = ("files", "texts", "queries", "qrels")


@pytest.mark.parametrize("name", datasets.names())
def test_has_the_four_functions_of_a_reader(name: str) -> None:
    reader = datasets.reader(name)

    for function in FUNCTIONS:
        expected = list(inspect.signature(getattr(datasets.Reader, function)).parameters)[1:]
        assert list(inspect.signature(getattr(reader, function)).parameters) == expected


@pytest.mark.parametrize("name", datasets.names())
@pytest.mark.parametrize(("part", "split"), [("corpus", None), ("queries", "train"), ("qrels", "train")])
def test_says_which_file_is_missing(name: str, part: str, split: str | None, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        datasets.reader(name).files(tmp_path, part, split)

    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)


def test_names_the_readers_where_one_is_unknown() -> None:
    with pytest.raises(UserError) as error:
        datasets.reader("bier")

    assert str(error.value) == "dataset.reader: there is no reader 'bier'; known are beir, msmarco, vital_wikipedia"
