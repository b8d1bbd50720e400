"""Recipes: their settings, changes of them, and their plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.plan.estimates import estimated
from flows.plan.show import stage_as_json
from flows.recipe.load import load_recipe
from flows.recipe.schema import as_yaml
from pretrieve.settings import Store, as_changes, checked_changes, store_folder

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class PlannedRecipe:
    """A recipe with changes; nothing is built until it is given to `reproduce`."""

    name: str
    """A shipped recipe's name, or the path of a recipe file."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Values by dotted names, as `--set` of the commands takes them."""

    def replace(self, **changes: Any) -> PlannedRecipe:
        """Return the recipe with further changes, which are checked against its schema.

        A dotted name is given in a dictionary: `recipe("quickstart").replace(seed=1, **{"pretrain.steps": 10})`.
        """
        changed = replace(self, changes={**self.changes, **changes})
        load_recipe(changed.name, as_changes(changed.changes))
        return changed

    @property
    def settings(self) -> dict[str, Any]:
        """The settings after the changes: `recipe("quickstart").settings["pretrain"]["steps"]`."""
        loaded, _ = load_recipe(self.name, as_changes(self.changes))
        values: dict[str, Any] = loaded.model_dump(mode="json", by_alias=True)
        return values

    def as_yaml(self) -> str:
        """Return the recipe as reports show it: `print(recipe("small/came").replace(seed=1).as_yaml())`."""
        return as_yaml(load_recipe(self.name, as_changes(self.changes))[0])

    def plan(self, store: Store = None) -> pd.DataFrame:
        """Return the stages with their keys, states and estimated costs, as `pretrieve plan` lists them.

        Neither data nor weights are needed. Numbers are in `num_tokens`, `num_flops`, `disk_bytes` and `num_hours`:
        `recipe("cot_mae").plan().query("state == 'to build'").num_hours.sum()`.
        """
        import pandas as pd

        plan = estimated(self.name, store_folder(store), as_changes(self.changes))
        table = pd.DataFrame([stage_as_json(row) for row in plan.rows])
        table.attrs |= {"not_here": list(plan.absent), "notes": list(plan.notes)}
        return table


def recipe(name: str | Path) -> PlannedRecipe:
    """Return a shipped recipe by name, or a recipe file by path: `recipe("cot_mae").replace(seed=1).plan()`."""
    load_recipe(str(name))
    return PlannedRecipe(str(name))


def given_recipe(given: PlannedRecipe | str | Path, changes: Mapping[str, Any] | None) -> PlannedRecipe:
    """Return a recipe that is given as such or by name, with further changes."""
    known = given if isinstance(given, PlannedRecipe) else recipe(given)
    return known.replace(**checked_changes(changes)) if changes else known
