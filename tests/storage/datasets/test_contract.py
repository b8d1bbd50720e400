"""The contract of dataset loaders, checked for each module of `storage/datasets`."""

import inspect
from pathlib import Path

import pytest

from storage import datasets
from storage.errors import UserError

FUNCTIONS = ("files", "texts", "queries", "qrels")


@pytest.mark.parametrize("name", datasets.dataset_names())
def test_has_the_four_functions_of_a_loader(name: str) -> None:
    loader = datasets.dataset_loader(name)

    for function in FUNCTIONS:
        expected = list(inspect.signature(getattr(datasets.DatasetLoader, function)).parameters)[1:]
        assert list(inspect.signature(getattr(loader, function)).parameters) == expected


@pytest.mark.parametrize("name", datasets.dataset_names())
@pytest.mark.parametrize(("part", "split"), [("corpus", None), ("queries", "train"), ("qrels", "train")])
def test_says_which_file_is_missing(name: str, part: str, split: str | None, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        datasets.dataset_loader(name).files(tmp_path, part, split)

    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unknown_loader_names_the_known() -> None:
    with pytest.raises(UserError) as error:
        datasets.dataset_loader("bier")

    assert str(error.value) == (
        f"dataset.reader: there is no dataset loader 'bier'; known are {', '.join(datasets.dataset_names())}"
    )


@pytest.mark.parametrize("name", datasets.dataset_names())
def test_optional_functions_of_a_loader_have_the_expected_form(name: str) -> None:
    loader = datasets.dataset_loader(name)

    counts = getattr(loader, "NUM_ROWS", {})
    assert {part for part, _ in counts} <= {"corpus", "documents", "queries", "qrels"}
    assert all(
        (split is None) == (part in ("corpus", "documents")) and count > 0 for (part, split), count in counts.items()
    )
    assert all(
        len(md5) == 32 and set(md5) <= set("0123456789abcdef") for md5 in getattr(loader, "CHECKSUMS", {}).values()
    )
    assert set(getattr(loader, "RELEVANT_FROM", {}).values()) <= {1, 2, 3}
    assert hasattr(loader, "answers") == hasattr(loader, "has_answers")
    for function in set(dir(loader)) & {"answers", "has_answers"}:
        expected = list(inspect.signature(getattr(datasets.AnswerLoader, function)).parameters)[1:]
        assert list(inspect.signature(getattr(loader, function)).parameters) == expected
