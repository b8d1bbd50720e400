"""The settings of docs/queries.md: every example is a recipe, and every setting of the section has an example."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.recipe.load import load_recipe
from flows.recipe.pseudo_query_schema import PseudoQuerySettings
from flows.recipe.schema_keys import has_section, known_keys
from flows.recipe.shipped import SHIPPED
from storage.artifact import Artifact
from storage.rows import read_rows, write_rows
from storage.store.store import Store
from storage.tables import Passages, PseudoQueries
from tasks.pseudo_queries.detokenise import detokenise_queries
from tasks.pseudo_queries.drop_duplicates import drop_duplicates
from tasks.pseudo_queries.filter_texts import filter_texts
from tests.tasks.corpora import passage, pseudo_query
from tests.test_readme import ROOT

PAGE = (ROOT / "docs" / "queries.md").read_text()
EXAMPLES = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
CHANGES = re.findall(r"--set '?(queries\.filter\.[^\s']+)", PAGE)
FILTERS = [json.dumps(section) for example in EXAMPLES if (section := example["queries"].get("filter"))]
QUICKSTART = yaml.safe_load((SHIPPED / "quickstart.yaml").read_text())
ELSEWHERE = {"train", "file"}  # shown by the quickstart's recipe and by `queries import`


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: ",".join(example["queries"]))
def test_an_example_is_a_section_of_a_recipe(example: dict[str, Any], tmp_path: Path) -> None:
    recipe = QUICKSTART | {"queries": QUICKSTART["queries"] | example["queries"]}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))

    queries = load_recipe(str(tmp_path / "recipe.yaml"))[0].queries

    for name, value in _flat(example["queries"]):
        assert dict(_flat(queries.model_dump(mode="json", by_alias=True)))[name] == value


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_works_on_a_recipe_without_filters(change: str) -> None:
    assert load_recipe("quickstart", [change])[0].queries.filter is not None


@pytest.mark.parametrize("change", [*CHANGES, *(f"queries.filter={text}" for text in FILTERS)])
def test_the_rules_of_an_example_run(change: str, store: Store, tmp_path: Path) -> None:
    queries = load_recipe("quickstart", [change])[0].queries
    assert queries is not None
    assert queries.filter is not None
    texts = [
        "when was the bridge opened ?",
        "When was the bridge opened?",
        "who was it, in 1999",
        "click here now please",
    ]
    table, passages = tmp_path / "queries", tmp_path / "passages"
    for folder, kind, rows in (
        (table, PseudoQueries, [pseudo_query("a#0", rank, text) for rank, text in enumerate(texts)]),
        (passages, Passages, [passage("a#0", "The bridge over the river was opened in 1894.")]),
    ):
        folder.mkdir()
        write_rows(folder, kind, rows)

    current, reasons = Artifact[PseudoQueries]("given", "a", table), list[tuple[str, object]]()
    if queries.filter.detokenise:
        detokenise_queries.body(tmp_path / "joined", current)
        current = Artifact("given", "b", tmp_path / "joined")
    if (rules := queries.filter.texts) is not None:
        filter_texts.body(tmp_path / "texts", current, Artifact("given", "p", passages), None, settings=rules)
        current = Artifact("given", "c", tmp_path / "texts")
        reasons += [("number", rules.numbers), ("forbidden word", rules.forbidden)]
    if (duplicates := queries.filter.duplicates) is not None:
        drop_duplicates.body(tmp_path / "distinct", current, settings=duplicates)
        current = Artifact("given", "d", tmp_path / "distinct")
        reasons += [("exact duplicate", duplicates.exact), ("near duplicate", duplicates.near and not duplicates.exact)]

    dropped = [row["reason"] for row in read_rows(current, PseudoQueries) if not row["kept"]]
    assert {reason for reason, given in reasons if given} <= set(dropped) | {"exact duplicate", "near duplicate"}
    assert bool(dropped) == any(given for _, given in reasons)


def test_every_setting_has_an_example() -> None:
    shown = {re.sub(r"\.\d+", "", name) for example in EXAMPLES for name, _ in _flat(example["queries"])}
    shown |= {change.removeprefix("queries.").partition("=")[0] for change in CHANGES}
    shown |= {name.removeprefix("also.") for name in shown}  # both have the same settings
    shown |= {f"also.{name}" for name in shown if name.startswith("generate.")}

    settings = [name for name in _settings([]) if name.partition(".")[0] not in ELSEWHERE]

    assert len(settings) > 40
    assert sorted(set(settings) - shown) == []
    assert len(CHANGES) >= 5


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value by its dotted name."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not pairs or (isinstance(value, list) and not any(isinstance(item, dict) for item in value)):
        yield prefix, value
        return
    for name, inner in pairs:
        yield from _flat(inner, f"{prefix}.{name}" if prefix else str(name))


def _settings(location: list[str]) -> Iterator[str]:
    """Yield the dotted name of every setting of the section `queries` from this location on."""
    for key in known_keys(location, PseudoQuerySettings):
        inner = [*location, key]
        if key == "also" or has_section(inner, PseudoQuerySettings):
            yield from _settings(inner)
        else:
            yield ".".join(inner)
