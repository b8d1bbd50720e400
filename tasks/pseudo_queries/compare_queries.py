"""What has changed from one version of a corpus of pseudo-queries to another, and by how much.

Both tables are read once and joined by hashes on disk (`storage.external.hash_records`), in whatever order they are: it
takes some 40 bytes of disk a row, and as much memory as one file in 256 of that. The examples' rows are read again at
the end.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from storage.artifact import Artifact
from storage.external.hash_records import Sorted, hash_of_text
from storage.files import write_atomically
from storage.rows import num_rows, rows_at
from storage.store.store import SCRATCH
from storage.tables import Comparison, PseudoQueries
from tasks.pseudo_queries.quality_counts import Figures, shortened
from tasks.pseudo_queries.query_quality import COLUMNS, read_columns
from tasks.pseudo_queries.query_text import Look
from tasks.pseudo_queries.version_join import (
    AFTER,
    BEFORE,
    PASSAGE,
    QUERY,
    SEEN,
    Records,
    passage_fates,
    query_fates,
    seen,
)
from tasks.stage import stage

EXAMPLES = 5  # of each kind
QUERIES_SHOWN = 3  # of a passage that is an example
LETTERS = 300
FATES = ("kept", "made", "dropped", "rewritten", "filtered_out", "let_in")
FIGURES = ("written", "queries", "kept_share", "mean_words", "distinct_share", "question_share", "long_share",
           "looped_share", "round_trip")  # fmt: skip

Corpora = Mapping[int, Artifact[PseudoQueries]]
Row = dict[str, Any]


@stage(version=1, table=Comparison)
def compare_queries(out: Path, before: Artifact[PseudoQueries], after: Artifact[PseudoQueries]) -> None:
    """Write `comparison.json`.

    Passages are those that the tables have rows of. `same` have id and text in common; `moved` a text that was there
    under another id; `changed` an id whose old text is gone and whose new one was not there; the others are `new` or
    `removed`. So after = same + moved + changed + new.

    Queries are those that are not empty. `kept` were written for the same text by the same generator in the same words;
    `rewritten` stand in the rank of others; the rest is `made` or `dropped`. Of the kept, the filter drops
    (`filtered_out`) or keeps (`let_in`) some that it treated otherwise before.
    """
    corpora, joined = {BEFORE: before, AFTER: after}, Joined(out / SCRATCH)
    figures = {side: joined.read(side, each, out / SCRATCH) for side, each in corpora.items()}
    passages, passage_examples = joined.passages()
    queries, generators, query_examples = joined.queries()
    found = {
        "before": {"key": before.key, **figures[BEFORE]},
        "after": {"key": after.key, **figures[AFTER]},
        "passages": passages,
        "queries": queries,
        "generators": generators,
        "examples": {
            **{kind: shown_passages(records, corpora) for kind, records in passage_examples.items()},
            **{kind: shown_queries(*records, corpora) for kind, records in query_examples.items()},
        },
    }
    write_atomically(out / "comparison.json", json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


class Joined:
    """The passages and queries of two tables, by their hashes."""

    def __init__(self, scratch: Path) -> None:
        self._passages = Sorted(scratch / "passages", PASSAGE, by="text")
        self._seen = Sorted(scratch / "seen", SEEN, by="id")
        self._queries = Sorted(scratch / "queries", QUERY, by="text")
        self._generators: dict[str, int] = {}

    def read(self, side: int, corpus: Artifact[PseudoQueries], scratch: Path) -> dict[str, Any]:
        """Take in one table; return its figures."""
        figures, place, num_passages = Figures(scratch / "distinct"), 0, 0
        rows = read_columns(corpus, (*COLUMNS, "passage_sha256"))
        for passage_id, group in groupby(rows, key=itemgetter("passage_id")):
            found, num_passages = list(group), num_passages + 1
            text = int(found[0]["passage_sha256"][:16], 16)
            self._passages.add(side, hash_of_text(passage_id), text, place)
            figures.add(found, [Look.at(row["query"], None) if row["kept"] else None for row in found])
            for number, row in enumerate(found, place):
                if row["query"]:
                    generator = self._generators.setdefault(row["generator"], len(self._generators))
                    words = hash_of_text(row["query"])
                    self._queries.add(side, text, words, row["rank"], generator, row["kept"], number)
            place += len(found)
        main = figures.main()
        return {"passages": num_passages, **{name: main[name] for name in FIGURES}}

    def passages(self) -> tuple[dict[str, int], dict[str, Records]]:
        """How many of each fate, and examples of those that are not the same."""
        counts, examples = Counter[str](), dict[str, Records]()
        for group in self._passages.groups():
            self._seen.extend(seen(group))
        for group in self._seen.groups():
            number, found = passage_fates(group)
            counts.update(number)
            for kind, records in found.items():
                keep_least(examples, kind, records, "id")
        return dict(counts), examples

    def queries(self) -> tuple[dict[str, int], dict[str, dict[str, int]], dict[str, tuple[Records, Records]]]:
        """How many of each fate, by generator too, and examples of all but the kept: their records on either side."""
        counts: Counter[tuple[str, int]] = Counter()
        old, new = dict[str, Records](), dict[str, Records]()
        for group in self._queries.groups():
            fates = query_fates(group)
            before, after = fates["kept"]
            for kind, had, has in (("filtered_out", 1, 0), ("let_in", 0, 1)):
                turned = (before["kept"] == had) & (after["kept"] == has)
                fates[kind] = before[turned], after[turned]
            for kind, pair in fates.items():
                longer = max(pair, key=len)
                numbers, found = np.unique(longer["generator"], return_counts=True)
                counts.update({(kind, int(each)): int(count) for each, count in zip(numbers, found, strict=True)})
                if kind != "kept":
                    chosen = of_different_texts(longer)
                    for examples, records in zip((old, new), pair, strict=True):
                        keep_least(examples, kind, records[chosen] if len(records) else records, "text")
        by = {name: {kind: counts[kind, number] for kind in FATES} for name, number in sorted(self._generators.items())}
        totals = {kind: sum(each[kind] for each in by.values()) for kind in FATES}
        return totals, by, {kind: (old[kind], new[kind]) for kind in FATES[1:] if kind in old}


def of_different_texts(queries: Records) -> Any:
    """Places of one query for each of the texts with the least hashes: that of the first rank."""
    order = np.lexsort((queries["place"], queries["rank"], queries["generator"], queries["text"]))
    _, first = np.unique(queries["text"][order], return_index=True)
    return order[first[:EXAMPLES]]


def keep_least(examples: dict[str, Records], kind: str, records: Records, by: str) -> None:
    """Add to the examples of a kind, of which those with the least hashes stay; groups rise with the hash."""
    known = examples.get(kind)
    if known is None or len(np.unique(known[by])) < EXAMPLES:
        merged = records if known is None else np.concatenate([known, records])
        examples[kind] = merged[np.isin(merged[by], np.unique(merged[by])[:EXAMPLES])]


def shown_passages(records: Records, corpora: Corpora) -> list[Row]:
    """Passages by id, each with its first queries in the tables that it is an example from."""
    found: dict[str, Row] = {}
    for record in np.sort(records, order=["id", "side"]):
        side, place = int(record["side"]), int(record["place"])
        last = min(place + QUERIES_SHOWN, num_rows(corpora[side].path))
        rows = _rows(corpora[side], np.arange(place, last))
        first = rows[0]["passage_id"]
        queries = [row["query"] for row in rows if row["passage_id"] == first]
        found.setdefault(first, {"passage_id": first})["after" if side else "before"] = queries
    return list(found.values())


def shown_queries(before: Records, after: Records, corpora: Corpora) -> list[Row]:
    """Queries with their words before and after, null where there were none."""
    old, new = (_rows(corpora[side], records["place"]) for side, records in ((BEFORE, before), (AFTER, after)))
    words = [[row.pop("query") for row in rows] for rows in (old, new)]
    missing = [None] * max(len(old), len(new))
    pairs = zip(new or old, words[0] or missing, words[1] or missing, strict=True)
    return [{**row, "before": was, "after": became} for row, was, became in pairs]


def _rows(corpus: Artifact[PseudoQueries], places: Records) -> list[Row]:
    columns = ("passage_id", "generator", "rank", "query", "reason")
    rows: list[Row] = rows_at(corpus, PseudoQueries, places.tolist(), columns).to_pylist()
    return [{**row, "query": shortened(row["query"], LETTERS)} for row in rows]
