"""`pretrieve queries stats`: what a corpus of pseudo-queries is like, in figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from flows.computed import computed
from flows.queries.versions import Version, stored_version
from flows.terminal import Terminal
from storage.artifact import Artifact
from storage.store.store import Store
from storage.tables import Quality
from tasks.pseudo_queries.query_quality import Sampling, query_quality
from tasks.report.page.corpus_page import REASONS, SHARES, share, value

SAMPLING = Sampling(passages=1000, samples=50, seed=42)  # where the version's recipe has measured nothing yet
LISTED = 5  # first words and languages


def show_stats(name: str, store_folder: Path) -> None:
    """Print the figures of a version."""
    store = Store.open(store_folder)
    version = stored_version(name, store)
    with computed(lambda: measured(version, store), store, "queries stats") as quality:
        found = json.loads((store.check(quality) / "quality.json").read_text())
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    for cells in figures(found):
        table.add_row(*cells)
    Terminal().print(Text(f"{version.name}, {version.at}", "bold"), table, sep="\n")


def measured(version: Version, store: Store) -> Artifact[Quality]:
    """The version's figures: those that its recipe has measured, or measured now, without a search by BM25."""
    for folder in sorted((store.root / query_quality.name).glob("*")):
        made = store.manifest(query_quality.name, folder.name)
        if made and (made.version, made.inputs["pseudo_queries"]) == (query_quality.version, version.queries.reference):
            return Artifact(query_quality.name, made.key, folder)
    return query_quality(passages=version.passages, pseudo_queries=version.queries, settings=SAMPLING)


def figures(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """What is counted, how much, and by generator where there are several."""
    several = found["generators"] if len(found["generators"]) > 1 else {}

    def by(name: str, shown: Any) -> str:
        return ", ".join(f"{each} {shown(own.get(name))}" for each, own in several.items())

    rows = [("passages", value(found["passages"]), "")]
    rows.append(("passages without a query", value(found["passages_without_queries"]), ""))
    rows += [("queries written", value(found["written"]), by("written", value))]
    rows += [("queries kept", value(found["queries"]), by("queries", value))]
    rows += [(REASONS.get(reason, reason), value(count), "") for reason, count in found["dropped"].items()]
    rows.append(("words on average", value(found["mean_words"]), by("mean_words", value)))
    rows += [(words, share(found[name]), by(name, share)) for name, words in SHARES.items()]
    if trip := found["round_trip"]:
        of = f"{trip['queries']:,} queries: {trip['of']}"
        rows += [(f"round trip, success@{depth}", share(trip[f"success@{depth}"]), of) for depth in (1, 10)]
        rows.append(("round trip, MRR@10", f"{trip['mrr@10']:.3f}", of))
    else:
        rows.append(("round trip", "–", "not measured: `pretrieve queries build` does, or queries.filter.round_trip"))
    if relevance := found["relevance"]:
        rows.append(("relevance, mean", value(relevance["mean"]), f"median {value(relevance['quantiles']['50'])}"))
    listed = ", ".join(f"{word} {count:,}" for word, count in found["first_words"][:LISTED])
    told = ", ".join(f"{code} {count:,}" for code, count in list(found["languages"]["of"].items())[:LISTED])
    return [*rows, ("first words", "", listed), ("languages of a draw", "", told)]
