"""The queries on which a run is clearest better and clearest worse than its baseline, with the texts that say why.

By metric's difference, then by query id. Of each query it tells what was asked, a relevant passage, and for both runs
what they ranked first and at which rank the first relevant document stands.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field

from storage.artifact import Artifact
from storage.files import write_atomically
from storage.rows import blocks_with_keys, first_rows, read_table
from storage.settings import Settings
from storage.tables import Analysis, Metrics, Passages, Qrels, Queries, Run
from tasks.stage import stage

CHARACTERS = 700  # of a text; a passage of MS MARCO has some 340, a document many thousands

Documents = dict[str, tuple[float, str]]
"""Documents in the order of their ranks, each with its score and its best passage."""


class Winning(Settings):
    """Which queries to show."""

    run: str
    baseline: str
    metric: str
    relevant_from: int
    """The least grade of a relevant document."""
    ignore_identical_ids: bool
    """Whether a document with the query's id is no result."""
    examples: int = Field(ge=1)
    """Of wins as of losses, at most."""


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
    """Write `analysis.json`: `wins` and `losses`; without qrels no passage is called relevant."""
    better, worse = clearest(metrics.path / "queries.parquet", settings)
    chosen = [each["query_id"] for each in [*better, *worse]]
    found = ranked({settings.run: run, settings.baseline: baseline}, passages, chosen, settings)
    grades = relevant(qrels, chosen, settings.relevant_from) if qrels else {}
    told = [_told(query, found, grades.get(query, {})) for query in chosen]
    asked = first_rows(queries, Queries, "query_id", chosen, ["text"])
    shown = first_rows(passages, Passages, "passage_id", _passages(told), ["title", "text"])
    firsts = first_rows(passages, Passages, "doc_id", _unranked(told), ["title", "text"])
    lines = [
        {**value, "query": asked[value["query_id"]]["text"], **_filled(each, shown, firsts)}
        for value, each in zip([*better, *worse], told, strict=True)
    ]
    content = {name: getattr(settings, name) for name in ("run", "baseline", "metric")}
    content |= {"wins": lines[: len(better)], "losses": lines[len(better) :]}
    write_atomically(out / "analysis.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def clearest(by_query: Path, settings: Winning) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The queries of the greatest gains and of the greatest losses, with both runs' values."""
    pair = [settings.run, settings.baseline]
    rows = pq.read_table(by_query, filters=[("metric", "==", settings.metric), ("run", "in", pair)])
    values: dict[str, dict[str, float]] = {}
    for row in rows.to_pylist():
        values.setdefault(row["query_id"], {})[row["run"]] = row["value"]
    gains = sorted((found[pair[1]] - found[pair[0]], query) for query, found in values.items())  # the greatest first
    losses = sorted((-lost, query) for lost, query in gains)
    better, worse = ([query for change, query in each if change < 0][: settings.examples] for each in (gains, losses))
    return _valued(better, values), _valued(worse, values)


def _valued(queries: Sequence[str], values: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    return [{"query_id": query, "values": values[query]} for query in queries]


def ranked(
    runs: Mapping[str, Artifact[Run]], passages: Artifact[Passages], chosen: Sequence[str], settings: Winning
) -> dict[str, dict[str, Documents]]:
    """By run and chosen query the documents in the order in which they are measured."""
    rows: dict[str, dict[str, list[tuple[float, str]]]] = {name: {} for name in runs}
    for name, run in runs.items():
        for block in blocks_with_keys(run, Run, "query_id", chosen, ["passage_id", "score"]):
            for row in block.to_pylist():
                rows[name].setdefault(row["query_id"], []).append((row["score"], row["passage_id"]))
    seen = {passage for of_run in rows.values() for found in of_run.values() for _, passage in found}
    known = first_rows(passages, Passages, "passage_id", seen, ["doc_id"])
    documents = {passage: row["doc_id"] for passage, row in known.items()}
    return {
        name: {query: _folded(query, found, documents, settings) for query, found in of_run.items()}
        for name, of_run in rows.items()
    }


def relevant(qrels: Artifact[Qrels], chosen: Sequence[str], least: int) -> dict[str, dict[str, int]]:
    """The chosen queries' relevant documents with their grades."""
    table = read_table(qrels, Qrels)
    table = table.filter(pc.is_in(table["query_id"], pa.array(chosen, pa.string())))
    found: dict[str, dict[str, int]] = {}
    for row in table.to_pylist():
        if row["grade"] >= least:
            found.setdefault(row["query_id"], {})[row["doc_id"]] = row["grade"]
    return found


def _folded(query: str, found: Sequence[tuple[float, str]], owner: Mapping[str, str], settings: Winning) -> Documents:
    best: Documents = {}
    for score, passage in sorted(found, reverse=True):
        if not (settings.ignore_identical_ids and owner[passage] == query):
            best.setdefault(owner[passage], (score, passage))
    return dict(sorted(best.items(), key=lambda document: (document[1][0], document[0]), reverse=True))


def _told(query: str, found: Mapping[str, Mapping[str, Documents]], grades: Mapping[str, int]) -> dict[str, Any]:
    """Ranks and the names of what is to be shown; of the relevant documents the one that either run ranks highest."""
    ranks: dict[str, int | None] = {}
    first: dict[str, Any] = {}
    places: list[tuple[int, int, str, str]] = []
    for name, of_run in found.items():
        listed = [(doc, passage) for doc, (_, passage) in of_run.get(query, {}).items()]
        here = [(rank, -grades[doc], doc, passage) for rank, (doc, passage) in enumerate(listed, 1) if doc in grades]
        ranks[name] = here[0][0] if here else None
        places += here
        for doc, passage in listed[:1]:
            first[name] = {"doc_id": doc, "passage_id": passage, "relevant": doc in grades}
    shown: dict[str, Any] | None = None
    if places:
        shown = dict(zip(("doc_id", "passage_id"), min(places)[2:], strict=True))
    elif grades:
        shown = {"doc_id": min(grades, key=lambda doc: (-grades[doc], doc)), "passage_id": None}
    return {"ranks": ranks, "first": first, "relevant": shown}


def _passages(told: Sequence[Mapping[str, Any]]) -> set[str]:
    """The passages whose texts are shown."""
    relevant = {each["relevant"]["passage_id"] for each in told if each["relevant"]} - {None}
    return relevant | {one["passage_id"] for each in told for one in each["first"].values()}


def _unranked(told: Sequence[Mapping[str, Any]]) -> set[str]:
    """The relevant documents that neither run found: their first passage is shown."""
    return {each["relevant"]["doc_id"] for each in told if each["relevant"] and not each["relevant"]["passage_id"]}


def _filled(told: Mapping[str, Any], shown: Mapping[str, Any], firsts: Mapping[str, Any]) -> dict[str, Any]:
    """The same with texts."""
    named = told["relevant"]
    text = named and (shown[named["passage_id"]] if named["passage_id"] else firsts.get(named["doc_id"]))
    return {
        "ranks": told["ranks"],
        "relevant": {"doc_id": named["doc_id"], **_cut(text)} if text else None,
        "first": {name: {**each, **_cut(shown[each["passage_id"]])} for name, each in told["first"].items()},
    }


def _cut(row: Mapping[str, Any]) -> dict[str, str]:
    text = row["text"]
    return {"title": row["title"], "text": text if len(text) <= CHARACTERS else text[: CHARACTERS - 1] + "…"}
