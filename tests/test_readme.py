"""What the documents tell a reader to type is there to be typed."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import typer.core
import typer.main

from flows.cli import app
from flows.recipe.shipped import shipped_recipes

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
GROUP = typer.main.get_command(app)
SHIPPED = shipped_recipes()


def commands(document: Path, program: str) -> list[str]:
    """The lines of fenced blocks, and the words in backticks, that call a program; comments are cut off."""
    text = document.read_text()
    fenced = re.findall(r"^```[a-z]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    lines = [line for block in fenced for line in block.replace("\\\n", " ").splitlines()] + inline
    results = [re.sub(r"^(\$ |[A-Z_]+=\S+ |\.venv/bin/(?=pretrieve))*", "", line.strip()) for line in lines]
    return [line.split("  #")[0].rstrip() for line in results if line.startswith(f"{program} ")]


ALL = [(document.name, line) for document in DOCUMENTS for line in commands(document, "pretrieve")]


@pytest.mark.parametrize(("document", "line"), ALL)
def test_each_command_parses(document: str, line: str) -> None:
    """The real command line takes its arguments; nothing is run."""
    words = [word for word in shlex.split(line)[1:] if word not in ("...", "…")]
    command = GROUP
    # a command, or one of a group of them
    while words and not words[0].startswith("--") and isinstance(command, typer.core.TyperGroup):
        command = command.commands.get(name := words.pop(0))
        assert command is not None, f"there is no command {name!r}"
    if words in ([], ["--help"]):  # the name alone, as a sentence names it
        return
    if isinstance(command, typer.core.TyperGroup):  # an option of a group, which would act when it is parsed
        assert set(words) <= {option for parameter in command.params for option in parameter.opts}
        return
    if "[" in line:  # a synopsis
        known = {option for parameter in command.params for option in parameter.opts}
        assert set(re.findall(r"--[a-z]+", line)) <= known
        return
    with command.make_context(name, words) as context:
        recipe = context.params.get("recipe")
    assert recipe in (None, "RECIPE", *SHIPPED) or recipe.endswith(".yaml"), f"{recipe} is not shipped"


def test_every_query_command_is_in_its_guide() -> None:
    queries = {line.split()[2] for line in commands(ROOT / "docs" / "queries.md", "pretrieve queries")}

    assert set(GROUP.commands["queries"].commands) <= queries  # type: ignore[attr-defined]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_each_make_target_exists(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    assert {line.split()[1] for line in commands(document, "make")} <= targets


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_each_linked_file_exists(document: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text())

    assert not [link for link in links if not link.startswith("http") and not (document.parent / link).exists()]


def test_ci_runs_what_a_developer_runs() -> None:
    lines = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if not line.startswith("#")]

    assert lines[-3:] == ["make -j2 test", "make test-numbers", "make test-services"]
    assert "set -euo pipefail" in lines  # the failure of one is the failure of all


@pytest.mark.parametrize("file", ["requirements.lock", "requirements-dev.lock", "requirements-gpu.lock"])
def test_the_locks_pin_every_package_and_name_no_host(file: str) -> None:
    lines = [line for line in (ROOT / file).read_text().splitlines() if not line.startswith(("#", "--requirement "))]

    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[^+\s]+( ; .+)?", line)] == []
    assert ("torch==2.13.0" in lines) is (file != "requirements-dev.lock")


def test_the_lock_for_gpus_differs_in_faiss_and_what_reads_their_power_only() -> None:
    cpu, gpu = (set((ROOT / f"requirements{kind}.lock").read_text().splitlines()) for kind in ("", "-gpu"))
    more = {line.partition("==")[0] for line in gpu - cpu if "==" in line}

    assert {line.partition("==")[0] for line in cpu - gpu if "==" in line} == {"faiss-cpu"}
    assert {"faiss-gpu-cu12", "nvidia-ml-py"} <= more
    assert all(name.startswith("nvidia-") for name in more - {"faiss-gpu-cu12"})


def test_the_lock_of_the_image_has_what_runs_and_nothing_of_development() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(one for name in IN_THE_IMAGE for one in optional[name])]
    locked, more = pinned("requirements.lock"), pinned("requirements-dev.lock")

    assert names(wanted) <= locked
    assert not locked & more
    assert names(optional["dev"]) <= locked | more
    assert locked.isdisjoint({"mypy", "ruff", "playwright", "hypothesis", "pytest-xdist"})  # pyserini needs pytest
    assert "requirements-dev.lock" not in (ROOT / "Dockerfile").read_text()


IN_THE_IMAGE = ("cpu", "bm25s", "fetch", "sentence-transformers", "tagger")


def pinned(file: str) -> set[str]:
    """The names of the packages in a lock file, in lower case with dashes."""
    return names([line for line in (ROOT / file).read_text().splitlines() if "==" in line])


def names(requirements: list[str]) -> set[str]:
    """The names in requirements, in lower case with dashes."""
    return {re.sub(r"[._]", "-", re.split(r"[\[<>=! ;]", line)[0].lower()) for line in requirements}
