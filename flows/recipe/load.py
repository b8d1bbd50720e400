"""Reading a recipe: its YAML, the user's changes to it, and the check of both against the schema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from flows.recipe.changes import apply_changes
from flows.recipe.few_steps import smoke_test
from flows.recipe.problems import in_one_line
from flows.recipe.schema import Recipe
from flows.recipe.shipped import PROJECT, find_recipe
from storage.errors import UserError, quoted
from storage.formats.yaml_files import read_yaml
from storage.settings import Settings

PAPERS = PROJECT / "models" / "papers"
S = TypeVar("S", bound=Settings)


def load_recipe(name: str, changes: Sequence[str] = ()) -> tuple[Recipe[Any], Path]:
    """Return a recipe after `section.key=value` changes, and its file.

    `name` is a path, or the name or stem of a shipped recipe.
    """
    path = find_recipe(name)
    recipe = read_settings(path, changes, _shape)
    if recipe.fast:  # the user's changes are put on top of those of a smoke test
        recipe = read_settings(path, [*changes, *smoke_test(recipe, changes), *changes], _shape)
    return recipe, path


def read_settings(path: Path, changes: Sequence[str], shape_of: Callable[[dict[str, Any], Path], type[S]]) -> S:
    """Return the settings of a YAML file after `section.key=value` changes.

    `shape_of` returns their class, which may depend on the file's content. Sections without a seed take the file's.
    """
    content = _parse(path)
    apply_changes(changes, content, path, shape_of)
    shape = shape_of(content, path)
    try:
        return shape.model_validate(content, context={"seed": content.get("seed")})
    except ValidationError as error:
        raise UserError(f"{path}: {in_one_line(error, shape)}") from None


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
