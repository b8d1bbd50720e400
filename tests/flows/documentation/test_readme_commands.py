"""Every command in the README's blocks is tested: here on a slice, or in the test that is named with the reason.

`make environment data` is only read, and `docker compose up` is tested without Docker.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer

from flows.recipe.load import load_recipe
from flows.recipe.shipped import PROJECT
from storage.store.sources import PROJECT_DATA
from tests.flows.documentation import tutorials
from tests.flows.documentation.tutorials import SLICE, changes, fenced, run
from tests.warm import WHEEL

README = PROJECT / "README.md"
GENERATION = {"queries.generate.queries_per_passage": "1", "contexts.pseudo_queries": "1"}
TRAINING = {
    "queries.train.vocabulary": "500", "queries.train.layers": "2", "queries.train.hidden_size": "32",
    "queries.train.steps": "2", "queries.train.copy_steps": "0", "queries.train.batch": "4",
}  # fmt: skip
COLLECTION = {name: value for name, value in SLICE.items() if name != "dataset.fraction"}
HERE = {
    "pretrieve plan cot_mae_query_as_context": [],
    "pretrieve adapt my-collection --out adapted": ["--start", "bert_tiny_msmarco", "--hours", "0.0001"],
    "pretrieve reproduce small/beir --set dataset.path=my-collection": changes(COLLECTION | GENERATION | TRAINING),
    "pretrieve queries build small/beir": changes(GENERATION),
    "pretrieve queries export my-collection DIR --format anserini": [],
}
"""The beginnings of the commands that run here, with the options that make them small."""
ELSEWHERE = {
    "make environment data": ("test_the_make_targets_are_known", "it installs 4 GB, so make only reads it"),
    "pretrieve reproduce quickstart": ("test_the_report_has_every_run_and_its_path_is_printed", "it takes 10 minutes"),
    "pretrieve reproduce small/retro_mae": ("test_two_pretrainings_are_compared", "a tutorial has it, too"),
    "pretrieve fetch msmarco": ("test_the_commands_lead_from_fetched_files_to_a_report", "the files are on a network"),
    "pretrieve up": ("test_up_and_down", "it starts services"),
    "docker compose up": ("test_a_run_goes_through_both_pools", "services run as the file says, without Docker"),
}
"""The other commands: the test for them, and the reason. `test_each_command_parses` reads their options."""


def readme_commands() -> list[str]:
    """Return the commands of the README's blocks."""
    text = "".join(fenced(README, "")).replace("\\\n", " ")
    lines = [re.split(r"\s+# ", line)[0].strip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith(". ")]


def test_every_command_runs_in_a_test() -> None:
    tests = "".join(file.read_text() for file in (PROJECT / "tests").rglob("test_*.py"))
    known = [*HERE, *ELSEWHERE]

    assert [line for line in readme_commands() if sum(line.startswith(name) for name in known) != 1] == []
    assert [name for name in known if not any(line.startswith(name) for line in readme_commands())] == []
    assert [test for test, _ in ELSEWHERE.values() if f"def {test}(" not in tests] == []


def test_what_is_fetched_is_where_the_recipe_looks() -> None:
    (fetch,) = [line.split() for line in readme_commands() if line.startswith("pretrieve fetch ")]
    (plan,) = [line.split() for line in readme_commands() if line.startswith("pretrieve plan ")]
    recipe, _ = load_recipe(plan[2])

    assert PROJECT / fetch[3] == PROJECT_DATA / str(recipe.dataset.path)


def test_the_make_targets_are_known(tmp_path: Path) -> None:
    (line,) = [line for line in readme_commands() if line.startswith("make ")]

    ended = subprocess.run([*line.split(), "--dry-run"], cwd=PROJECT, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
@pytest.mark.skipif(not WHEEL.exists(), reason="`make data` fetches a tiny BERT")
def test_the_commands_run_on_a_slice(tmp_path: Path) -> None:
    tutorials.write_collection(tmp_path)
    for line in readme_commands():
        for name, more in HERE.items():
            if line.startswith(name):
                run(tmp_path, line, more)

    report = json.loads((tmp_path / "artifacts" / "reports" / "small" / "beir" / "report.json").read_text())
    assert {"bm25", "retriever_1"} <= {row["run"] for row in report["rows"]}
    assert json.loads((tmp_path / "adapted" / "report.json").read_text())["verdict"]
    assert SentenceTransformer(str(tmp_path / "adapted" / "model")).encode(["ice on roads"]).shape[0] == 1
    assert len((tmp_path / "DIR" / "collection" / "docs00.json").read_text().splitlines()) == 48
