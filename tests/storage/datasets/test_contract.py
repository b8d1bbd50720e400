"""The contract of dataset loaders, checked for each module of `storage/datasets`."""

import gzip
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage import datasets
from storage.datasets import msmarco, natural_questions
from storage.errors import UserError
from tests.storage.datasets import test_beir, test_msmarco, test_msmarco_documents, test_natural_questions

FUNCTIONS = ("files", "texts", "queries", "qrels")
MINIATURES: dict[str, tuple[Callable[[Path], None], list[str], list[str]]] = {
    "beir": (test_beir.write_files, ["corpus"], ["dev"]),
    "msmarco": (test_msmarco.write_files, ["corpus", "documents"], list(msmarco.TOPICS)),
    "msmarco_documents": (test_msmarco_documents.write_files, ["corpus"], list(msmarco.TOPICS)),
    "natural_questions": (test_natural_questions.write_files, ["corpus"], [*natural_questions.JUDGED, "test"]),
}
"""What writes a loader's files, its corpora and its splits."""


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


def rows(name: str, folder: Path) -> dict[str, list[Any]]:
    """Every row of a miniature, by function."""
    loader, (_, corpora, splits) = datasets.dataset_loader(name), MINIATURES[name]
    judged = [split for split in splits if datasets.has_qrels(name, split)]
    return {
        "texts": [row for corpus in corpora for row in loader.texts(folder, corpus)],
        "queries": [row for split in splits for row in loader.queries(folder, split)],
        "qrels": [row for split in judged for row in loader.qrels(folder, split)],
        "answers": [row for split in splits if hasattr(loader, "answers") for row in loader.answers(folder, split)],
    }


@pytest.mark.parametrize("name", MINIATURES)
def test_rows_have_the_fields_of_their_table(name: str, tmp_path: Path) -> None:
    MINIATURES[name][0](tmp_path)
    fields = {"texts": ["doc_id", "title", "text"], "queries": ["query_id", "text"],
              "qrels": ["query_id", "doc_id", "grade"], "answers": ["query_id", "answers"]}  # fmt: skip

    for function, inputs in rows(name, tmp_path).items():
        assert all(list(row) == fields[function] for row in inputs)
        assert inputs or function == "answers"


@pytest.mark.parametrize("name", MINIATURES)
def test_gzipped_files_are_read_as_plain_ones(name: str, tmp_path: Path) -> None:
    MINIATURES[name][0](tmp_path)
    plain = rows(name, tmp_path)
    for file in [file for file in tmp_path.rglob("*") if file.is_file()]:
        file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()

    assert rows(name, tmp_path) == plain
    corpora, splits = MINIATURES[name][1:]
    loader = datasets.dataset_loader(name)
    files = [*loader.files(tmp_path, corpora[0], None), *loader.files(tmp_path, "queries", splits[0])]
    assert {file.suffix for file in files} == {".gz"}
