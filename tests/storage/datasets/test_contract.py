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

    assert str(error.value) == (
        "dataset.reader: there is no reader 'bier'; known are beir, bookcorpus, msmarco, msmarco_documents, "
        "natural_questions, vital_wikipedia, wikipedia, wikipedia_bookcorpus, wikipedia_bookcorpus_msmarco"
    )


@pytest.mark.parametrize("name", datasets.names())
def test_what_a_reader_may_have_besides_is_as_its_callers_expect(name: str) -> None:
    reader = datasets.reader(name)

    counts = getattr(reader, "NUM_ROWS", {})
    assert {part for part, _ in counts} <= {"corpus", "documents", "queries", "qrels"}
    assert all(
        (split is None) == (part in ("corpus", "documents")) and count > 0 for (part, split), count in counts.items()
    )
    assert all(
        len(md5) == 32 and set(md5) <= set("0123456789abcdef") for md5 in getattr(reader, "CHECKSUMS", {}).values()
    )
    assert set(getattr(reader, "RELEVANT_FROM", {}).values()) <= {1, 2, 3}
    assert hasattr(reader, "answers") == hasattr(reader, "has_answers")
    for function in set(dir(reader)) & {"answers", "has_answers"}:
        expected = list(inspect.signature(getattr(datasets.Answered, function)).parameters)[1:]
        assert list(inspect.signature(getattr(reader, function)).parameters) == expected
