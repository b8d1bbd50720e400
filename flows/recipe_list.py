"""`pretrieve recipes`: the shipped recipes in groups, what each one is, and the collections that it lacks here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from flows.recipe.shipped import SUITES, shipped_recipes
from flows.terminal import say
from storage.errors import UserError
from storage.results.paper_results import PAPERS
from storage.store import sources

SMALL, STUDY = "Small: on one CPU, most in minutes", "Study: the claims of docs/results.md, at small scale"
OTHER = "Others"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""PyYAML's loader in C, if it was built: a hundred files take 0.2 s instead of 2 s."""
FOLDERS = {"small": SMALL, "study": STUDY}


@dataclass(frozen=True)
class ShippedRecipe:
    """A recipe as the list shows it."""

    name: str
    group: str
    description: str
    missing: list[str]
    """Collections that are not on this machine."""

    def line(self, width: int) -> str:
        """Return the recipe as one line, its name padded to `width`."""
        lacks = f" (not here: {', '.join(self.missing)})" if self.missing else ""
        return f"  {self.name:<{width}}  {self.description}{lacks}"


def recipe_groups() -> dict[str, dict[str, str]]:
    """Return the description of each shipped recipe by its group's heading and its name, in the order of the list."""
    recipes = [(name, file.read_text(encoding="utf-8")) for name, file in shipped_recipes().items()]
    by_group: dict[str, dict[str, str]] = {group: {} for group in GROUPS}
    for name, text in recipes:
        by_group[_group(name, text)][name] = _description(text)
    return {group: members for group, members in by_group.items() if members}


def show_recipes() -> None:
    """Print every shipped recipe below the heading of its group."""
    recipes = [_described(name, file) for name, file in shipped_recipes().items()]
    for group in GROUPS:
        if members := [recipe for recipe in recipes if recipe.group == group]:
            say(
                f"{group}\n" + "\n".join(recipe.line(max(len(member.name) for member in members)) for recipe in members)
            )
            say("")
    if any(recipe.missing for recipe in recipes):
        say("`pretrieve fetch` downloads public collections; docs/evaluation.md says where the others come from.")
    say("`pretrieve plan RECIPE` shows a recipe's stages and costs, also without its data.")


def _described(name: str, file: Path) -> ShippedRecipe:
    text = file.read_text(encoding="utf-8")
    return ShippedRecipe(name, _group(name, text), _description(text), list(dict.fromkeys(_missing(_content(text)))))


def _content(text: str) -> Any:
    return yaml.load(text, Loader=LOADER)


def _group(name: str, text: str) -> str:
    return SMALL if name == "quickstart" else FOLDERS.get(name.partition("/")[0]) or _of_paper(text)


def _of_paper(text: str) -> str:
    """Return the heading of the first paper that a recipe's text cites."""
    cited = [(text.index(citation), citation) for citation in PAPERS if citation in text]
    return _heading(min(cited)[1]) if cited else OTHER


def _heading(citation: str) -> str:
    return f"{PAPERS[citation]} ({citation}), at the paper's scale"


GROUPS = [SMALL, *(_heading(citation) for citation in PAPERS), OTHER, STUDY]


def _description(text: str) -> str:
    """Return the first sentence of the comment that a recipe's file begins with."""
    comment = re.match(r"(?:#.*\n)*", text)
    words = " ".join(line.lstrip("# ") for line in comment[0].splitlines()) if comment else ""
    return re.split(r"(?<!et al)[.?](?: |$)", words, maxsplit=1)[0]


def _missing(content: dict[str, Any]) -> Iterator[str]:
    """Yield the paths of collections that a recipe reads and that are not on this machine."""
    datasets = [content["dataset"]]
    if elsewhere := content["corpora"]["pretrain_from"]:
        datasets.append(elsewhere)
    yield from (dataset["path"] or "dataset.path" for dataset in datasets if not _is_here(dataset))
    if transfer := content.get("transfer"):
        suite = SUITES / f"{transfer['suite']}.yaml"
        collections = _content(suite.read_text(encoding="utf-8"))["collections"]
        columns = {collection.get("group", collection["name"]) for collection in collections}
        missing = {each.get("group", each["name"]) for each in collections if not _is_here(each)}
        if missing:
            yield f"{len(missing)} of {len(columns)} sets of the suite {transfer['suite']}"


def _is_here(dataset: dict[str, Any]) -> bool:
    try:
        sources.locate(dataset["path"], dataset["reader"])
    except UserError:
        return False
    return True
