"""The tutorials' notebooks run, and the outputs in the repository are those of their code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pretrieve
from flows.adapt import recipes
from flows.documentation import notebooks
from tests.warm import WHEEL

NOTEBOOKS = sorted(notebooks.TUTORIALS.glob("*.ipynb"))
SLICES: dict[str, dict[str, Any]] = {
    "adapt_to_your_collection": {"DOCUMENTS": 150},
    "compare_pretrainings": {"SIZE": {"dataset.fraction": 0.02, "pretrain.steps": 2}},
}


def cells(*sources: str, tags: tuple[str, ...] = ()) -> notebooks.Notebook:
    code = [{"cell_type": "code", "metadata": {"tags": list(tags) if n == 0 else []}, "source": [source]}
            for n, source in enumerate(sources)]  # fmt: skip
    return {"cells": code, "metadata": {}}


@pytest.mark.slow
@pytest.mark.skipif(not WHEEL.exists(), reason="`make data` fetches the Wikipedia leads")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_on_a_slice(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(recipes, "MOST_THREADS", 1)  # other tests run meanwhile
    notebook = notebooks.read(path)

    done = notebooks.executed(notebook, SLICES[path.stem])

    assert [kinds(cell) for cell in done["cells"]] == [kinds(cell) for cell in notebook["cells"]]


def kinds(cell: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """Return what a cell shows: text, tables."""
    return [(output["output_type"], sorted(output.get("data", {}))) for output in cell.get("outputs", [])]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_outputs_are_those_of_the_code(path: Path) -> None:
    notebook = notebooks.read(path)

    assert notebook["metadata"]["source_sha256"] == notebooks.source_hash(notebook)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert any("text/html" in output.get("data", {}) for cell in code for output in cell["outputs"])


def test_cells_share_names_and_show_their_last_value() -> None:
    done = notebooks.executed(cells("size = 1", "print(size + 1)\nsize", "size = 5", tags=("parameters",)), {"size": 3})

    printed, value = done["cells"][1]["outputs"]
    assert (printed["text"], value["data"]) == (["4\n"], {"text/plain": ["3"]})
    assert [len(cell["outputs"]) for cell in done["cells"]] == [0, 2, 0]
    assert "```text\n4\n```\n\n```text\n3\n```" in notebooks.page(done)


def test_an_error_of_a_cell_is_raised() -> None:
    with pytest.raises(pretrieve.UserError, match="no_such_recipe"):
        notebooks.executed(cells("import pretrieve", "pretrieve.recipe('no_such_recipe')"))


def test_a_table_is_shown_as_html_without_its_style() -> None:
    done = notebooks.executed(cells("import pandas", "pandas.DataFrame({'run': ['bm25']})"))

    page = notebooks.page(done)
    assert "<td>bm25</td>" in page
    assert "<style" not in page
