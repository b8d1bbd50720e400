"""Read queries and judgements in the formats of MS MARCO and TREC: tab-separated rows and qrels, plain or gzipped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from storage.errors import UserError, quoted
from storage.formats.ids import Unique, checked_id
from storage.formats.lines import read_lines
from storage.formats.records import QrelRow, QueryRow


def read_columns(file: Path, num_columns: int) -> Iterator[tuple[str, list[str]]]:
    """Yield ("FILE line 17", columns) for every row. The first column is an id."""
    lines = read_lines(file)
    for where, text in lines:
        columns = text.split("\t")
        if len(columns) != num_columns:
            raise UserError(wrong_columns(where, len(columns), num_columns, text, lines))
        checked_id(columns[0], where)
        yield where, columns


def wrong_columns(where: str, columns: int, expected: int, text: str, lines: Iterator[tuple[str, str]]) -> str:
    """Return the message for a row with a wrong number of columns. A file's last row may be cut off."""
    cut_off = columns < expected and next(lines, None) is None
    hint = "; the file ends here: if it is cut off, fetch it again" if cut_off else ""
    return f"{where}: expected {expected} columns with tabs between, found {columns}: {text[:60]!r}{hint}"


def read_queries(file: Path) -> Iterator[QueryRow]:
    """Yield the rows of a file of query id and query."""
    seen = Unique()
    for where, (query_id, text) in read_columns(file, 2):
        if not text.strip():
            raise UserError(f"{where}: query {query_id} is empty: expected a text; remove the row")
        seen.add(query_id)
        yield {"query_id": query_id, "text": text}
    seen.check(lambda: ids(file))


def read_qrels(file: Path, unit: str) -> Iterator[QrelRow]:
    """Yield the rows of a file of query id, 0 or Q0, id of the judged unit ("passage") and grade, with tabs or blanks.

    A duplicate row is yielded once. Raises UserError for two grades of one pair.
    """
    rows = ((where, _judgement(text, where, unit)) for where, text in read_lines(file))
    yield from distinct_judgements(rows, unit, f"{file}: the split is empty: expected judgements")


def distinct_judgements(rows: Iterable[tuple[str, QrelRow]], unit: str, problem: str) -> Iterator[QrelRow]:
    """Yield each of the judgements ("FILE line 17", row) once.

    Raises UserError for two grades of one pair, and with the text `problem` where there is no row.
    """
    grades: dict[tuple[str, str], int] = {}
    for where, row in rows:
        pair = (row["query_id"], row["doc_id"])
        earlier = grades.setdefault(pair, row["grade"])
        if earlier != row["grade"]:
            raise UserError(f"{where}: query {pair[0]} and {unit} {pair[1]} had grade {earlier} before; keep one row")
    if not grades:
        raise UserError(problem)
    for (query_id, doc_id), grade in grades.items():
        yield {"query_id": query_id, "doc_id": doc_id, "grade": grade}


def ids(file: Path) -> Iterator[tuple[str, str]]:
    """Yield ("FILE line 17", id) for every row: the text before the first tab."""
    return ((where, text.partition("\t")[0]) for where, text in read_lines(file))


def _judgement(text: str, where: str, unit: str) -> QrelRow:
    columns = text.split()
    if len(columns) != 4 or columns[1] not in ("0", "Q0"):
        raise UserError(f"{where}: expected query, 0 or Q0, {unit} and grade, found {text[:60]!r}")
    query_id, _, doc_id, grade = columns
    if not grade.removeprefix("-").isdecimal() or len(grade) > 9:
        raise UserError(f"{where}: expected a whole number as grade, found {quoted(grade)}")
    return {"query_id": query_id, "doc_id": doc_id, "grade": int(grade)}
