"""The command line explains itself: summaries, examples, version, completion and the list of recipes."""

from __future__ import annotations

import re
import shlex
from importlib.metadata import version
from pathlib import Path

import pytest
import typer.core
import typer.main
from typer.testing import CliRunner

from flows.cli import app
from flows.recipe.shipped import shipped_recipes
from storage.store.sources import PROJECT_DATA
from tests.warm import run

GROUP = typer.main.get_command(app)
ALL_COMMANDS = {
    " ".join((*path, name)): command
    for path, group in [((), GROUP), *(((name,), GROUP.commands[name]) for name in ("queries", "study"))]
    for name, command in group.commands.items()
}


def help_text(*path: str) -> list[str]:
    """The lines of a group's help in a terminal of 80 columns."""
    done = CliRunner().invoke(app, [*path, "--help"], prog_name="pretrieve", terminal_width=80)
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


@pytest.mark.parametrize("group", [(), ("queries",), ("study",)], ids=lambda path: " ".join(path) or "pretrieve")
def test_no_summary_is_cut_at_80_columns(group: tuple[str, ...]) -> None:
    lines = help_text(*group)

    commands = {name: command for name, command in ALL_COMMANDS.items() if tuple(name.split()[:-1]) == group}
    assert commands
    for name, command in commands.items():
        summary = command.help.splitlines()[0]
        assert any(re.fullmatch(rf"│ {name.split()[-1]} +{re.escape(summary)} +│", line) for line in lines), name
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", ALL_COMMANDS)
def test_each_command_has_an_example_that_parses(name: str) -> None:
    command = ALL_COMMANDS[name]

    program, *words = shlex.split((command.epilog or "").removeprefix("Example: "))
    assert program == "pretrieve"
    if isinstance(command, typer.core.TyperGroup):
        assert " ".join(words[:2]) in ALL_COMMANDS
    else:
        assert words[: len(name.split())] == name.split()
        with command.make_context(name, words[len(name.split()) :]):
            pass


def test_the_version_is_printed() -> None:
    done = CliRunner().invoke(app, ["--version"])

    assert (done.exit_code, done.output) == (0, f"pretrieve {version('pretrieve')}\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_recipes_are_completed_by_the_shell(shell: str) -> None:
    request = {
        "COMP_WORDS": "pretrieve plan small/co",
        "COMP_CWORD": "2",
        "_TYPER_COMPLETE_ARGS": "pretrieve plan small/co",
    }

    done = CliRunner().invoke(
        app,
        [],
        prog_name="pretrieve",
        env={**request, "_PRETRIEVE_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    )

    assert [name for name in ("small/co_condenser", "small/condenser", "small/cot_mae") if name in done.output] == [
        "small/co_condenser",
        "small/condenser",
        "small/cot_mae",
    ]


def test_shipped_recipes_are_listed_with_the_data_that_they_lack(tmp_path: Path) -> None:
    (tmp_path / "squad_wikipedia").mkdir()  # the working folder is searched first

    done = run(tmp_path, "recipes")

    assert done.returncode == 0, done.stderr
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.startswith("  ")}
    assert set(lines) == set(shipped_recipes())
    assert lines["came"].endswith("(not here: msmarco)") or (PROJECT_DATA / "msmarco").exists()
    assert "not here" not in lines["study/came"]
    assert lines["small/beir"].endswith("(not here: dataset.path)")
    assert lines["ict"].split("  ")[-1].lstrip().startswith("ICT (Chang et al. 2020), the inverse cloze task")
