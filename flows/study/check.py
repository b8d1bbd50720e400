"""Check a study against its recipes: rows, metrics, and what is pre-trained."""

from __future__ import annotations

from flows.recipe.load import load_recipe
from flows.study.claims import Study
from flows.study.systems import Curves
from storage.errors import UserError


def check(study: Study) -> None:
    """Raise UserError for rows and metrics that the recipes do not have, before anything is run."""
    names = {system.recipe for claim in study.claims for system in claim.arms.values()}
    recipes = {name: load_recipe(name) for name in sorted(names)}
    for claim in study.claims:
        for system in claim.arms.values():
            recipe, path = recipes[system.recipe]
            if system.row and system.row not in recipe.run_names():
                raise UserError(
                    f"{claim.name}: {path} has no row {system.row!r}; it has {', '.join(recipe.run_names())}"
                )
            if claim.metric and claim.metric not in recipe.evaluate.metrics:
                raise UserError(f"{claim.name}: {path} does not measure {claim.metric}; add it to evaluate.metrics")
            if (system.row is None or system.steps) and recipe.pretrain is None:
                raise UserError(f"{claim.name}: {path} pre-trains nothing, so that it has no steps and no cost of them")
    if study.curves:
        _check_curves(study.curves)


def _check_curves(curves: Curves) -> None:
    drawn = {system.recipe: list(curves.rows) for system in curves.systems.values()}
    for system in curves.without.values():
        drawn.setdefault(system.recipe, []).append(system.row or "")
    for name, rows in drawn.items():
        recipe, path = load_recipe(name)
        if unknown := set(rows) - set(recipe.run_names()):
            raise UserError(f"curves: {path} has no row {min(unknown)!r}; it has {', '.join(recipe.run_names())}")
        if curves.metric not in recipe.evaluate.metrics:
            raise UserError(f"curves: {path} does not measure {curves.metric}; add it to evaluate.metrics")
    for name in sorted({system.recipe for system in curves.systems.values()}):
        recipe, path = load_recipe(name)
        if recipe.pretrain is None or recipe.pretrain.steps != curves.own_steps:
            raise UserError(f"curves: {path}: expected pre-training of own_steps={curves.own_steps} steps")
