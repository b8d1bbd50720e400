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
from flows.terminal import Terminal
from storage.store.store import Store
from tasks.pseudo_queries.compare_queries import FATES, compare_queries
from tasks.report.page.corpus_page import PASSAGE_FATES, QUERY_FATES, beside


def show_difference(before: str, after: str, store_folder: Path) -> None:
    """Print passages, queries and figures of two versions beside each other, with examples."""
    store = Store.open(store_folder)
    old, new = stored_version(before, store), stored_version(after, store)
    with computed(lambda: compare_queries(before=old.queries, after=new.queries), store, "queries diff") as made:
        found = json.loads((store.check(made) / "comparison.json").read_text())
    title = Text(f"{old.name} ({old.at}) and {new.name} ({new.at})", "bold")
    Terminal().print(Group(title, *difference(found)))


def difference(found: dict[str, Any]) -> list[RenderableType]:
    """Tables of a comparison.json."""
    by = found["generators"]
    several = list(by) if len(by) > 1 else []
    passages, queries = _table("passages", ""), _table("queries", "", *several)
    for fate, words in PASSAGE_FATES.items():
        passages.add_row(words, f"{found['passages'][fate]:,}")
    for fate in FATES:
        numbers = (found["queries"][fate], *(by[name][fate] for name in several))
        queries.add_row(QUERY_FATES[fate], *(f"{number:,}" for number in numbers))
    figures = _table("figures", "before", "after", "change")
    for cells in beside(found):
        figures.add_row(*cells)
    examples = [Text(f"{fate}: {line}") for fate in ("made", "rewritten", "dropped") for line in _examples(found, fate)]
    return [passages, queries, figures, *examples]


def _table(*heads: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), title_justify="left")
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left")
    return table


def _examples(found: dict[str, Any], fate: str) -> list[str]:
    """One line each: the words before and after, and of which passage."""
    lines = []
    for each in found["examples"].get(fate, []):
        words = " → ".join(text for text in (each["before"], each["after"]) if text is not None)
        lines.append(f"{words} ({each['passage_id']}, {each['generator']})")
    return lines
