"""`pretrieve recipes`: the shipped recipes in groups, what each one is, and the collections that it lacks here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.recipe.shipped import SUITES, shipped_recipes
from flows.terminal import say
from storage.errors import UserError
from storage.formats.yaml_files import read_yaml
from storage.results.paper_results import PAPERS
from storage.store import sources

SMALL, STUDY = "Small: minutes on one CPU", "Study: the claims of docs/results.md, at small scale"
OTHER = "Others"
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


def show_recipes() -> None:
    """Print every shipped recipe below the heading of its group."""
    recipes = [_described(name, file) for name, file in shipped_recipes().items()]
    for group in [SMALL, *(_heading(citation) for citation in PAPERS), OTHER, STUDY]:
        if members := [recipe for recipe in recipes if recipe.group == group]:
            say(
                f"{group}\n" + "\n".join(recipe.line(max(len(member.name) for member in members)) for recipe in members)
            )
            say("")
    if any(recipe.missing for recipe in recipes):
        say("`pretrieve fetch` downloads public collections; docs/operations.md says where the others come from.")
    say("`pretrieve plan RECIPE` shows a recipe's stages and costs, also without its data.")


def _described(name: str, file: Path) -> ShippedRecipe:
    content = read_yaml(file)
    group = SMALL if name == "quickstart" else FOLDERS.get(name.partition("/")[0]) or _of_paper(file.read_text())
    return ShippedRecipe(name, group, _description(file.read_text()), list(dict.fromkeys(_missing(content))))


def _of_paper(text: str) -> str:
    """Return the heading of the first paper that a recipe's text cites."""
    cited = [(text.index(citation), citation) for citation in PAPERS if citation in text]
    return _heading(min(cited)[1]) if cited else OTHER


def _heading(citation: str) -> str:
    return f"{PAPERS[citation]} ({citation}), at the paper's scale"


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
        collections = read_yaml(SUITES / f"{transfer['suite']}.yaml")["collections"]
        if missing := sum(not _is_here(collection) for collection in collections):
            yield f"{missing} of {len(collections)} collections of the suite {transfer['suite']}"


def _is_here(dataset: dict[str, Any]) -> bool:
    try:
        sources.locate(dataset["path"], dataset["reader"])
    except UserError:
        return False
    return True
