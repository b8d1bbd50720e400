"""What `pretrieve doctor` reports of a broken environment; test_cli.py has one that works."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import typer

from flows.doctor import examine


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
