"""Compare two versions of a corpus of pseudo-queries: which passages and queries were kept, changed, added and dropped.

Both tables are read once and joined by a database on disk (`tasks.pseudo_queries.version_join`), whatever their order.
The rows of the examples are read again at the end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from storage.artifact import Artifact
from storage.batched import arrow_blocks
from storage.external.database import Database
from storage.files import write_atomically
from storage.rows import num_rows, rows_at
from storage.store.publishing import SCRATCH
from storage.tables import Comparison, PseudoQueries
from tasks.pseudo_queries.quality_counts import Figures, shortened
from tasks.pseudo_queries.query_quality import COLUMNS, read_columns
from tasks.pseudo_queries.query_text import Look, hash_of_text
from tasks.pseudo_queries.version_join import (
    AFTER,
    BEFORE,
    EXAMPLE_PASSAGES,
    EXAMPLE_QUERIES,
    FATES,
    PASSAGES,
    Rows,
    example_rows,
    join_versions,
    passage_counts,
    query_counts,
)
from tasks.stage import stage

QUERIES_SHOWN = 3  # of a passage that is an example
LETTERS = 300
PASSAGES_PER_BLOCK = 10_000
FIGURES = ("written", "queries", "kept_share", "mean_words", "distinct_share", "question_share", "long_share",
           "looped_share", "round_trip")  # fmt: skip

Corpora = Mapping[str, Artifact[PseudoQueries]]
Row = dict[str, Any]


@stage(version=1, table=Comparison)
def compare_queries(out: Path, before: Artifact[PseudoQueries], after: Artifact[PseudoQueries]) -> None:
    """Write `comparison.json`.

    Passages are those that the tables have rows of. `same` have id and text in common; `moved` a text that was there
    under another id; `changed` an id whose old text is gone and whose new one was not there; the others are `new` or
    `removed`. So after = same + moved + changed + new.

    Queries are those that are not empty. `kept` were generated for the same text by the same generator in the same
    words; `rewritten` replace others of equal rank; the rest is `made` or `dropped`. Of the kept, the filter drops
    (`filtered_out`) or keeps (`let_in`) some that it treated otherwise before.
    """
    corpora = {BEFORE: before, AFTER: after}
    with Database(out / SCRATCH / "database") as database:
        figures = {version: Figures(database, f"distinct_{version}") for version in corpora}
        passages = (row for version in corpora for row in _read(version, corpora[version], figures[version]))
        join_versions(database, before, after, arrow_blocks(passages, PASSAGES, PASSAGES_PER_BLOCK))
        generators = query_counts(database)
        comparison = {
            **{version: _main_figures(corpora[version], figures[version]) for version in corpora},
            "passages": passage_counts(database),
            "queries": {fate: sum(counts[fate] for counts in generators.values()) for fate in FATES},
            "generators": generators,
            "examples": {
                **_examples(database, EXAMPLE_PASSAGES, ("changed", "removed", "new"), corpora, shown_passages),
                **_examples(database, EXAMPLE_QUERIES, FATES[1:], corpora, shown_queries),
            },
        }
    text = json.dumps(comparison, indent=1, ensure_ascii=False, allow_nan=False)
    write_atomically(out / "comparison.json", text + "\n")


def _read(version: str, corpus: Artifact[PseudoQueries], figures: Figures) -> Iterator[Row]:
    """Count a table's rows and yield its passages."""
    first_row = 0
    rows = read_columns(corpus, (*COLUMNS, "passage_sha256"))
    for passage_id, group in groupby(rows, key=itemgetter("passage_id")):
        queries = list(group)
        figures.add(queries, [Look.at(row["query"], None) if row["kept"] else None for row in queries])
        yield {
            "version": version, "row": first_row, "passage_id": passage_id, "text": queries[0]["passage_sha256"],
            "hash": hash_of_text(passage_id),
        }  # fmt: skip
        first_row += len(queries)


def _main_figures(corpus: Artifact[PseudoQueries], figures: Figures) -> Row:
    main = figures.main()
    return {"key": corpus.key, "passages": figures.passages, **{name: main[name] for name in FIGURES}}


def _examples(
    database: Database, query: str, fates: Sequence[str], corpora: Corpora, show: Callable[[Rows, Corpora], list[Row]]
) -> dict[str, list[Row]]:
    return {fate: show(rows, corpora) for fate, rows in example_rows(database, query, fates).items()}


def shown_passages(examples: Rows, corpora: Corpora) -> list[Row]:
    """Return passages by id, each with its first queries in the versions that it is an example from."""
    shown = []
    for rows in examples:
        passage: Row = {}
        for (version, corpus), row in zip(corpora.items(), rows, strict=True):
            if row is not None:
                queries = _rows(corpus, range(row, min(row + QUERIES_SHOWN, num_rows(corpus.path))))
                passage["passage_id"] = passage_id = queries[0]["passage_id"]
                passage[version] = [query["query"] for query in queries if query["passage_id"] == passage_id]
        shown.append(passage)
    return shown


def shown_queries(examples: Rows, corpora: Corpora) -> list[Row]:
    """Return queries with their words before and after, null where there were none."""
    shown = []
    for rows in examples:
        query: Row = {}
        words: Row = dict.fromkeys(corpora)
        for (version, corpus), row in zip(corpora.items(), rows, strict=True):
            if row is not None:
                (query,) = _rows(corpus, [row])
                words[version] = query.pop("query")
        shown.append({**query, **words})
    return shown


def _rows(corpus: Artifact[PseudoQueries], row_numbers: Sequence[int]) -> list[Row]:
    columns = ("passage_id", "generator", "rank", "query", "reason")
    rows: list[Row] = rows_at(corpus, PseudoQueries, row_numbers, columns).to_pylist()
    return [{**row, "query": shortened(row["query"], LETTERS)} for row in rows]
