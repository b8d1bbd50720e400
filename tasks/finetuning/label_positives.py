"""Say which passages are positives: of judged documents, or of the pseudo-queries made of them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.artifact import Artifact
from storage.errors import UserError
from storage.pseudo_queries import kept_queries
from storage.rows import parts, read_rows, read_table, write_rows
from storage.tables import Passages, Positives, PseudoQueries, Qrels, Queries, Run
from tasks.session import tell
from tasks.stage import stage

log = logging.getLogger(__name__)

Row = dict[str, Any]

ROWS_PER_BATCH = 1_000_000  # each batch looks all wanted passages up, so the more rows share one the better


@stage(version=1, table=Positives)
def label_passages(out: Path, qrels: Artifact[Qrels], passages: Artifact[Passages], bm25_run: Artifact[Run]) -> None:
    """Write one positive for every query and document of grade above 0, in the qrels' order.

    It is the document's passage that stands highest in the run for that query, or the document's
    first passage where the run has none of them. A document without passages can be no positive.
    """
    judged = [row for row in read_rows(qrels, Qrels) if row["grade"] > 0]
    of_document = _passages_by_document(passages, {row["doc_id"] for row in judged})
    relevant = [row for row in judged if row["doc_id"] in of_document]
    if judged and not relevant:
        raise UserError(f"{qrels.path}: no relevant document has a passage in {passages.path}; expected some to learn")
    if dropped := len(judged) - len(relevant):
        tell(f"{dropped:,} of {len(judged):,} relevant documents have no passage, and nothing is learned of them")
    best = _best(bm25_run, relevant, of_document)
    write_rows(out, Positives, (
        {"query_id": query_id, "passage_id": best.get((query_id, doc_id), of_document[doc_id][0]), "doc_id": doc_id}
        for query_id, doc_id in ((row["query_id"], row["doc_id"]) for row in relevant)
    ))  # fmt: skip


@stage(version=1, table=Queries)
def adopt_pseudo_queries(out: Path, passages: Artifact[Passages], pseudo_queries: Artifact[PseudoQueries]) -> None:
    """Write the pseudo-queries that a collection without train queries trains on; ids are PASSAGE?RANK.

    A text that was generated for several documents says of none that it is relevant, and is left
    out; one that was generated several times for a document is kept once.
    """
    rows = ({"query_id": row["query_id"], "text": row["query"]} for row in _adopted(passages, pseudo_queries))
    if not write_rows(out, Queries, rows):
        raise UserError(
            f"{pseudo_queries.path}: every pseudo-query belongs to several documents; none can be trained on"
        )


@stage(version=1, table=Positives)
def adopt_positives(out: Path, passages: Artifact[Passages], pseudo_queries: Artifact[PseudoQueries]) -> None:
    """Write, for each query that `adopt_pseudo_queries` writes, the passage it was generated from."""
    write_rows(out, Positives, (
        {"query_id": row["query_id"], "passage_id": row["passage_id"], "doc_id": row["doc_id"]}
        for row in _adopted(passages, pseudo_queries)
    ))  # fmt: skip


def _passages_by_document(passages: Artifact[Passages], doc_ids: Iterable[str]) -> dict[str, list[str]]:
    rows = read_table(passages, Passages, ["passage_id", "doc_id"])
    wanted = rows.filter(pc.is_in(rows["doc_id"], value_set=pa.array(list(doc_ids), pa.string())))
    found: dict[str, list[str]] = {}
    for row in wanted.to_pylist():
        found.setdefault(row["doc_id"], []).append(row["passage_id"])
    return found


def _best(run: Artifact[Run], relevant: Sequence[Row], of_document: dict[str, list[str]]) -> dict[tuple[str, str], str]:
    """The highest passage in the run of each relevant pair of query and document that has one there."""
    pairs = dict.fromkeys((row["query_id"], row["doc_id"]) for row in relevant)
    wanted = [(*pair, passage_id) for pair in pairs for passage_id in of_document[pair[1]]]
    columns = list(zip(*wanted, strict=True)) or [(), (), ()]
    names = ("query_id", "doc_id", "passage_id")
    passages = pa.table({name: pa.array(each, pa.string()) for name, each in zip(names, columns, strict=True)})
    best: dict[tuple[str, str], Row] = {}
    for rows in _batches(run):
        for row in rows.join(passages, ["query_id", "passage_id"], join_type="inner", use_threads=False).to_pylist():
            pair = row["query_id"], row["doc_id"]
            if pair not in best or row["rank"] < best[pair]["rank"]:
                best[pair] = row
    return {pair: row["passage_id"] for pair, row in best.items()}


def _batches(run: Artifact[Run]) -> Iterator[pa.Table]:
    for path in parts(run.path):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(ROWS_PER_BATCH, columns=["query_id", "passage_id", "rank"]):
                yield pa.Table.from_batches([batch])


def _adopted(passages: Artifact[Passages], pseudo_queries: Artifact[PseudoQueries]) -> Iterator[Row]:
    ids = read_table(passages, Passages, ["passage_id", "doc_id"])
    document = dict(zip(ids["passage_id"].to_pylist(), ids["doc_id"].to_pylist(), strict=True))
    owners: dict[str, str | None] = {}  # a text's document; None where it has several
    for row in kept_queries(pseudo_queries):
        text, doc_id = _same_words(row["query"]), document[row["passage_id"]]
        owners[text] = doc_id if owners.setdefault(text, doc_id) == doc_id else None
    written: set[str] = set()
    for row in kept_queries(pseudo_queries):
        text, doc_id = _same_words(row["query"]), document[row["passage_id"]]
        if owners[text] is not None and text not in written:
            written.add(text)
            yield {**row, "query_id": f"{row['passage_id']}?{row['rank']}", "doc_id": doc_id}
    several = sum(owner is None for owner in owners.values())
    log.info("%d pseudo-queries adopted, %d texts belong to several documents", len(written), several)


def _same_words(text: str) -> str:
    return " ".join(text.casefold().split())
