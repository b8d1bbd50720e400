"""Whether a collection is all there."""

from pathlib import Path

import pytest

from storage.datasets.support.completeness import check_count, check_files
from storage.errors import UserError

MEND = "fetch it again, or read it as it is with dataset.complete=false"


def test_refuses_another_number_of_rows_than_the_official_one(tmp_path: Path) -> None:
    check_count("msmarco", tmp_path, "queries", "dev", 6_980)
    check_count("msmarco", tmp_path, "queries", "of nobody", 1)
    with pytest.raises(UserError) as error:
        check_count("msmarco", tmp_path, "corpus", None, 8_841_822)

    assert str(error.value) == f"{tmp_path}: the corpus has 8,841,822 rows; msmarco has 8,841,823: {MEND}"


def test_refuses_a_file_of_an_official_name_that_is_another(tmp_path: Path) -> None:
    unknown, other = tmp_path / "para.title.txt", tmp_path / "qrels.train.tsv"
    for file in (unknown, other):
        file.write_text("1185869\t0\t0\t1\n")
    check_files("msmarco", [unknown])
    with pytest.raises(UserError) as error:
        check_files("msmarco", [unknown, other])

    assert str(error.value) == (
        f"{other}: its md5 is b1087af2479e6c76d188788bb3ab463f, that of the official file "
        f"733fb9fe12d93e497f7289409316eccf: {MEND}"
    )
