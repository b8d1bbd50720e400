"""Reading a recipe: finding its file, changing values, and saying in one line what is wrong with it."""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin

from pydantic import ValidationError

from flows.recipe.schema import Recipe
from flows.recipe.shipped import PROJECT, find_recipe
from storage.errors import UserError, quoted
from storage.formats.yaml_files import Invalid, parse_yaml, read_yaml
from storage.settings import Settings

PAPERS = PROJECT / "models" / "papers"
S = TypeVar("S", bound=Settings)

UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")  # of pydantic models, and of dataclasses


def load_recipe(name: str, changes: Sequence[str] = ()) -> tuple[Recipe[Any], Path]:
    """The recipe at a path, or shipped under a name or stem, after `section.key=value` changes; and where it lies."""
    path = find_recipe(name)
    return read_settings(path, changes, _shape), path


def read_settings(path: Path, changes: Sequence[str], shape_of: Callable[[dict[str, Any], Path], type[S]]) -> S:
    """What a YAML file says after `section.key=value` changes, in a shape that may depend on what it says."""
    value = _parse(path)
    for change in changes:
        _apply(change, value, path)
    shape = shape_of(value, path)
    _seed_sections(value, shape)
    try:
        return shape.model_validate(value)
    except ValidationError as error:
        raise UserError(f"{path}: {_in_one_line(error, shape)}") from None


def _shape(value: dict[str, Any], path: Path) -> type[Recipe[Any]]:
    """The recipe's shape, with the settings of the paper that `pretrain.paper` names."""
    section = value.get("pretrain", {})
    if section is None:
        return cast(type[Recipe[Any]], Recipe.__class_getitem__(Settings))
    paper = section.get("paper") if isinstance(section, dict) else None
    papers = sorted(file.stem for file in PAPERS.glob("[!_]*.py"))
    if paper not in papers:
        raise UserError(f"{path}: pretrain.paper: expected one of {', '.join(papers)}, found {quoted(paper)}")
    settings = import_module(f"models.papers.{paper}").Settings
    return cast(type[Recipe[Any]], Recipe.__class_getitem__(settings))


def _parse(path: Path) -> dict[str, Any]:
    value = read_yaml(path)
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected sections of settings, found {type(value).__name__}")
    return value


def _apply(change: str, value: dict[str, Any], path: Path) -> None:
    """Put `section.key=value` into the recipe; the value is read as YAML, rounds are counted from 0."""
    where, equals, text = change.partition("=")
    given = f"--set {change}" if len(change) <= 200 else f"--set {change[:200]}…"
    if not equals or not where:
        raise UserError(f"{given}: expected section.key=value")
    *sections, key = where.split(".")
    inner: Any = value
    for section in sections:
        if isinstance(inner, list) and (place := _place(section, inner)) is not None:
            inner = inner[place]
        elif isinstance(inner, dict) and isinstance(inner.get(section), (dict, list)):
            inner = inner[section]
        elif isinstance(inner, dict) and section == "execution":
            inner = inner.setdefault(section, {})
        else:
            raise UserError(f"{given}: {path} has no section {quoted(section)}{_nearest(section, inner)}")
    try:
        parsed = parse_yaml(text)
    except Invalid as error:
        raise UserError(f"{given}: {quoted(text)} is not a YAML value: {error}") from None
    if isinstance(inner, list):
        if (place := _place(key, inner)) is None:
            raise UserError(f"{given}: expected a number below {len(inner)} where {quoted(key)} stands")
        inner[place] = parsed
    else:
        inner[key] = parsed


def _place(text: str, values: list[Any]) -> int | None:
    """The place in a list that digits name, from 0; None for another text or where the list ends before it."""
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) >= len(values):
        return None
    return int(text)


def _seed_sections(value: dict[str, Any], model: type[Settings]) -> None:
    """Give every section that has a seed and names none the recipe's."""

    def visit(section: Any, kind: Any) -> None:
        if isinstance(section, list):
            for each in section:
                visit(each, kind)
        elif isinstance(section, dict):
            kinds = list(_models(kind))
            fitting = [inner for inner in kinds if section.keys() <= _fields(inner).keys()]  # of a union, the one meant
            for inner in fitting or kinds:
                if "seed" in _fields(inner) and "seed" in value:
                    section.setdefault("seed", value["seed"])
                for name, annotation in _fields(inner).items():
                    visit(section.get(name), annotation)

    visit(value, model)


def _models(kind: Any) -> Iterator[type[Any]]:
    """The settings classes in an annotation such as `list[Round]` or `Training | None`."""
    if isinstance(kind, type) and (issubclass(kind, Settings) or dataclasses.is_dataclass(kind)):
        yield kind
    elif get_origin(kind) in (Union, types.UnionType, list, Annotated):
        for inner in get_args(kind):
            yield from _models(inner)


def _fields(model: type[Any]) -> dict[str, Any]:
    """Key as YAML spells it, to its annotation."""
    if issubclass(model, Settings):
        return {field.alias or name: field.annotation for name, field in model.model_fields.items()}
    return {field.name: field.type for field in dataclasses.fields(model)}


def _in_one_line(error: ValidationError, shape: type[Settings]) -> str:
    problems = sorted(error.errors(), key=lambda problem: problem["type"] not in UNKNOWN)  # a typo explains others
    first = problems[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] in UNKNOWN:
        message = f"{where}: unknown key{_nearest(str(first['loc'][-1]), _known_keys(first['loc'][:-1], shape))}"
    elif first["type"] == "missing":
        message = f"{where}: this key is missing"
    else:
        what = first["msg"].removeprefix("Value error, ")
        given = first["input"]
        shown = "" if isinstance(given, (dict, list, Settings)) else f", found {quoted(given)}"
        if isinstance(given, str) and first["type"] == "float_type":
            shown += " (YAML reads 1e-4 as text: write 1.0e-4)"
        message = f"{where}: {what}{shown}" if where else what
    return message + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")


def _known_keys(location: Sequence[int | str], shape: type[Settings]) -> list[str]:
    kinds: list[type[Any]] = [shape]
    for part in location:
        if isinstance(part, str):
            found = [_fields(kind)[part] for kind in kinds if part in _fields(kind)]
            kinds = [model for annotation in found for model in _models(annotation)] or kinds
    return [name for kind in kinds for name in _fields(kind)]


def _nearest(given: str, known: Any) -> str:
    names = [str(name) for name in known] if isinstance(known, (list, dict)) else []
    near = difflib.get_close_matches(given, names, 1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; known are {', '.join(names)}" if names else ""
