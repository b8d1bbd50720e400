"""The queries on which a run is most clearly better or worse than its baseline, with their texts.

Queries are ordered by the difference of a metric, then by id. Each is shown with a relevant passage and, for both runs,
with the first passage and the rank of the first relevant document.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from storage.artifact import Artifact
from storage.files import write_atomically
from storage.rows import blocks_with_keys, first_rows, read_table
from storage.settings import Settings
from storage.tables import Analysis, Metrics, Passages, Qrels, Queries, Run
from tasks.stage import stage

MAX_CHARACTERS = 700  # of a text; a passage of MS MARCO has about 340, a document many thousands

Documents = dict[str, tuple[float, str]]
"""Documents in the order of their ranks, each with its score and its best passage."""


class Winning(Settings):
    """The runs to compare, and the number of queries to show."""

    run: str
    baseline: str
    metric: str
    relevant_from: int
    """The lowest grade of a relevant document."""
    ignore_identical_ids: bool
    """Whether a document with the query's id is removed from the results."""
    examples: int = Field(ge=1)
    """The maximum number of wins, and of losses."""


@stage(version=1, table=Analysis)
def wins(
    out: Path,
    queries: Artifact[Queries],
    qrels: Artifact[Qrels] | None,
    passages: Artifact[Passages],
    metrics: Artifact[Metrics],
    run: Artifact[Run],
    baseline: Artifact[Run],
    *,
    settings: Winning,
) -> None:
    """Write `analysis.json`: `wins` and `losses`; without qrels no passage is marked as relevant."""
    better, worse = clearest(metrics.path / "queries.parquet", settings)
    query_ids = [row["query_id"] for row in [*better, *worse]]
    ranked = rank_documents({settings.run: run, settings.baseline: baseline}, passages, query_ids, settings)
    grades = relevant_documents(qrels, query_ids, settings.relevant_from) if qrels else {}
    cases = [_case(query, ranked, grades.get(query, {})) for query in query_ids]
    query_texts = first_rows(queries, Queries, "query_id", query_ids, ["text"])
    texts = first_rows(passages, Passages, "passage_id", _passages(cases), ["title", "text"])
    first_texts = first_rows(passages, Passages, "doc_id", _unranked(cases), ["title", "text"])
    lines = [
        {**value, "query": query_texts[value["query_id"]]["text"], **_with_texts(case, texts, first_texts)}
        for value, case in zip([*better, *worse], cases, strict=True)
    ]
    content = {name: getattr(settings, name) for name in ("run", "baseline", "metric")}
    content |= {"wins": lines[: len(better)], "losses": lines[len(better) :]}
    write_atomically(out / "analysis.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def clearest(by_query: Path, settings: Winning) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the queries of the greatest gains and of the greatest losses, with both runs' values."""
    import pandas

    pair = [settings.run, settings.baseline]
    filters = [("metric", "==", settings.metric), ("run", "in", pair)]
    rows = pandas.read_parquet(by_query, filters=filters)
    values = rows.pivot(index="query_id", columns="run", values="value")[rows["run"].unique()].sort_index()
    gains = values[settings.run] - values[settings.baseline]

    def greatest(changes: Any) -> list[dict[str, Any]]:
        best = changes[changes > 0].sort_values(ascending=False, kind="stable").head(settings.examples)
        return [{"query_id": query, "values": values.loc[query].to_dict()} for query in best.index]

    return greatest(gains), greatest(-gains)


def rank_documents(
    runs: Mapping[str, Artifact[Run]], passages: Artifact[Passages], query_ids: Sequence[str], settings: Winning
) -> dict[str, dict[str, Documents]]:
    """Return by run and query the documents in the order in which they are evaluated."""
    hits: dict[str, dict[str, list[tuple[float, str]]]] = {name: {} for name in runs}
    for name, run in runs.items():
        for block in blocks_with_keys(run, Run, "query_id", query_ids, ["passage_id", "score"]):
            for row in block.to_pylist():
                hits[name].setdefault(row["query_id"], []).append((row["score"], row["passage_id"]))
    passage_ids = {passage for run_hits in hits.values() for ranked in run_hits.values() for _, passage in ranked}
    rows = first_rows(passages, Passages, "passage_id", passage_ids, ["doc_id"])
    document_of = {passage: row["doc_id"] for passage, row in rows.items()}
    return {
        name: {query: _fold(query, ranked, document_of, settings) for query, ranked in run_hits.items()}
        for name, run_hits in hits.items()
    }


def relevant_documents(qrels: Artifact[Qrels], query_ids: Sequence[str], least: int) -> dict[str, dict[str, int]]:
    """Return the grades of the queries' relevant documents."""
    table = read_table(qrels, Qrels)
    table = table.filter(pc.is_in(table["query_id"], pa.array(query_ids, pa.string())))
    grades: dict[str, dict[str, int]] = {}
    for row in table.to_pylist():
        if row["grade"] >= least:
            grades.setdefault(row["query_id"], {})[row["doc_id"]] = row["grade"]
    return grades


def _fold(
    query: str, hits: Sequence[tuple[float, str]], document_of: Mapping[str, str], settings: Winning
) -> Documents:
    best: Documents = {}
    for score, passage in sorted(hits, reverse=True):
        if not (settings.ignore_identical_ids and document_of[passage] == query):
            best.setdefault(document_of[passage], (score, passage))
    return dict(sorted(best.items(), key=lambda document: (document[1][0], document[0]), reverse=True))


def _case(query: str, ranked: Mapping[str, Mapping[str, Documents]], grades: Mapping[str, int]) -> dict[str, Any]:
    """Return ranks and ids of a query's passages; its relevant passage is the one that either run ranks highest."""
    ranks: dict[str, int | None] = {}
    first: dict[str, Any] = {}
    relevant_hits: list[tuple[int, int, str, str]] = []
    for name, documents_of in ranked.items():
        documents = [(doc, passage) for doc, (_, passage) in documents_of.get(query, {}).items()]
        hits = [(rank, -grades[doc], doc, passage) for rank, (doc, passage) in enumerate(documents, 1) if doc in grades]
        ranks[name] = hits[0][0] if hits else None
        relevant_hits += hits
        for doc, passage in documents[:1]:
            first[name] = {"doc_id": doc, "passage_id": passage, "relevant": doc in grades}
    relevant: dict[str, Any] | None = None
    if relevant_hits:
        relevant = dict(zip(("doc_id", "passage_id"), min(relevant_hits)[2:], strict=True))
    elif grades:
        relevant = {"doc_id": min(grades, key=lambda doc: (-grades[doc], doc)), "passage_id": None}
    return {"ranks": ranks, "first": first, "relevant": relevant}


def _passages(cases: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the passages whose texts are shown."""
    relevant = {case["relevant"]["passage_id"] for case in cases if case["relevant"]} - {None}
    return relevant | {first["passage_id"] for case in cases for first in case["first"].values()}


def _unranked(cases: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the relevant documents that neither run retrieved: their first passage is shown."""
    return {case["relevant"]["doc_id"] for case in cases if case["relevant"] and not case["relevant"]["passage_id"]}


def _with_texts(case: Mapping[str, Any], texts: Mapping[str, Any], first_texts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the case with titles and texts of its passages."""
    relevant = case["relevant"]
    text = relevant and (
        texts[relevant["passage_id"]] if relevant["passage_id"] else first_texts.get(relevant["doc_id"])
    )
    return {
        "ranks": case["ranks"],
        "relevant": {"doc_id": relevant["doc_id"], **_truncated(text)} if text else None,
        "first": {name: {**first, **_truncated(texts[first["passage_id"]])} for name, first in case["first"].items()},
    }


def _truncated(row: Mapping[str, Any]) -> dict[str, str]:
    text = row["text"]
    return {"title": row["title"], "text": text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"}
