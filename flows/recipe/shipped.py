"""The recipes that come with the project: their names, their files, and how a user's name becomes a file."""

from __future__ import annotations

import difflib
from pathlib import Path

from storage.errors import UserError

PROJECT = Path(__file__).resolve().parents[2]
SHIPPED = PROJECT / "configs"
SUITES = SHIPPED / "suites"
"""Lists of collections (`flows.recipe.suite_schema`), not recipes."""
CLAIMS = SHIPPED / "study" / "claims.yaml"
"""The claims that the study's recipes test (`flows.study.claims`), not a recipe."""
GPUS = SHIPPED / "hardware" / "gpus.yaml"
"""Figures of GPUs (`flows.plan.gpus`), not a recipe."""
NEAREST_SHOWN = 3


def shipped_recipes() -> dict[str, Path]:
    """Return the file of each shipped recipe by its name, such as `small/beir`."""
    files = [
        file for file in sorted(SHIPPED.rglob("*.yaml")) if SUITES not in file.parents and file not in (CLAIMS, GPUS)
    ]
    return {file.relative_to(SHIPPED).with_suffix("").as_posix(): file for file in files}


def find_recipe(name: str) -> Path:
    """Return the file of a recipe given by path, or by the name or the file's stem of a shipped one."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if path.is_file():
            return path
        raise UserError(f"{path}: there is no such recipe file")
    shipped = shipped_recipes()
    if name in shipped:
        return shipped[name]
    same_stem = [file for file in shipped.values() if file.stem == name]
    if len(same_stem) == 1:
        return same_stem[0]
    by_stem = {file.stem: shipped_name for shipped_name, file in reversed(shipped.items())}
    matches = difflib.get_close_matches(name, {**by_stem, **{key: key for key in shipped}}, NEAREST_SHOWN)
    nearest = " or ".join(dict.fromkeys(match if match in shipped else by_stem[match] for match in matches))
    hint = f"did you mean {nearest}? " if nearest else ""
    raise UserError(f"{name}: no shipped recipe has this name; {hint}`pretrieve recipes` lists them")


def recipe_name(path: Path, *, fast: bool = False) -> str:
    """Return the name of a recipe's runs and reports: as `small/beir` where it is shipped, else its file's stem.

    A smoke test has a name of its own, `small/beir-fast`, so that its report replaces no other.
    """
    shipped = {file.resolve(): name for name, file in shipped_recipes().items()}
    name = shipped.get(path.resolve(), path.stem)
    if name.startswith("."):  # a report below reports/.. would be written into the store itself
        raise UserError(f"{path}: a recipe's file cannot begin with a dot, since reports take its name; rename it")
    return f"{name}-fast" if fast else name
