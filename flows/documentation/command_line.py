"""The reference of the command line, from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator

import typer.main
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from flows.documentation.markdown import table

INTRODUCTION = """# Command line

Every command, with its arguments and options. `pretrieve COMMAND --help` prints the same. [Exit codes and environment
variables](environment.md) are on their own page.
"""


def command_line_page() -> str:
    """Return the page of all commands, in the groups and the order in which `pretrieve --help` lists them."""
    from flows.cli import app

    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    sections: dict[str, list[str]] = {}
    for path, command, panel in _commands(group, "pretrieve", "Run"):
        sections.setdefault(panel, []).append(_section(path, command))
    return "\n".join([INTRODUCTION, *(line for title, parts in sections.items() for line in (f"## {title}\n", *parts))])


def _commands(group: TyperGroup, path: str, panel: str) -> Iterator[tuple[str, TyperCommand, str]]:
    """Yield the commands of a group and of the groups in it: complete name, command, and the heading of its group."""
    for name, command in group.commands.items():
        own = getattr(command, "rich_help_panel", None)
        heading = own if isinstance(own, str) else panel
        if isinstance(command, TyperGroup):
            yield from _commands(command, f"{path} {name}", heading)
        elif isinstance(command, TyperCommand) and not command.hidden:
            yield f"{path} {name}", command, heading


def _section(path: str, command: TyperCommand) -> str:
    usage = command.get_usage(command.make_context(path, [], resilient_parsing=True)).removeprefix("Usage: ")
    parameters = [item for item in command.params if isinstance(item, TyperArgument | TyperOption)]
    rows = [(f"`{_name(item)}`", _default(item), _meaning(item)) for item in parameters if item.name != "help"]
    parts = [f"### {path}\n", f"```text\n{usage}\n```\n", f"{command.help or ''}\n"]
    if command.epilog:
        parts.append(f"```text\n{command.epilog.removeprefix('Example: ')}\n```\n")
    return "\n".join([*parts, table(("argument or option", "default", "meaning"), rows) if rows else ""])


def _name(parameter: TyperArgument | TyperOption) -> str:
    if isinstance(parameter, TyperArgument):
        return parameter.metavar or str(parameter.name).upper()
    flags = ", ".join([*parameter.opts, *parameter.secondary_opts])
    return flags if parameter.is_flag else f"{flags} {parameter.metavar or str(parameter.name).upper()}"


def _default(parameter: TyperArgument | TyperOption) -> str:
    if parameter.required:
        return "required"
    return "" if parameter.default in (None, False) or callable(parameter.default) else f"`{parameter.default}`"


def _meaning(parameter: TyperArgument | TyperOption) -> str:
    variable = f" Also the environment variable `{parameter.envvar}`." if parameter.envvar else ""
    return f"{parameter.help or ''}{variable}"
