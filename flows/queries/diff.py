"""`pretrieve queries diff`: what has changed from one version of a corpus to another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flows.computed import computed
from flows.queries.versions import stored_version
from flows.terminal import Terminal, say_json
from storage.store.store import Store
from tasks.pseudo_queries.compare_queries import compare_queries
from tasks.pseudo_queries.version_join import FATES
from tasks.report.page.corpus_page import PASSAGE_FATES, QUERY_FATES, beside


def show_difference(before: str, after: str, store_folder: Path, as_json: bool = False) -> None:
    """Print passages, queries and statistics of two versions side by side, with examples, or all of it as JSON."""
    store = Store.open(store_folder)
    old, new = stored_version(before, store), stored_version(after, store)
    with computed(lambda: compare_queries(before=old.queries, after=new.queries), store, "queries diff") as artifact:
        comparison = json.loads((store.check(artifact) / "comparison.json").read_text(encoding="utf-8"))
    if as_json:
        say_json({"versions": {"before": old.name, "after": new.name}, **comparison})
        return
    title = Text(f"{old.name} ({old.at}) and {new.name} ({new.at})", "bold")
    Terminal().print(Group(title, *difference(comparison)))


def difference(comparison: dict[str, Any]) -> list[RenderableType]:
    """Return the tables and examples of a comparison.json."""
    by_generator = comparison["generators"]
    generators = list(by_generator) if len(by_generator) > 1 else []
    passages, queries = _table("passages", ""), _table("queries", "", *generators)
    for fate, words in PASSAGE_FATES.items():
        passages.add_row(words, f"{comparison['passages'][fate]:,}")
    for fate in FATES:
        numbers = (comparison["queries"][fate], *(by_generator[name][fate] for name in generators))
        queries.add_row(QUERY_FATES[fate], *(f"{number:,}" for number in numbers))
    statistics = _table("statistics", "before", "after", "change")
    for cells in beside(comparison):
        statistics.add_row(*cells)
    fates = ("made", "rewritten", "dropped")
    examples = [Text(f"{QUERY_FATES[fate]}: {line}") for fate in fates for line in _examples(comparison, fate)]
    return [passages, queries, statistics, *examples]


def _table(*heads: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), title_justify="left")
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left")
    return table


def _examples(comparison: dict[str, Any], fate: str) -> list[str]:
    """Return a line for each example: the query before and after, with passage and generator."""
    lines = []
    for example in comparison["examples"].get(fate, []):
        words = " → ".join(text for text in (example["before"], example["after"]) if text is not None)
        lines.append(f"{words} ({example['passage_id']}, {example['generator']})")
    return lines
