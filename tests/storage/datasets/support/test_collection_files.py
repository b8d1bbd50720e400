"""A user's collection, in any of its forms."""

from __future__ import annotations

import csv
import gzip
import json
import os
from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.datasets.support.collection_files import kind, read_documents
from storage.errors import UserError

ROWS = [("a", "Rivers", "Water flows, slowly."), ("b", "", 'He said "no"\nand left.'), ("c", "Ünïcode", "河")]


def as_rows(path: Path) -> list[tuple[str, str, str]]:
    return [(row["doc_id"], row["title"], row["text"]) for row in read_documents(path)]


def write(folder: Path, form: str) -> Path:
    """Write the rows in a form."""
    values = [{"id": name, "title": title, "text": text} for name, title, text in ROWS]
    file = folder / f"texts.{form}"
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist([{**row, "other": 1.0} for row in values]), file)
    elif form == "jsonl.gz":
        file.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in values).encode()))
    else:
        delimiter = "\t" if form == "tsv" else ","
        quoted = ['"' + text.replace('"', '""') + '"' for _, _, text in ROWS]
        if form == "tsv":  # has no quotes, and so no line ends
            quoted = [text.replace("\n", " ") for _, _, text in ROWS]
        lines = [delimiter.join((name, title, text)) for (name, title, _), text in zip(ROWS, quoted, strict=True)]
        file.write_text("\n".join([delimiter.join(("id", "title", "text")), *lines]) + "\n")
    return file


@pytest.mark.parametrize("form", ["jsonl.gz", "csv", "tsv", "parquet"])
def test_a_file_of_rows_is_read_in_every_form(form: str, tmp_path: Path) -> None:
    rows = as_rows(write(tmp_path, form))

    assert rows == ([(*row[:2], row[2].replace("\n", " ")) for row in ROWS] if form == "tsv" else ROWS)


def test_a_quotation_mark_in_tsv_is_text(tmp_path: Path) -> None:
    (tmp_path / "texts.tsv").write_text('id\ttext\n1\t"Quoted start\n2\tsecond\n')

    assert as_rows(tmp_path / "texts.tsv") == [("1", "", '"Quoted start'), ("2", "", "second")]


def test_the_first_row_of_json_with_a_column_chooses_it(tmp_path: Path) -> None:
    rows = ['{"body": "a"}', '{"id": 2, "body": "b", "title": "T", "text": "x"}', '{"id": 5, "body": "c", "name": "N"}']
    (tmp_path / "texts.jsonl").write_text("\n".join(rows))

    assert as_rows(tmp_path / "texts.jsonl") == [("1", "", "a"), ("2", "T", "b"), ("5", "", "c")]


def test_blank_lines_within_a_text_are_kept_in_every_form(tmp_path: Path) -> None:
    text = "para one\n\n\npara two"
    (tmp_path / "texts.jsonl").write_text(json.dumps({"id": "a", "title": "T", "text": text}))
    (tmp_path / "texts.csv").write_text(f'\nid,title,text\n\na,T,"{text}"\n\n')
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "a.md").write_text(f"\n# T\n\n{text}\n\n")

    expected = [("a", "T", text)]
    assert as_rows(tmp_path / "texts.jsonl") == as_rows(tmp_path / "texts.csv") == expected
    assert as_rows(tmp_path / "pages") == [("a.md", "T", text)]


@pytest.mark.parametrize(("first", "second"), [("a  b.txt", "a b.txt"), ("a b.txt", "a%20b.txt")])
def test_files_whose_ids_become_equal_are_both_named(first: str, second: str, tmp_path: Path) -> None:
    for name in (first, second, "c.txt"):
        (tmp_path / name).write_text(name)

    with pytest.raises(UserError) as error:
        as_rows(tmp_path)

    already = f"{tmp_path / second}: the id a%20b.txt is already in {tmp_path / first}; "
    assert str(error.value) == already + "an id is the file's name with %20 for blanks; rename one of the files"


def test_a_beir_folder_and_a_folder_of_pages_are_read(tmp_path: Path) -> None:
    beir, pages = tmp_path / "beir", tmp_path / "pages"
    beir.mkdir()
    (beir / "corpus.jsonl").write_text('{"_id": "d1", "title": "T", "text": "x"}\n')
    (pages / "sub dir").mkdir(parents=True)
    (pages / "one.md").write_text("# Salt\n\nMelts ice.\n")
    (pages / "two.txt").write_text("# no heading here\n")
    (pages / "sub dir" / "three.html").write_text(
        "<html><head><title> A\n title</title><style>p {}</style></head><body><nav>menu</nav><p>One &amp; two</p>"
        "<script>alert(1)</script><div>three<br>four</div></body></html>"
    )
    (pages / "picture.png").write_bytes(b"\x89PNG")
    (pages / ".git").mkdir()
    (pages / ".git" / "notes.txt").write_text("no document")

    assert kind(beir) == "a folder in BEIR's layout"
    assert as_rows(beir) == [("d1", "T", "x")]
    assert as_rows(pages) == [
        ("one.md", "Salt", "Melts ice."),
        ("sub%20dir/three.html", "A title", "One & two\nthree\nfour"),
        ("two.txt", "", "# no heading here"),
    ]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("one<footer><p>Imprint</p></footer>two<nav>menu</nav>three", "one\ntwo\nthree"),
        (
            "<nav><h1>Road salt</h1></nav><header><h1>Road\n<b>salt</b></h1></header>Melts.<h1>Road salt</h1>",
            "Melts.\nRoad salt",
        ),
        ("<h1>Road salt</h1>Melts ice.", "Melts ice."),
        ("<h1>Salt</h1>Melts.<h1>Road salt</h1>", "Salt\nMelts.\nRoad salt"),
        (
            "<form>Search <input></form>Salt melts ice.<form><p>Comment</p><button>Send</button></form>",
            "Salt melts ice.",
        ),
        (
            "<form><h1>Road salt</h1><p>Salt melts ice.</p><button>Buy</button> soon <select><option>1</select></form>"
            "Imprint",
            "Salt melts ice.\nsoon\nImprint",
        ),
        (
            f"<p>Salt melts ice.</p><form>Country<select>{'<option>a land</option>' * 9}</select></form>",
            "Salt melts ice.",
        ),
        ("<p>Salt melts ice.</p><form>User name</form><form>Newsletter for a</form>", "Salt melts ice."),
    ],
    ids=[
        "footer and navigation",
        "first heading",
        "text after it",
        "other heading",
        "forms",
        "form around all",
        "many options",
        "short forms",
    ],
)
def test_a_page_is_read_without_footer_forms_and_a_heading_that_is_its_title(
    body: str, text: str, tmp_path: Path
) -> None:
    (tmp_path / "a.html").write_text(f"<html><head><title>Road salt</title></head><body>{body}</body></html>")

    assert as_rows(tmp_path) == [("a.html", "Road salt", text)]


def test_rows_without_ids_are_numbered_and_latin_pages_are_decoded(tmp_path: Path) -> None:
    (tmp_path / "texts.csv").write_text("body\nfirst\nsecond\n")
    assert as_rows(tmp_path / "texts.csv") == [("1", "", "first"), ("2", "", "second")]
    (tmp_path / "pages").mkdir()
    page = '<html><head><meta charset="iso-8859-1"></head><body>Grün</body></html>'
    (tmp_path / "pages" / "a.html").write_bytes(page.encode("latin-1"))
    assert as_rows(tmp_path / "pages")[0][2] == "Grün"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("texts.csv", "id,words\n1,x\n", "expected a column of texts named text, contents"),
        ("texts.csv", 'id,text\n1,"open\n2,x\n3,y\n', r"texts\.csv line 2: not readable as CSV \(unexpected end"),
        ("texts.csv", 'id,text\n\n1,"x\n\ny"\n\n2,"open\n', r"texts\.csv line 7: not readable as CSV"),
        ("texts.csv", "id,text\n1,x\n2,a, b\n", "line 3: expected 2 fields as in the header, found 3; fix the row"),
        ("texts.csv", "\nid;title;text\n1;T;x, y\n", r"line 2: .* separated by ; and not by commas; convert the"),
        ("texts.csv", 'sep=;\n"id";"text"\n1;x\n', r"texts\.csv line 1: the columns look separated by ; and not"),
        ("texts.csv", '"id";"text"\n1;x\n', r"texts\.csv line 1: the columns look separated by ; and not by commas"),
        ("texts.csv", "id\ttext\n1\tx, y; z\n", r"line 1: .* by tabs and not by commas; write \.tsv in place of \.csv"),
        ("texts.csv", "id,title,text\n1,T,x\n\n2,y\n", "line 4: expected 3 fields as in the header, found 2"),
        ("texts.csv", "id,text,Text\n1,x,y\n", r"csv line 1: expected one column 'text', found text, Text; rename the"),
        ("texts.tsv", "body\ttext\n\none\ttwo\nthree\n", "line 4: expected 2 fields as in the header, found 1"),
        ("texts.csv", 'id,text\n\n1,"x\n\ny"\n\n1,z\n', "line 7: the id 1 is already in line 3; ids must be unique"),
        ("texts.jsonl", '{"words": "b"}\n', r"texts\.jsonl line 1: expected a column of texts"),
        (
            "texts.jsonl",
            '{"text": "a"}\n{"body": "b"}\n',
            "line 2: expected the column text, as in an earlier row; found",
        ),
        ("texts.jsonl", '{"_id": 1, "text": "a"}\n{"id": 2, "text": "b"}\n', "line 2: expected the column _id, as in"),
        ("texts.jsonl", '{"id": 1, "text": 5}\n', "the field 'text' must be text, found 5"),
        ("texts.jsonl", '{"id": 1, "text": "half \\ud83d"}\n', "line 1: the field 'text' has half a surrogate pair"),
        ("texts.jsonl", '{"id": "\\ud83d", "text": "a"}\n', "line 1: the field 'id' has half a surrogate pair"),
        ("texts.jsonl", '{"title": ["a"], "text": "a"}\n', "the field 'title' must be text"),
        ("texts.jsonl", '{"_id": {"$oid": 5}, "text": "a"}\n', "the field '_id' must be text"),
        ("texts.jsonl", '{"id": "a\\u0000b", "text": "a"}\n', "an id without control characters"),
        ("texts.jsonl", '{"id": 1, "text": "a"}\n{"id": 1, "text": "b"}\n', "line 2: the id 1 is already in line 1"),
        ("texts.parquet", "no table", "not a Parquet file"),
        ("texts.docx", "x", "or a file that ends in jsonl"),
    ],
)
def test_what_cannot_be_read_is_named(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)

    with pytest.raises(UserError, match=message):
        as_rows(tmp_path / name)


def test_all_columns_of_a_parquet_file_without_texts_are_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1], "words": ["x"]}), tmp_path / "texts.parquet")

    with pytest.raises(UserError, match="found id, words; rename"):
        as_rows(tmp_path / "texts.parquet")


def parquet(folder: Path, **columns: pa.Array) -> Path:
    pq.write_table(pa.table(columns), folder / "texts.parquet")
    return folder / "texts.parquet"


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("id", pa.array([date(2020, 1, 1)]), r"the field 'id' must be text, found datetime\.date\(2020, 1, 1\)"),
        ("title", pa.array([Decimal("1.5")]), r"the field 'title' must be text, found Decimal\('1\.5'\); convert the"),
        ("text", pa.array([[b"a"]]), r"the field 'text' must be text, found \[b'a'\]; convert the column to text"),
        ("text", pa.array([b"a\xff"]), r"the field 'text' is not UTF-8 \(byte 2 is 0xff\); expected text; convert the"),
        (
            "text",
            pa.array([b"a\xff"]).cast(pa.string(), safe=False),
            r"the column 'text' is not readable \('utf-8' codec .*\); expected text in UTF-8; convert the column",
        ),
    ],
)
def test_a_value_of_parquet_that_is_no_text_is_named(
    column: str, values: pa.Array, message: str, tmp_path: Path
) -> None:
    nothing, text = pa.nulls(1, values.type), pa.array(["first", "second"])
    file = parquet(tmp_path, **{"text": text, column: pa.concat_arrays([nothing, values])})

    with pytest.raises(UserError, match=rf"texts\.parquet row 2: {message}"):
        as_rows(file)


def test_text_in_a_binary_column_of_parquet_is_read(tmp_path: Path) -> None:
    file = parquet(tmp_path, id=pa.array([b"a"]), text=pa.array(["Grün".encode()]))

    assert as_rows(file) == [("a", "", "Grün")]


def test_not_a_number_is_a_missing_value(tmp_path: Path) -> None:
    nan = float("nan")
    file = parquet(tmp_path, id=pa.array([7.0, nan]), title=pa.array([nan, 1.5]), text=pa.array(["a", "b"]))

    assert as_rows(file) == [("7", "", "a"), ("2", "1.5", "b")]


def test_numbers_are_ids_and_titles_and_0_is_one(tmp_path: Path) -> None:
    rows = [{"id": 0, "title": 1984, "text": "a"}, {"id": 1, "title": None, "text": "b"}, {"id": None, "text": "c"}]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    assert as_rows(tmp_path / "texts.jsonl") == [("0", "1984", "a"), ("1", "", "b"), ("3", "", "c")]


def test_a_file_name_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("a")

    with pytest.raises(UserError, match="expected a file name in UTF-8"):
        as_rows(tmp_path)


def test_an_empty_folder_and_a_missing_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="or files that end in"):
        kind(tmp_path)
    with pytest.raises(UserError, match="there is no such file or folder"):
        kind(tmp_path / "nothing")


def test_long_fields_are_read_and_other_csv_readers_keep_their_limit(tmp_path: Path) -> None:
    limit, text = csv.field_size_limit(), "x" * 200_000
    (tmp_path / "long.csv").write_text(f"text\nshort\n{text}\n")

    rows = read_documents(tmp_path / "long.csv")
    assert next(rows)["text"] == "short"
    assert csv.field_size_limit() == limit
    assert [row["text"] for row in rows] == [text]
    assert csv.field_size_limit() == limit
