"""Reading a recipe: its YAML, the user's changes to it, and one line that says what is wrong with it."""

from __future__ import annotations

import dataclasses
import re
import types
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin

from pydantic import ValidationError

from flows.recipe.schema import Recipe
from flows.recipe.shipped import PROJECT, find_recipe
from storage.errors import UserError, quoted, suggestion
from storage.formats.yaml_files import Invalid, parse_yaml, read_yaml
from storage.settings import Settings

PAPERS = PROJECT / "models" / "papers"
S = TypeVar("S", bound=Settings)

UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")  # of pydantic models, and of dataclasses
CHANGE_SHOWN = 200  # characters of a change that an error shows


def load_recipe(name: str, changes: Sequence[str] = ()) -> tuple[Recipe[Any], Path]:
    """Return a recipe after `section.key=value` changes, and its file.

    `name` is a path, or the name or stem of a shipped recipe.
    """
    path = find_recipe(name)
    return read_settings(path, changes, _shape), path


def read_settings(path: Path, changes: Sequence[str], shape_of: Callable[[dict[str, Any], Path], type[S]]) -> S:
    """Return the settings of a YAML file after `section.key=value` changes.

    `shape_of` returns their class, which may depend on the file's content. Sections without a seed take the file's.
    """
    content = _parse(path)
    for change in changes:
        _apply(change, content, path)
    shape = shape_of(content, path)
    try:
        return shape.model_validate(content, context={"seed": content.get("seed")})
    except ValidationError as error:
        raise UserError(f"{path}: {_in_one_line(error, shape)}") from None


def _shape(content: dict[str, Any], path: Path) -> type[Recipe[Any]]:
    """Return the recipe's class, with the settings of the paper that `pretrain.paper` names."""
    section = content.get("pretrain", {})
    if section is None:
        return cast(type[Recipe[Any]], Recipe.__class_getitem__(Settings))
    paper = section.get("paper") if isinstance(section, dict) else None
    papers = sorted(file.stem for file in PAPERS.glob("[!_]*.py"))
    if paper not in papers:
        raise UserError(f"{path}: pretrain.paper: expected one of {', '.join(papers)}, found {quoted(paper)}")
    settings = import_module(f"models.papers.{paper}").Settings
    return cast(type[Recipe[Any]], Recipe.__class_getitem__(settings))


def _parse(path: Path) -> dict[str, Any]:
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected sections of settings, found {type(content).__name__}")
    return content


def _apply(change: str, content: dict[str, Any], path: Path) -> None:
    """Put `section.key=value` into the content; the value is read as YAML, items of lists are counted from 0."""
    name, equals, text = change.partition("=")
    given = f"--set {change}" if len(change) <= CHANGE_SHOWN else f"--set {change[:CHANGE_SHOWN]}…"
    if not equals or not name:
        raise UserError(f"{given}: expected section.key=value")
    *sections, key = name.split(".")
    inner: Any = content
    for section in sections:
        if isinstance(inner, list) and (index := _index(section, inner)) is not None:
            inner = inner[index]
        elif isinstance(inner, dict) and isinstance(inner.get(section), (dict, list)):
            inner = inner[section]
        elif isinstance(inner, dict) and section == "execution":
            inner = inner.setdefault(section, {})
        else:
            known = inner if isinstance(inner, dict) else ()
            raise UserError(f"{given}: {path} has no section {quoted(section)}{_hint(section, known)}")
    try:
        value = parse_yaml(text)
    except Invalid as error:
        raise UserError(f"{given}: {quoted(text)} is not a YAML value: {error}") from None
    if isinstance(inner, dict):
        inner[key] = value
    elif (index := _index(key, inner)) is not None:
        inner[index] = value
    else:
        raise UserError(f"{given}: expected a number below {len(inner)}, found {quoted(key)}")


def _index(text: str, values: list[Any]) -> int | None:
    """Return the index that digits name, from 0; None for another text or beyond the end of the list."""
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) >= len(values):
        return None
    return int(text)


def _in_one_line(error: ValidationError, shape: type[Settings]) -> str:
    """Return the first problem of a recipe; an unknown key comes first, since a typo explains a missing key."""
    problems = sorted(error.errors(), key=lambda problem: problem["type"] not in UNKNOWN)
    first = problems[0]
    location = ".".join(str(part) for part in first["loc"])
    if first["type"] in UNKNOWN:
        message = f"{location}: unknown key{_hint(str(first['loc'][-1]), _known_keys(first['loc'][:-1], shape))}"
    elif first["type"] == "missing":
        message = f"{location}: this key is missing"
    else:
        expected = first["msg"].removeprefix("Value error, ")
        given = first["input"]
        shown = "" if isinstance(given, (dict, list, Settings)) else f", found {quoted(given)}"
        if isinstance(given, str) and first["type"] == "float_type":
            shown += " (YAML reads 1e-4 as text: write 1.0e-4)"
        message = f"{location}: {expected}{shown}" if location else expected
    return message + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")


def _known_keys(location: Sequence[int | str], shape: type[Settings]) -> list[str]:
    """Return the keys of the section at a location, or those of all sections that may be there."""
    sections: list[type[Any]] = [shape]
    for (
        part
    ) in location:  # numbers of list items, and the names that pydantic gives the members of a union, are skipped
        annotations = [_fields(section)[part] for section in sections if part in _fields(section)]
        sections = [section for annotation in annotations for section in _sections(annotation)] or sections
    return [name for section in sections for name in _fields(section)]


def _sections(annotation: Any) -> Iterator[type[Any]]:
    """Yield the settings classes in an annotation such as `list[Round]` or `Training | None`."""
    if isinstance(annotation, type) and (issubclass(annotation, Settings) or dataclasses.is_dataclass(annotation)):
        yield annotation
    elif get_origin(annotation) in (Union, types.UnionType, list, Annotated):
        for inner in get_args(annotation):
            yield from _sections(inner)


def _fields(section: type[Any]) -> dict[Any, Any]:
    """Return the annotation of each key, as YAML spells it."""
    if issubclass(section, Settings):
        return {field.alias or name: field.annotation for name, field in section.model_fields.items()}
    return {field.name: field.type for field in dataclasses.fields(section)}


def _hint(given: str, known: Sequence[str] | dict[str, Any]) -> str:
    names = [str(name) for name in known]
    return f"; {suggestion(given, names, cutoff=0.5)}" if names else ""
