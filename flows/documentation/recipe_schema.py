"""The reference of recipes: every section and key, from the settings classes and the docstrings below their fields."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import textwrap
import types
from collections.abc import Iterator
from importlib import import_module
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import annotated_types
from pydantic_core import PydanticUndefined

from flows.documentation.markdown import table
from flows.recipe.load import PAPERS
from flows.recipe.schema import Recipe
from storage.settings import Settings

INTRODUCTION = """# Recipe schema

Every section and key of a recipe. A recipe is YAML, complete and without inheritance: a key without a default must be
given, an unknown key is refused. `--set SECTION.KEY=VALUE` overrides a key for one run. The shipped recipes in
`configs/` show every key in use, with the source of each value that a paper prints.
"""
OBJECTIVES = """## Settings of the papers

`pretrain.objective` has the settings of the paper that `pretrain.paper` names.
"""
WORDS = {int: "whole number", float: "number", str: "text", bool: "true or false", type(None): "null", Any: "any value"}
BOUNDS = {
    annotated_types.Gt: ("gt", ">"), annotated_types.Ge: ("ge", "≥"), annotated_types.Lt: ("lt", "<"),
    annotated_types.Le: ("le", "≤"),
}  # fmt: skip


def recipe_page() -> str:
    """Return the page of all sections of a recipe, each once, in the order in which a recipe first has them."""
    parts = [INTRODUCTION]
    for section, paths in _sections_of(Recipe).items():
        parts.append(_section(section, f"## {_title(section)}", paths))
    parts.append(OBJECTIVES)
    for name, settings in _objectives():
        parts.append(_section(settings, f"### {name}", [f"pretrain.objective with paper: {name}"]))
    return "\n".join(parts)


def _sections_of(recipe: type[Any]) -> dict[type[Any], list[str]]:
    """Return every section class of a recipe, with the paths at which it may be."""
    sections: dict[type[Any], list[str]] = {recipe: []}
    waiting: list[tuple[type[Any], str]] = [(recipe, "")]
    while waiting:
        section, path = waiting.pop(0)
        for name, annotation, *_ in _fields(section):
            inner_path = f"{path}.{name}" if path else name
            for inner in _classes(annotation):
                if inner in sections:
                    sections[inner].append(inner_path)
                else:
                    sections[inner] = [inner_path]
                    waiting.append((inner, inner_path))
    return sections


def _objectives() -> Iterator[tuple[str, type[Any]]]:
    for file in sorted(PAPERS.glob("[!_]*.py")):
        module = import_module(f"models.papers.{file.stem}")
        if hasattr(module, "Settings") and hasattr(module, "Pretraining"):
            yield file.stem, module.Settings


def _section(section: type[Any], heading: str, paths: list[str]) -> str:
    rows = [
        (f"`{name}`", _type(annotation, bounds), default, _docstrings(section).get(name, ""))
        for name, annotation, bounds, default in _fields(section)
    ]
    where = f"At {', '.join(f'`{path}`' for path in dict.fromkeys(paths))}.\n" if paths else ""
    text = inspect.getdoc(section) or ""
    generated = text.startswith(f"{section.__name__}(")  # of a dataclass without a docstring
    described = "" if generated else f"{text}\n"
    return "\n".join([f"{heading}\n", where, described, table(("key", "value", "default", "meaning"), rows)])


def _fields(section: type[Any]) -> Iterator[tuple[str, Any, list[Any], str]]:
    """Yield name, annotation, bounds and default of each key, as YAML spells it."""
    if dataclasses.is_dataclass(section):
        hints = get_type_hints(section, include_extras=True)
        for item in dataclasses.fields(section):
            yield item.name, hints[item.name], [], _shown(item.default)
        return
    for name, info in section.model_fields.items():
        default = "required" if info.is_required() else _shown(info.get_default(call_default_factory=True))
        if name == "seed" and section is not Recipe:
            default = "the recipe's"
        yield info.alias or name, info.annotation, list(info.metadata), default


def _shown(default: Any) -> str:
    if default is PydanticUndefined or default is dataclasses.MISSING:
        return "required"
    if default is None or isinstance(default, bool | int | float | str | list | tuple):
        return f"`{json.dumps(default)}`"
    return "that section's defaults" if isinstance(default, Settings) else str(default)


def _classes(annotation: Any) -> Iterator[type[Any]]:
    """Yield the settings classes in an annotation such as `list[Round]` or `Training | None`."""
    if isinstance(annotation, type) and (
        (issubclass(annotation, Settings) and annotation is not Settings) or dataclasses.is_dataclass(annotation)
    ):
        yield annotation
    for inner in get_args(annotation):
        if get_origin(annotation) is not Literal:
            yield from _classes(inner)


def _type(annotation: Any, bounds: list[Any]) -> str:
    """Return an annotation in words, with its bounds."""
    limits = [f"{sign} {getattr(bound, name)}" for kind, (name, sign) in BOUNDS.items()
              for bound in bounds if isinstance(bound, kind)]  # fmt: skip
    return " ".join([_words(annotation), *limits])


def _words(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(inner[0], [bound for item in inner[1:] for bound in getattr(item, "metadata", [item])])
    if origin is Literal:
        return " or ".join(f"`{json.dumps(value)}`" if not isinstance(value, str) else f"`{value}`" for value in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_words(member) for member in inner))
    if origin in (list, tuple):
        return f"list of {_words(inner[0])}" if inner else "list"
    if origin is dict:
        return f"mapping from {_words(inner[0])} to {_words(inner[1])}"
    if isinstance(annotation, TypeVar):
        return "the paper's settings"
    if any(_classes(annotation)):
        return f"[{_title(annotation)}](#{_title(annotation).lower()})"
    return WORDS.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _title(section: type[Any]) -> str:
    """Return a section's name: its class, or its module where several modules have a class of that name."""
    section = getattr(section, "__pydantic_generic_metadata__", {}).get("origin") or section
    return section.__module__.rsplit(".", 1)[-1] if section.__name__ == "Settings" else section.__name__


def _docstrings(section: type[Any]) -> dict[str, str]:
    """Return the text below each field of a class and of those that it extends; Python itself does not keep it."""
    texts: dict[str, str] = {}
    for owner in reversed(section.__mro__[:-1]):
        if not owner.__module__.startswith(("flows", "tasks", "models", "storage")) or "[" in owner.__name__:
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            named = isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            if named and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                texts[field.target.id] = str(text.value.value)  # type: ignore[attr-defined]
    return texts
