"""`pretrieve queries stats`: statistics of a corpus of pseudo-queries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from flows.computed import computed
from flows.queries.versions import Version, stored_version
from flows.terminal import Terminal, say_json
from storage.artifact import Artifact
from storage.store.store import Store
from storage.tables import Quality
from tasks.pseudo_queries.query_quality import Sampling, query_quality
from tasks.report.page.corpus_page import SHARES, reason_in_words, share, value

SAMPLING = Sampling(passages=1000, samples=50, seed=42)  # where the version's recipe has no statistics yet
LISTED = 5  # first words and languages


def show_stats(name: str, store_folder: Path, as_json: bool = False) -> None:
    """Print the statistics of a version, as a table or as JSON."""
    store = Store.open(store_folder)
    version = stored_version(name, store)
    with computed(lambda: quality_of(version, store), store, "queries stats") as quality:
        statistics = json.loads((store.check(quality) / "quality.json").read_text(encoding="utf-8"))
    if as_json:
        say_json({"version": version.name, "built": version.at, **statistics})
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    for cells in rows_of(statistics):
        table.add_row(*cells)
    Terminal().print(Text(f"{version.name}, {version.at}", "bold"), table, sep="\n")


def quality_of(version: Version, store: Store) -> Artifact[Quality]:
    """Return the version's statistics: those of its build, else the newest, else computed now without a BM25 search."""
    manifests = (
        store.manifest(query_quality.name, folder.name) for folder in (store.root / query_quality.name).glob("*")
    )
    wanted = (query_quality.version, version.queries.reference)
    stored = [
        manifest for manifest in manifests
        if manifest and (manifest.version, manifest.inputs["pseudo_queries"]) == wanted
    ]  # fmt: skip
    if not stored:
        return query_quality(passages=version.passages, pseudo_queries=version.queries, settings=SAMPLING)
    best = max(stored, key=lambda manifest: (manifest.key == version.quality.key, manifest.built["at"], manifest.key))
    return Artifact(query_quality.name, best.key, store.folder(query_quality.name, best.key))


def rows_of(statistics: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return rows of name and value, with the values by generator where there are several."""
    generators = statistics["generators"] if len(statistics["generators"]) > 1 else {}

    def by(name: str, shown: Any) -> str:
        return ", ".join(f"{generator} {shown(own.get(name))}" for generator, own in generators.items())

    rows = [("passages", value(statistics["passages"]), "")]
    rows.append(("passages without a query", value(statistics["passages_without_queries"]), ""))
    rows += [("queries generated", value(statistics["written"]), by("written", value))]
    rows += [("queries kept", value(statistics["queries"]), by("queries", value))]
    rows += [(reason_in_words(reason), value(count), "") for reason, count in statistics["dropped"].items()]
    rows.append(("words on average", value(statistics["mean_words"]), by("mean_words", value)))
    rows += [(words, share(statistics[name]), by(name, share)) for name, words in SHARES.items()]
    if trip := statistics["round_trip"]:
        searched = f"{trip['queries']:,} queries: {trip['of']}"
        rows += [(f"round trip, success@{depth}", share(trip[f"success@{depth}"]), searched) for depth in (1, 10)]
        rows.append(("round trip, MRR@10", f"{trip['mrr@10']:.3f}", searched))
    else:
        rows.append(("round trip", "–", "not measured: `pretrieve queries build` measures it"))
    if relevance := statistics["relevance"]:
        rows.append(("relevance, mean", value(relevance["mean"]), f"median {value(relevance['quantiles']['50'])}"))
    listed = ", ".join(f"{word} {count:,}" for word, count in statistics["first_words"][:LISTED])
    languages = ", ".join(f"{code} {count:,}" for code, count in list(statistics["languages"]["of"].items())[:LISTED])
    return [*rows, ("first words", "", listed), ("languages of a sample", "", languages)]
