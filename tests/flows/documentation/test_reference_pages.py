"""The pages that are generated from code contain all of it."""

import re

import pytest
import typer.main
import yaml
from mkdocs.config import load_config
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import Files

import pretrieve
from flows.cli import app
from flows.documentation.command_line import command_line_page
from flows.documentation.public_names import REFERENCE, undocumented
from flows.documentation.recipe_schema import recipe_page
from flows.documentation.site import on_files
from flows.documentation.table_schemas import tables_page
from flows.recipe.shipped import PROJECT, shipped_recipes
from storage.tables import Passages

INTERNAL = {
    "PRETRIEVE_PARENT", "PRETRIEVE_MEETING", "PRETRIEVE_LOGIN", "PRETRIEVE_CPU_RUNS", "PRETRIEVE_EMBEDDED_SERVER"
}  # fmt: skip
"""Set by one process of pretrieve for another, or described in .env.example."""


@pytest.fixture(scope="module")
def recipe_reference() -> str:
    return recipe_page()


def keys_of(value: object) -> set[str]:
    if isinstance(value, dict):
        return set(value) | {key for inner in value.values() for key in keys_of(inner)}
    return {key for inner in value for key in keys_of(inner)} if isinstance(value, list) else set()


def test_every_command_and_option_is_on_the_page() -> None:
    page = command_line_page()

    waiting = [("pretrieve", typer.main.get_command(app))]
    while waiting:
        path, command = waiting.pop()
        if hasattr(command, "commands"):
            waiting += [(f"{path} {name}", inner) for name, inner in command.commands.items()]
            continue
        section = page.split(f"### {path}\n", 1)[1].split("\n### ", 1)[0]
        options = [option for item in command.params for option in item.opts if option.startswith("--")]
        assert [option for option in options if f"`{option}" not in section and option != "--help"] == [], path


@pytest.mark.parametrize("name", ["quickstart", "small/came", "cpdae_few_shot", "dup_mae"])
def test_every_key_of_a_recipe_is_on_the_page(name: str, recipe_reference: str) -> None:
    content = yaml.safe_load(shipped_recipes()[name].read_text())
    del content["reported"]  # the keys are runs and metrics

    assert {key for key in keys_of(content) if f"| `{key}` |" not in recipe_reference} == set()


def test_the_recipe_page_has_values_bounds_defaults_and_meanings(recipe_reference: str) -> None:
    dataset = recipe_reference.split("## Dataset\n", 1)[1].split("\n## ", 1)[0]

    assert "At `dataset`." in dataset
    assert "| `fraction` | number > 0 < 1 or null | required | Keep this fraction of the documents" in dataset
    assert "| `complete` | true or false | `false` |" in dataset
    assert "| `decoder` | `ar` or `ae` | required |" in recipe_reference


def test_every_section_that_the_recipe_page_links_is_on_it(recipe_reference: str) -> None:
    headings = {heading.lower() for heading in re.findall(r"^#+ (.*)$", recipe_reference, re.MULTILINE)}

    assert set(re.findall(r"\]\(#([^)]+)\)", recipe_reference)) <= headings


def test_the_table_page_has_columns_types_and_nulls() -> None:
    page = tables_page()
    passages = page.split("## Passages\n", 1)[1].split("\n## ", 1)[0]

    assert Passages.schema is not None
    assert re.findall(r"^\| `([^`]+)` \|", passages, re.MULTILINE) == Passages.schema.names
    assert "| `num_tokens` | int32 |  |" in passages
    assert "list of string" in page


def test_every_public_name_is_documented() -> None:
    page = (PROJECT / "docs" / REFERENCE).read_text()

    assert re.findall(r"^::: pretrieve\.(\w+)$", page, re.MULTILINE) != []
    assert undocumented(page) == []


def test_a_public_name_without_documentation_fails_the_site(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (PROJECT / "docs" / REFERENCE).read_text()
    monkeypatch.setattr(pretrieve, "bare", lambda: None, raising=False)
    monkeypatch.setattr(pretrieve, "__all__", [*pretrieve.__all__, "bare"])
    problems = ["pretrieve.bare is not on the page", "pretrieve.bare has no docstring"]

    assert undocumented(page) == problems
    with pytest.raises(PluginError, match=r"reference/python.md: pretrieve.bare is not on the page; "):
        on_files(Files([]), load_config(str(PROJECT / "mkdocs.yml")))


def test_every_environment_variable_is_described() -> None:
    sources = [file for folder in ("flows", "tasks", "storage", "models") for file in (PROJECT / folder).rglob("*.py")]
    used = {name for file in sources for name in re.findall(r"\bPRETRIEVE_[A-Z_]*[A-Z]\b", file.read_text())}
    described = (PROJECT / "docs" / "reference" / "environment.md").read_text()

    assert {name for name in used if f"`{name}`" not in described} == INTERNAL & used
