"""A user's real queries with judgements, which decide together with the pseudo-queries and are never trained on."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from storage.datasets import beir
from storage.datasets.support.collection_files import BEIR_FOLDER, id_without_blanks
from storage.errors import UserError, quoted
from storage.formats.lines import plain_or_gzipped, read_lines
from storage.formats.records import QrelRow, QueryRow


@dataclass(frozen=True)
class Judgements:
    """Queries with a relevant document, and the judgements of their documents."""

    queries: list[QueryRow]
    qrels: list[QrelRow]
    left_out: list[QueryRow] = field(default_factory=list)
    """Queries to which no document is relevant: every system has 0 on them. They are not trained on either."""


Judged = tuple[list[QueryRow], list[tuple[str, QrelRow]]]
"""Queries, and judgements with their places ("FILE line 17")."""


def read_judgements(file: Path, documents: Collection[str], form: str = BEIR_FOLDER) -> Judgements:
    """Return the queries and judgements of a file, which are of these documents of a collection of this form.

    The file is a qrels file of BEIR (a header, then query-id, corpus-id, score) with queries.jsonl in its folder or
    the one above, or has a query's text, a document's id and, if there is one, a grade in each line, with tabs between.
    Raises UserError for what the evaluation would refuse after the training.
    """
    if not file.is_file():
        found = "is a folder; name a file" if file.is_dir() else "there is no such file"
        raise UserError(f"--judgements {file}: {found}")
    first = next((text for _, text in read_lines(file)), "")
    is_beir = [name.strip().lower().replace("_", "-") for name in first.split("\t")] == beir.HEADER
    document_id = partial(id_without_blanks, form=form)  # a user names a file or a row as the collection does
    queries, placed = _of_beir(file, document_id) if is_beir else _of_texts(file, document_id)
    known, grades = set(documents), dict[tuple[str, str], int]()
    for number, (where, row) in enumerate(placed):
        if grades.setdefault((row["query_id"], row["doc_id"]), row["grade"]) != row["grade"]:
            raise UserError(
                f"--judgements {where}: document {quoted(row['doc_id'])} has two grades for one query; keep one line"
            )
        if row["doc_id"] not in known:
            remedy = "remove the line"
            if (whole := row["doc_id"].removesuffix(".0")) in known:
                remedy = f"write {whole}"
            elif not number and not is_beir:
                remedy = "remove the line (if it is a header: expected none)"
            raise UserError(
                f"--judgements {where}: document {quoted(row['doc_id'])} is not in the collection; {remedy}"
            )
    relevant = {query_id for (query_id, _), grade in grades.items() if grade > 0}
    if not relevant:
        raise UserError(f"--judgements {file}: expected a relevant document, with a grade above 0; found none")
    kept = [row for row in queries if row["query_id"] in relevant]
    qrels = [row for _, row in placed if row["query_id"] in relevant]
    left_out = [row for row in queries if row["query_id"] not in relevant]
    return _without_ids_of_documents(Judgements(kept, qrels, left_out))


def _of_beir(file: Path, document_id: Callable[[str], str]) -> Judged:
    folders = (file.parent, file.parent.parent)
    folder = next((folder for folder in folders if plain_or_gzipped(folder / "queries.jsonl")), None)
    if folder is None:
        raise UserError(f"--judgements {file}: expected queries.jsonl in its folder or the one above; put it there")
    qrels = list(beir.judgements(file, document_id))
    wanted = {row["query_id"] for _, row in qrels}
    queries = [row for row in beir.all_queries(folder) if row["query_id"] in wanted]
    if missing := wanted - {row["query_id"] for row in queries}:
        raise UserError(f"--judgements {file}: query {quoted(min(missing))} is not in {folder}/queries.jsonl; add it")
    return queries, qrels


def _without_ids_of_documents(judged: Judgements) -> Judgements:
    """Return the judgements with other ids of queries if a query has the id of a document that is relevant to it.

    BEIR's evaluation takes a document of the query's id for the query itself, and removes it from the results. Where
    queries and documents are only numbered alike, it would remove what is to be found.
    """
    if not any(row["query_id"] == row["doc_id"] and row["grade"] > 0 for row in judged.qrels):
        return judged
    queries: list[QueryRow] = [{**row, "query_id": f"query-{row['query_id']}"} for row in judged.queries]
    qrels: list[QrelRow] = [{**row, "query_id": f"query-{row['query_id']}"} for row in judged.qrels]
    return Judgements(queries, qrels, judged.left_out)


def _of_texts(file: Path, document_id: Callable[[str], str]) -> Judged:
    queries: dict[str, str] = {}
    qrels: list[tuple[str, QrelRow]] = []
    for where, text in read_lines(file):
        columns = [column.strip() for column in text.split("\t")]
        grade = columns[2] if len(columns) == 3 else "1"
        is_grade = beir.INTEGER.fullmatch(grade) and int(grade) in beir.GRADES
        if len(columns) not in (2, 3) or not columns[0] or not is_grade:
            raise UserError(
                f"{where}: expected a query, a document's id and maybe a grade with tabs, found {text[:60]!r}"
            )
        query_id = queries.setdefault(columns[0], f"judged{len(queries)}")
        qrels.append((where, {"query_id": query_id, "doc_id": document_id(columns[1]), "grade": int(grade)}))
    if not qrels:
        raise UserError(f"--judgements {file}: expected a query and a document's id in each line, found none")
    return [{"query_id": name, "text": text} for text, name in queries.items()], qrels
