"""The page of coverage: it equals its generator, and each number that the authors produced has a run or a reason."""

import csv
import os
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from flows.documentation.paper_coverage import PAGE, SOURCES, coverage_page, origin, reason, runs_that_reproduce
from flows.recipe.shipped import shipped_recipes
from storage.results.paper_results import PAPERS, PrintedNumber, RowName, printed_numbers

ORIGINS = {"trained", "copied", "not stated", "annotated"}


def lines(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((SOURCES / f"{name}.csv").read_text(encoding="utf-8").splitlines()))


def trained() -> list[PrintedNumber]:
    return [number for number in printed_numbers() if origin(number.row)[0] == "trained"]


def test_the_page_is_what_its_generator_writes() -> None:
    assert PAGE.read_text(encoding="utf-8") == coverage_page(), "run `make coverage`"


def test_each_number_of_a_row_that_the_authors_trained_has_a_run_or_a_reason() -> None:
    missing = [number for number in trained() if not runs_that_reproduce(number) and not reason(number)]

    assert not missing
    assert len(trained()) > 400
    assert sum(bool(runs_that_reproduce(number)) for number in trained()) > 0.8 * len(trained())


def test_each_reason_is_of_a_number_that_no_run_reproduces() -> None:
    missing = [number for number in printed_numbers() if not runs_that_reproduce(number)]
    for line in lines("reasons"):
        names = ("paper", "table", "system", "variant", "dataset")
        patterns = [line[name] for name in names]
        texts = [(n.row.paper, n.row.table, n.row.system, n.row.variant, n.dataset) for n in missing]
        fits = (all(map(fnmatchcase, text, patterns)) for text in texts)
        assert any(fits), f"{line}: a run reproduces it by now; remove the line and run `make coverage`"
        assert line["reason"]


def test_recipes_and_rows_on_the_page_exist() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert all(f"\n## {paper} ({citation})\n" in page for citation, paper in PAPERS.items())
    assert page.count("| trained: ") + page.count("| copied: ") + page.count("| not stated |") > 150
    for line in [*lines("figures"), *lines("reasons")]:
        for word in line.get("here", line.get("reason", "")).split("`")[1::2]:
            assert word in shipped_recipes() or (Path("tasks/analyses") / f"{word}.py").is_file(), word


def test_a_copied_row_and_a_reproduced_one() -> None:
    row = RowName("Query-as-context", "Table 1", "COSTA", "")
    ours = RowName("Query-as-context", "Table 1", "CoT-MAE", "w/ query-as-context (50K) - retriever 1")
    numbers = [number for number in printed_numbers() if number.row == ours]

    assert origin(row)[0] == "copied"
    assert origin(ours)[0] == "trained"
    assert {(run.recipe, run.run) for number in numbers for run in runs_that_reproduce(number)} >= {
        ("cot_mae_query_as_context", "retriever_1")
    }
    assert not any(runs_that_reproduce(number) for number in printed_numbers() if number.row == row)
    assert {origin(number.row)[0] for number in printed_numbers()} == ORIGINS


def test_quotations_are_in_the_papers() -> None:
    if not (folder := os.environ.get("PRETRIEVE_PAPERS")):
        pytest.skip("PRETRIEVE_PAPERS names no folder with the papers' texts")
    texts = [" ".join(file.read_text(encoding="utf-8").split()) for file in sorted(Path(folder).glob("*.txt"))]
    for line in lines("origins"):
        assert any(line["words"] in text for text in texts), line
