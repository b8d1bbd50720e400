"""A matrix of runs: recipes with several values of some settings, each with several seeds.

A row of the grid is a variant: a recipe, and one value of each varied setting. A column is a seed.

A study (`flows/study`) takes its runs from claims instead of a grid, and plans and attempts them as a matrix does
(`planned_run.py`, `attempts.py`).
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from flows.recipe.shipped import find_recipe, recipe_name
from storage.errors import UserError

MAX_CELLS = 1_000
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
LONGEST_NAME, DIGITS = 60, 8
OPENING, CLOSING, QUOTES = "[{(", "]})", "'\""


@dataclass(frozen=True)
class Variant:
    """A row of the grid."""

    recipe: str
    """The recipe's name or path, as the user wrote it."""
    varied: tuple[str, ...]
    """A change, as for `--set`, for each varied setting."""

    @property
    def title(self) -> str:
        """The recipe's name, which is the same however its path is given."""
        return recipe_name(find_recipe(self.recipe))

    @property
    def words(self) -> str:
        """The recipe's name and the varied values."""
        return " ".join([self.title, *self.varied])


@dataclass(frozen=True)
class Cell:
    """A run of the matrix: a variant with a seed."""

    variant: Variant
    seed: int
    common: tuple[str, ...]
    """The changes of all runs."""

    @property
    def recipe(self) -> str:
        """The recipe's name or path, as the user wrote it."""
        return self.variant.recipe

    @property
    def changes(self) -> list[str]:
        """All changes of the recipe, as for `--set`."""
        return [*self.common, *self.variant.varied, f"seed={self.seed}"]

    @property
    def words(self) -> str:
        """The variant and the seed, for messages."""
        return f"{self.variant.words} seed={self.seed}"

    @property
    def folder(self) -> str:
        """The name of the folder of the run's report, which differs for each run of the matrix."""
        text = f"{self.variant.words} seed={self.seed}"
        name = re.sub(r"[^A-Za-z0-9=.-]+", "_", text)[:LONGEST_NAME].lstrip(".")
        return f"{name}-{_digest([self.variant.title, *self.variant.varied, self.seed])}"


@dataclass(frozen=True)
class Grid:
    """The definition of a matrix."""

    name: str
    variants: tuple[Variant, ...]
    seeds: tuple[int, ...]
    changes: tuple[str, ...]
    """The changes of all runs, as for `--set`."""
    vary: tuple[str, ...]
    """The varied settings, as `key=a,b`."""

    @property
    def cells(self) -> list[Cell]:
        """Return all runs, seed by seed, so that all variants can be compared early."""
        return [Cell(variant, seed, self.changes) for seed in self.seeds for variant in self.variants]

    @property
    def command(self) -> str:
        """The command that runs the matrix, as a shell reads it."""
        recipes = dict.fromkeys(variant.recipe for variant in self.variants)
        options = [part for vary in self.vary for part in ("--vary", vary)]
        options += [part for change in self.changes for part in ("--set", change)]
        seeds = ",".join(map(str, self.seeds))
        return shlex.join(["pretrieve", "matrix", *recipes, "--seeds", seeds, *options, "--name", self.name])


def grid_of(
    recipes: Sequence[str], seeds: Sequence[int], changes: Sequence[str], vary: Sequence[str], name: str | None = None
) -> Grid:
    """Return the matrix of all recipes, values and seeds. Raises UserError where one is given twice or is missing.

    Without a name, it is named after its recipes; further seeds do not change the name.
    """
    by_key = _varied_settings(vary)
    _check_names(recipes, seeds, changes, by_key)
    values = [[f"{key}={value}" for value in values] for key, values in by_key.items()]
    variants = tuple(Variant(recipe, varied) for recipe in recipes for varied in product(*values))
    if len(variants) * len(seeds) > MAX_CELLS:
        raise UserError(
            f"{len(variants) * len(seeds):,} runs: expected at most {MAX_CELLS:,}; vary less, or use several"
        )
    if name and not NAME.fullmatch(name):
        raise UserError(f"--name {name}: expected letters, digits and any of . _ + -, at most 100")
    named = name or _default_name(recipes, changes, by_key)
    return Grid(named, variants, tuple(seeds), tuple(changes), tuple(vary))


def _varied_settings(vary: Sequence[str]) -> dict[str, list[str]]:
    by_key: dict[str, list[str]] = {}
    for text in vary:
        key, equals, values = text.partition("=")
        by_key[key] = split_values(values)
        if not equals or not key or not all(by_key[key]):
            raise UserError(f"--vary {text}: expected section.key=value,value")
    if len(by_key) < len(vary):
        raise UserError("--vary: a setting is given twice; give all its values in one option")
    return by_key


def _check_names(
    recipes: Sequence[str], seeds: Sequence[int], changes: Sequence[str], by_key: Mapping[str, Sequence[str]]
) -> None:
    if not recipes or not seeds:
        raise UserError("a matrix needs a recipe and a seed, such as: pretrieve matrix quickstart --seeds 1,2,3")
    given = {"RECIPE": recipes, "--seeds": seeds} | {f"--vary {key}": values for key, values in by_key.items()}
    for option, values in given.items():
        if twice := [value for value in values if values.count(value) > 1]:
            raise UserError(f"{option}: {twice[0]} is given twice; name each value once")
    by_name: dict[str, str] = {}
    for recipe in recipes:
        other = by_name.setdefault(recipe_name(find_recipe(recipe)), recipe)
        if other != recipe:
            raise UserError(f"RECIPE: {other} and {recipe} have the same name in the grid; rename one of the files")
    set_keys = [change.partition("=")[0] for change in changes]
    if "seed" in (*set_keys, *by_key):
        raise UserError("seed: the seeds of a matrix are given with --seeds")
    if both := [key for key in by_key if key in set_keys]:
        raise UserError(f"{both[0]}: it is varied and set; expected one of --vary and --set")


def split_values(text: str) -> list[str]:
    """Return the values between commas; commas in brackets or quotes belong to a value."""
    values, depth, quote = [""], 0, ""
    for character in text:
        if quote or character in QUOTES:
            quote = "" if character == quote else quote or character
        depth += (character in OPENING) - (character in CLOSING) if not quote else 0
        if character == "," and not quote and depth == 0:
            values.append("")
        else:
            values[-1] += character
    return [value.strip() for value in values]


def seeds_of(text: str) -> list[int]:
    """Return the seeds of `1,2,3`. Raises UserError for other text."""
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", text):
        raise UserError(f"--seeds {text}: expected whole numbers between commas, such as 1,2,3")
    return [int(seed) for seed in text.split(",")]


def _default_name(recipes: Sequence[str], changes: Sequence[str], by_key: Mapping[str, Sequence[str]]) -> str:
    titles = [recipe_name(find_recipe(recipe)) for recipe in recipes]
    names = "+".join(titles).replace("/", "-")
    short = re.sub(r"[^A-Za-z0-9._+-]+", "_", names)[:LONGEST_NAME]
    if names == short and not changes and not by_key:
        return short
    return f"{short}-{_digest([*titles, *changes, dict(by_key)])}"


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:DIGITS]
