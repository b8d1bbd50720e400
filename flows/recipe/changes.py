"""Changes of a recipe on the command line: `--set section.key=value`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flows.recipe.problems import hint
from flows.recipe.schema import Recipe
from flows.recipe.schema_keys import has_section, known_keys
from storage.errors import UserError, quoted
from storage.formats.yaml_files import Invalid, parse_yaml
from storage.settings import Settings

CHANGE_SHOWN = 200  # characters of a change that an error shows
LABELLED = re.compile(r"(queries|queries\.also\.[0-9]+)\.(model|file|train)")

ShapeOf = Callable[[dict[str, Any], Path], type[Settings]]
"""Returns the class of a file's settings, which may depend on the content."""


def apply_changes(changes: Sequence[str], content: dict[str, Any], path: Path, shape_of: ShapeOf) -> None:
    """Put every change into the content of a file. Raises UserError for one that does not fit it.

    Where a query generator's model is changed and its label is not, the label of the file is removed: it names another
    model. The schema then labels the queries by the new model.
    """
    labels = {name for change in changes if (name := change.partition("=")[0]).endswith(".generator")}
    for change in changes:
        name, section, value = _apply(change, content, path, shape_of)
        if (match := LABELLED.fullmatch(name)) and value is not None and f"{match[1]}.generator" not in labels:
            section.pop("generator", None)


def _apply(change: str, content: dict[str, Any], path: Path, shape_of: ShapeOf) -> tuple[str, Any, Any]:
    """Put `section.key=value` into the content; the value is read as YAML, items of lists are counted from 0.

    A section of the schema is created if the file lacks it or sets it to null or to a single value. Returns the
    change's name, its section and the value.
    """
    name, equals, text = change.partition("=")
    shown = f"--set {change}" if len(change) <= CHANGE_SHOWN else f"--set {change[:CHANGE_SHOWN]}…"
    if not equals or not name:
        raise UserError(f"{shown}: expected section.key=value")
    *sections, key = name.split(".")
    inner: Any = content
    for depth, section in enumerate(sections):
        if isinstance(inner, list) and (index := _index(section, inner)) is not None:
            inner = inner[index]
        elif isinstance(inner, dict) and isinstance(inner.get(section), (dict, list)):
            inner = inner[section]
        elif isinstance(inner, dict) and has_section(sections[: depth + 1], shape_of(content, path)):
            inner[section] = {}
            inner = inner[section]
        else:
            known = {*inner, *known_keys(sections[:depth], shape_of(content, path))} if isinstance(inner, dict) else ()
            problem = f"{shown}: {path} has no section {quoted(section)}"
            location = ".".join(sections[: depth + 1])
            raise UserError(f"{problem}; set {location} itself" if section in known else problem + hint(section, known))
    try:
        value = parse_yaml(text)
    except Invalid as error:
        raise UserError(f"{shown}: {quoted(text)} is not a YAML value: {error}") from None
    if isinstance(inner, dict):
        inner[key] = value
    elif (index := _index(key, inner)) is not None:
        inner[index] = value
    else:
        raise UserError(f"{shown}: expected a number below {len(inner)}, found {quoted(key)}")
    return name, inner, value


def _index(text: str, values: list[Any]) -> int | None:
    """Return the index that digits name, from 0; None for another text or beyond the end of the list."""
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) >= len(values):
        return None
    return int(text)


def given_collection(recipe: Recipe[Any], changes: Sequence[str]) -> str | None:
    """Return the file or folder name of the collection that the user gave in place of the recipe's; None for its own.

    A recipe's title and description are of its own collection. A URL's parameters may be secret and are left out.
    """
    is_given = any(change.partition("=")[0] == "dataset.path" for change in changes)
    if not is_given or not recipe.dataset.path:
        return None
    scheme, separator, address = recipe.dataset.path.partition("://")
    return Path(address.rpartition("@")[2].partition("?")[0] if separator else scheme).name
