"""Queries of a run with their values, ranks, positives and negatives, and the pseudo-queries of a passage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow.compute as pc

from flows.browse.contents import Collection, Contents, RankedSystem, Training
from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import blocks_with_keys, first_rows, read_table
from storage.store.lookup import lookup, parameter_inputs
from storage.store.store import Store
from storage.tables import Negatives, Passages, Positives, PseudoQueries, Qrels, Queries, Run
from tasks.evaluation.paired_runs import values_by_query
from tasks.evaluation.query_wins import Winning, rank_documents, relevant_documents

PER_PAGE = 50
NEGATIVES_SHOWN = 30
Row = dict[str, Any]


def query_text(queries: Artifact[Queries], query_id: str) -> str:
    """Return the text of a query. Raises UserError for one that the split does not have."""
    rows = first_rows(queries, Queries, "query_id", [query_id], ["text"])
    if query_id not in rows:
        raise UserError(f"query {query_id!r}: the split has none of this id; the list of queries has all")
    return str(rows[query_id]["text"])


def compared(collection: Collection, pair: tuple[str, str], metric: str) -> list[Row]:
    """Return the queries with the values of two systems, in the order of the first's advantage; ties by id."""
    if collection.metrics is None or collection.queries is None:
        return []
    values, rows = values_by_query(collection.metrics), [collection.systems[name].row for name in pair]
    first, second = (values.get((row, metric)) for row in rows)
    if first is None or second is None:
        return []
    texts = dict(zip(*_ids_and_texts(collection.queries), strict=True))
    compared_rows = [
        {"query_id": query, "text": texts[query], "values": (first[query], second[query]),
         "difference": float(first[query] - second[query])}
        for query in first.index
    ]  # fmt: skip
    return sorted(compared_rows, key=lambda row: (-row["difference"], row["query_id"]))


def counts(rows: Sequence[Row]) -> dict[str, int]:
    """Return the numbers of queries on which the first system is better, equal and worse."""
    signs = [(row["difference"] > 0) - (row["difference"] < 0) for row in rows]
    return {"better": signs.count(1), "equal": signs.count(0), "worse": signs.count(-1)}


def containing(rows: Sequence[Row], words: str) -> list[Row]:
    """Return the rows whose text contains these words, without regard to case."""
    return [row for row in rows if words.lower() in row["text"].lower()]


def relevant(collection: Collection, pair: tuple[str, str], query_id: str) -> list[Row]:
    """Return the relevant documents of a query with the text of a passage, and their ranks in both systems."""
    if collection.qrels is None:
        return []
    grades = relevant_documents(collection.qrels, [query_id], collection.relevant_from).get(query_id, {})
    rankings = {name: ranking for name in pair if (ranking := collection.systems[name].ranking)}
    settings = Winning(
        run=pair[0], baseline=pair[1], metric="", relevant_from=collection.relevant_from, examples=1,
        ignore_identical_ids=collection.ignore_identical_ids,
    )  # fmt: skip
    ranked = {
        name: list(by_query.get(query_id, {}))
        for name, by_query in rank_documents(rankings, collection.passages, [query_id], settings).items()
    }
    texts = first_rows(collection.passages, Passages, "doc_id", grades, ["passage_id", "title", "text"])
    return [
        {"grade": grade, **texts.get(doc_id, {"doc_id": doc_id, "passage_id": None, "title": "", "text": ""}),
         "ranks": [documents.index(doc_id) + 1 if doc_id in (documents := ranked.get(name, [])) else None
                   for name in pair]}
        for doc_id, grade in grades.items()
    ]  # fmt: skip


def grades(collection: Collection, query_id: str, passage_ids: Sequence[str]) -> dict[str, int]:
    """Return the grades of those passages that are relevant to a query."""
    if collection.qrels is None:
        return {}
    by_document = relevant_documents(collection.qrels, [query_id], collection.relevant_from).get(query_id, {})
    rows = first_rows(collection.passages, Passages, "passage_id", passage_ids, ["doc_id"])
    return {name: by_document[row["doc_id"]] for name, row in rows.items() if row["doc_id"] in by_document}


def ranked(ranking: Artifact[Run], query_id: str, top: int) -> list[Row]:
    """Return the first passages of an evaluated ranking for a query, with their scores."""
    blocks = blocks_with_keys(ranking, Run, "query_id", [query_id], ["passage_id", "rank", "score"])
    rows = [row for block in blocks for row in block.to_pylist()]
    return sorted(rows, key=lambda row: row["rank"])[:top]


def member_scores(system: RankedSystem, query_id: str, passage_ids: Sequence[str]) -> dict[str, list[float | None]]:
    """Return the scores of passages in the rankings that a system fuses; None where a ranking lacks the passage."""
    scores = {}
    for name, ranking in system.members.items():
        rows = blocks_with_keys(ranking, Run, "query_id", [query_id], ["passage_id", "score"])
        of_passage = {row["passage_id"]: row["score"] for block in rows for row in block.to_pylist()}
        scores[name] = [of_passage.get(passage_id) for passage_id in passage_ids]
    return scores


def training_queries(training: Training, words: str) -> list[Row]:
    """Return the queries of a round that have a positive and contain these words, in the order of the table."""
    with_positive = set(read_table(training.positives, Positives, ["query_id"])["query_id"].to_pylist())
    ids, texts = _ids_and_texts(training.queries, words)
    return [
        {"query_id": query, "text": text}
        for query, text in zip(ids, texts, strict=True)
        if query in with_positive
    ]  # fmt: skip


def has_query(training: Training, query_id: str) -> bool:
    """Return whether a round has trained with a query."""
    return bool(_rows(training.positives, Positives, query_id, ["passage_id"]))


def training_passages(training: Training, query_id: str) -> tuple[list[Row], list[Row]]:
    """Return the positives and the negatives of a training query, with texts."""
    positives = _rows(training.positives, Positives, query_id, ["passage_id"])
    negatives = sorted(
        _rows(training.negatives, Negatives, query_id, ["passage_id", "rank", "score"]), key=lambda row: row["rank"]
    )
    texts = first_rows(
        training.passages, Passages, "passage_id", [row["passage_id"] for row in [*positives, *negatives]],
        ["title", "text"],
    )  # fmt: skip
    both = ([{**row, **texts[row["passage_id"]]} for row in rows] for rows in (positives, negatives[:NEGATIVES_SHOWN]))
    first, second = both
    return first, second


def passage(collection: Collection, passage_id: str) -> Row:
    """Return a passage. Raises UserError for an unknown one."""
    columns = ["doc_id", "title", "text", "num_tokens"]
    rows = first_rows(collection.passages, Passages, "passage_id", [passage_id], columns)
    if passage_id not in rows:
        raise UserError(f"passage {passage_id!r}: {collection.name} has none of this id; search for its words")
    return rows[passage_id]


def pseudo_queries(contents: Contents, collection: Collection, passage_id: str) -> list[Row]:
    """Return the pseudo-queries of a passage, those that were dropped too, with the reason."""
    columns = ["rank", "query", "generator", "kept", "reason", "round_trip", "relevance"]
    rows: list[Row] = []
    for artifact in contents.pseudo_queries:
        if _passages_of(artifact.reference, contents.store) == collection.passages.reference:
            rows += _rows(artifact, PseudoQueries, passage_id, columns, key="passage_id")
    return sorted(rows, key=lambda row: row["rank"])


def document_queries(contents: Contents, doc_id: str) -> list[Row]:
    """Return the pseudo-queries of a document of an adaptation with their split.

    Collections of an adaptation have the same document ids, but split the documents into different passages.
    """
    rows: list[Row] = []
    for of in contents.document_queries:
        ids = [row["query_id"] for row in _rows(of.labels, of.table, doc_id, ["query_id"], key="doc_id")]
        texts = first_rows(of.queries, Queries, "query_id", ids, ["text"])
        rows += [{"query": row["text"], "split": of.split} for row in texts.values()]
    return rows


def judged_for(collection: Collection, doc_id: str) -> list[Row]:
    """Return the split's queries to which a document is relevant."""
    if collection.qrels is None or collection.queries is None:
        return []
    rows = _rows(collection.qrels, Qrels, doc_id, ["query_id", "grade"], key="doc_id")
    ids = [row["query_id"] for row in rows if row["grade"] >= collection.relevant_from]
    return list(first_rows(collection.queries, Queries, "query_id", ids, ["text"]).values())


def trained_with(contents: Contents, collection: Collection, passage_id: str) -> dict[str, dict[str, list[Row]]]:
    """Return by round the training queries whose positive and whose negative a passage is."""
    uses: dict[str, dict[str, list[Row]]] = {}
    for name, training in contents.trainings.items():
        if training.passages.reference == collection.passages.reference:
            tables: list[tuple[str, Artifact[Any], type[Any]]] = [
                ("positive", training.positives, Positives), ("negative", training.negatives, Negatives)
            ]  # fmt: skip
            uses[name] = {
                kind: _with_text(training, (row["query_id"] for row in _rows(labels, table, passage_id, ["query_id"],
                                                                              key="passage_id")))
                for kind, labels, table in tables
            }  # fmt: skip
    return {name: by_kind for name, by_kind in uses.items() if any(by_kind.values())}


def _with_text(training: Training, query_ids: Iterable[str]) -> list[Row]:
    return list(first_rows(training.queries, Queries, "query_id", query_ids, ["text"]).values())[:PER_PAGE]


def _passages_of(pseudo_queries: str, store: Store) -> str | None:
    """Return the passages of pseudo-queries, which a stage without them, such as a filter, has from its input.

    Returns None where an earlier stage is no longer in the store.
    """
    if (manifest := lookup(pseudo_queries, store)) is None:
        return None
    inputs = dict(parameter_inputs(manifest))
    if "passages" in inputs:
        return inputs["passages"]
    return _passages_of(inputs.get("pseudo_queries") or inputs["corpora"], store)


def _rows(
    artifact: Artifact[Any], table: type[Any], wanted: str, columns: list[str], key: str = "query_id"
) -> list[Row]:
    return [row for block in blocks_with_keys(artifact, table, key, [wanted], columns) for row in block.to_pylist()]


def _ids_and_texts(queries: Artifact[Queries], words: str = "") -> list[list[str]]:
    """Return the ids and the texts of the queries that contain these words."""
    rows = read_table(queries, Queries)
    if words:
        rows = rows.filter(pc.match_substring(rows["text"], words, ignore_case=True))
    return [rows["query_id"].to_pylist(), rows["text"].to_pylist()]
