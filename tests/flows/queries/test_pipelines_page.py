"""docs/pipelines.md: its SQL runs on a real export, its models' references are compiled, and the rest is parsed."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
import yaml
from jinja2 import Environment

from flows.queries.partitions import export_partition
from flows.recipe.load import load_recipe
from tests.flows.queries.test_export import Corpus, corpus, kept
from tests.test_readme import ROOT

__all__ = ["corpus"]

PAGE = (ROOT / "docs" / "pipelines.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def lake(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    export_partition(corpus, tmp_path / "lake", dropped=True)
    return tmp_path / "lake"


@pytest.mark.usefixtures("lake")
def test_duckdb() -> None:
    [sql] = blocks("sql")
    with duckdb.connect() as connection:
        results = [connection.execute(statement).fetchall() for statement in sql.split(";") if statement.strip()]

    queries, counts = results[-2:]
    assert [row[2] for row in queries] == [query for written in kept().values() for query in written]
    assert counts == [("tiny@2", "t5", 7, 5, 6)]


@pytest.mark.usefixtures("lake")
def test_dbt_models_select_from_their_sources() -> None:
    """As dbt-duckdb compiles `source`: by `external_location`, with the table's name put in."""
    [settings] = [block for block in map(yaml.safe_load, blocks("yaml")) if "sources" in block]
    [source] = settings["sources"]
    names = {table["name"] for table in source["tables"]}

    def compiled(of: str, table: str) -> str:
        assert (of, table in names) == (source["name"], True)
        location: str = source["meta"]["external_location"]
        return location.format(name=table)

    [model] = blocks("jinja")
    rows = duckdb.sql(Environment(autoescape=False).from_string(model).render(source=compiled)).fetchall()
    assert sorted(row[2] for row in rows) == sorted(query for written in kept().values() for query in written)


def test_dags_and_assets_parse_and_call_our_commands() -> None:
    programs = blocks("python")

    assert len(programs) == 2
    for program in programs:
        ast.parse(program)
        assert "queries" in program
        assert "--format" in program


def test_the_dag_runs_its_commands_in_a_folder_that_stays() -> None:
    calls = (node for node in ast.walk(ast.parse(blocks("python")[0])) if isinstance(node, ast.Call))
    operators = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "BashOperator"]

    assert len(operators) == 2
    for operator in operators:
        assert {"cwd", "append_env"} <= {keyword.arg for keyword in operator.keywords}


def test_the_builds_name_a_collection() -> None:
    for program in blocks("python"):
        texts = [str(node.value) for node in ast.walk(ast.parse(program)) if isinstance(node, ast.Constant)]
        [change] = re.findall(r"dataset\.path=\S+", " ".join(texts))
        assert load_recipe("small/beir", [change])[0].dataset.path


def test_the_dag_takes_the_newest_version_of_its_recipe() -> None:
    listed = json.dumps([{"version": name} for name in ("small/beir@1", "small/beir@2", "small/beir_more@7")])
    constants = (node for node in ast.walk(ast.parse(blocks("python")[0])) if isinstance(node, ast.Constant))
    [command] = [str(node.value) for node in constants if "queries list" in str(node.value)]
    [program] = re.findall(r"python3 -c '(.*?)'", command)

    chosen = subprocess.run([sys.executable, "-c", program], input=listed, capture_output=True, text=True, check=True)

    assert chosen.stdout == "small/beir@2\n"
    assert 'startswith("small/beir@")' in blocks("python")[1]
