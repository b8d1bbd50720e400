"""Read the documents of a user's collection, whatever its form, as rows of id, title and text.

A collection is a folder in BEIR's layout; a file of JSON lines, CSV, TSV or Parquet with a column of texts; or a folder
of .txt, .md and .html files. Files may be gzipped where they are lines.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from storage.datasets import beir
from storage.datasets.support.html_texts import read_page
from storage.datasets.support.markdown_texts import read_markdown
from storage.errors import UserError
from storage.formats.ids import Unique, checked_id
from storage.formats.lines import plain_or_gzipped, read_json_lines, read_lines, text_field
from storage.formats.records import TextRow
from storage.rows import read_foreign_parquet

TEXTS = ("text", "contents", "content", "body", "passage", "document", "abstract")
TITLES = ("title", "headline", "name")
IDS = ("_id", "id", "doc_id", "docid", "docno", "pid")
ROLES = {"text": TEXTS, "title": TITLES, "id": IDS}
PAGES = (".html", ".htm", ".xhtml")
MARKDOWN = (".md", ".markdown")
PLAIN = (".txt", ".text", *MARKDOWN)
BEIR_FOLDER, TEXT_FILES = "a folder in BEIR's layout", "a folder of text files"
JSON_LINES, CSV, TSV, PARQUET = (f"a file of {name}" for name in ("JSON lines", "CSV", "TSV", "Parquet"))
VERSIONS = {TEXT_FILES: 4, CSV: 2, TSV: 2, PARQUET: 2}
"""The versions of the forms that were once read in another way.

Of text files, 1 lost blank lines, 2 kept front matter and footers, and 3 lost pages within a form. Of Parquet, 1 had
ids such as 2.0.
"""

Row = tuple[str, Mapping[str, Any]]
Columns = dict[str, str]  # the names of the columns with text, title and id, where there are any


def kind(path: Path) -> str:
    """Return the form of a collection in words. Raises UserError for a path that is none."""
    if path.is_dir():
        if plain_or_gzipped(path / "corpus.jsonl"):
            return BEIR_FOLDER
        if any(_text_files(path)):
            return TEXT_FILES
        raise UserError(
            f"{path}: expected corpus.jsonl, or files that end in {', '.join((*PLAIN, *PAGES))}; found none"
        )
    if not path.is_file():
        raise UserError(f"{path}: there is no such file or folder; name a collection")
    ending = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    names = {"jsonl": JSON_LINES, "ndjson": JSON_LINES, "csv": CSV, "tsv": TSV, "parquet": PARQUET}
    if ending not in names:
        raise UserError(
            f"{path}: expected a folder, or a file that ends in {', '.join(names)}; found .{ending}; convert it to one"
        )
    return names[ending]


def files(path: Path) -> list[Path]:
    """Return the files from which the documents are read. Raises UserError for a path that is no collection."""
    form = kind(path)
    if form == BEIR_FOLDER:
        return beir.files(path, "corpus", None)
    return _text_files(path) if form == TEXT_FILES else [path]


def read_documents(path: Path) -> Iterator[TextRow]:
    """Yield the documents of a collection in its order. Raises UserError with file and row for what cannot be read."""
    form = kind(path)
    if form == BEIR_FOLDER:
        yield from beir.texts(path, "corpus")
    elif form == TEXT_FILES:
        yield from _of_files(path)
    else:
        yield from _of_rows(path, form)


def id_without_blanks(name: str, form: str) -> str:
    """Return the document id for a file's path or a row's id, which may have blanks, in a collection of this form."""
    if form == BEIR_FOLDER:  # whose loader refuses blanks
        return name
    return ("%20" if form == TEXT_FILES else "_").join(name.split())


def _of_files(folder: Path) -> Iterator[TextRow]:
    """Yield a document for each file; its id is the path below the folder, without blanks."""
    ids = {file: _file_id(file, folder) for file in _text_files(folder)}
    seen = Unique()
    for doc_id in ids.values():
        seen.add(doc_id)
    seen.check(
        lambda: ((str(file), doc_id) for file, doc_id in ids.items()),
        remedy="an id is the file's name with %20 for blanks; rename one of the files",
    )
    for file, doc_id in ids.items():
        if file.suffix.lower() in PAGES:
            title, text = read_page(file)
        else:
            lines = "\n".join(line for _, line in read_lines(file, keep_blank=True))
            text = lines.strip("\n")
            title, text = read_markdown(text) if file.suffix.lower() in MARKDOWN else ("", text)
        yield {"doc_id": doc_id, "title": title, "text": text}


def _file_id(file: Path, folder: Path) -> str:
    return checked_id(id_without_blanks(_name(file.relative_to(folder)), TEXT_FILES), str(folder))


def _name(path: Path) -> str:
    """Return a path as text. Raises UserError for a name whose bytes are not UTF-8, as of archives in old encodings."""
    try:
        return bytes(path).decode()
    except UnicodeDecodeError:
        raise UserError(f"{bytes(path)!r}: expected a file name in UTF-8; rename the file") from None


def _text_files(folder: Path) -> list[Path]:
    return sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in (*PLAIN, *PAGES)
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
        and file.is_file()
    )


def _of_rows(file: Path, form: str) -> Iterator[TextRow]:
    """Yield a document for each row; a row whose id is missing or empty has its number as one."""
    seen = Unique()
    for _, document in _numbered(file, form):
        seen.add(document["doc_id"])
        yield document
    seen.check(
        lambda: ((where, document["doc_id"]) for where, document in _numbered(file, form)),
        remedy="ids must be unique, and a row without an id has its number, from 1, as one",
    )


def _numbered(file: Path, form: str) -> Iterator[tuple[str, TextRow]]:
    """Yield each row as a document, with the place of the row."""
    columns: Columns = {}
    for number, (where, row) in enumerate(_rows(file, form), 1):
        columns = _columns(row, where, columns)
        text, title, doc_id = (_value(row, columns.get(role), where) for role in ("text", "title", "id"))
        name = checked_id(id_without_blanks(doc_id, form) or str(number), where)
        yield where, {"doc_id": name, "title": title, "text": text}


def _value(row: Mapping[str, Any], column: str | None, where: str) -> str:
    """Return the text of a column, "" where it is missing; numbers are ids and titles, too, but no documents."""
    value = None if column is None else row.get(column)
    if column is None or value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, int | float) and column.lower() not in TEXTS:
        value = str(value)
    if isinstance(value, bytes):  # of Parquet, where some programs do not mark text as such
        value = _decoded(value, column, where)
    return text_field({column: value}, column, where)


def _decoded(value: bytes, column: str, where: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{where}: the field '{column}' is not UTF-8 (byte {error.start + 1} is 0x{value[error.start]:02x}); "
            "expected text; convert the column to text"
        ) from None


def _rows(file: Path, form: str) -> Iterator[Row]:
    if form == PARQUET:
        import pyarrow.parquet as pq

        try:
            names = pq.read_schema(file).names
        except (OSError, ValueError) as error:
            raise UserError(f"{file}: not a Parquet file ({str(error).splitlines()[0]})") from None
        wanted = [name for name in names if name.lower() in (*TEXTS, *TITLES, *IDS)]
        has_texts = any(name.lower() in TEXTS for name in wanted)  # without one the error lists all columns
        for where, row in read_foreign_parquet(file, wanted if has_texts else names):
            yield where, {name: _as_written(value) for name, value in row.items()}
    elif form == JSON_LINES:
        yield from read_json_lines(file)
    else:
        yield from _separated(file, "\t" if form == TSV else ",")


def _as_written(value: Any) -> Any:
    """Return a whole number as an integer: pandas makes a column of integers floats where one is missing."""
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53  # above, floats skip integers
    return int(value) if is_whole else value


def _separated(file: Path, delimiter: str) -> Iterator[Row]:
    """Yield the rows of CSV, whose fields may be quoted, or of TSV, where a quotation mark is text.

    Each is named by the line with which it begins. Blank lines between rows are left out.
    """
    if delimiter == ",":
        _check_commas(file)
    lines = (f"{text}\n" for _, text in read_lines(file, keep_blank=True))
    if delimiter == "\t":
        reader = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
    header, number = list[str](), 1
    try:
        for fields in _of_any_length(reader):
            where, number = f"{file} line {number}", reader.line_num + 1
            if not header or not fields:
                header = header or _checked_header(fields, where)
                continue
            if len(fields) != len(header):
                raise UserError(
                    f"{where}: expected {len(header)} fields as in the header, found {len(fields)}; fix the row"
                )
            yield where, dict(zip(header, fields, strict=True))
    except csv.Error as error:
        raise UserError(f"{file} line {number}: not readable as CSV ({error}); close and double the quotes") from None


def _checked_header(names: list[str], where: str) -> list[str]:
    """Return the names of a header. Raises UserError where the name of a column that is read occurs twice."""
    lower = [name.lower() for name in names]
    for role in ROLES.values():
        column = next((name for name in role if name in lower), None)
        same = [name for name in names if name.lower() == column]
        if len(same) > 1:
            raise UserError(f"{where}: expected one column {column!r}, found {', '.join(same)}; rename the others")
    return names


def _check_commas(file: Path) -> None:
    """Raise UserError for a header with semicolons or tabs and no comma, as some spreadsheets write it."""
    where, header = next(read_lines(file), ("", ""))
    if "," in header or not (";" in header or "\t" in header):
        return
    separator, remedy = ";", "convert the file to commas"
    if "\t" in header:
        separator, remedy = "tabs", "write .tsv in place of .csv in its name"
    raise UserError(f"{where}: the columns look separated by {separator} and not by commas; {remedy}")


def _of_any_length(reader: Iterator[list[str]]) -> Iterator[list[str]]:
    """Yield rows with fields above the csv module's limit, which all readers of the process share: it is restored."""
    while True:
        limit = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
        try:
            fields = next(reader, None)
        finally:
            csv.field_size_limit(limit)
        if fields is None:
            return
        yield fields


def _columns(row: Mapping[str, Any], where: str, chosen: Columns) -> Columns:
    """Return the columns that earlier rows have chosen, or the row's own for a role that none of them has.

    Raises UserError where no column has texts, and where the row lacks the chosen column of texts or of ids.
    """
    if len(chosen) < len(ROLES):
        by_name = {str(name).lower(): str(name) for name in row}
        own = {role: next((by_name[name] for name in names if name in by_name), "") for role, names in ROLES.items()}
        chosen = {role: name for role, name in own.items() if name} | chosen
        if "text" not in chosen:
            raise UserError(
                f"{where}: expected a column of texts named {', '.join(TEXTS)}; found {', '.join(by_name) or 'none'}; "
                "rename the one that has them to text"
            )
    if missing := [name for role, name in chosen.items() if role != "title" and name not in row]:
        raise UserError(
            f"{where}: expected the column {missing[0]}, as in an earlier row; found {', '.join(row) or 'none'}; "
            "give all rows the same columns"
        )
    return chosen
