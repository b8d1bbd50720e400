"""A file that is no text, or is cut off, is an error that says what it is; no part of it is read."""

import gzip
import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.errors import UserError
from storage.formats.json_arrays import read_json_array
from storage.formats.lines import answer_list, read_lines

LFS = (
    "version https://git-lfs.github.com/spec/v1\noid sha256:2d1d82656d2f75bcb5c8715decce03a365ad32cc\nsize 5836101213\n"
)
PAGE = "a web page or a server's message instead of the file; fetch the file itself"


def complaint(read: Callable[[], object]) -> str:
    with pytest.raises(UserError) as error:
        read()
    assert "\n" not in str(error.value)
    return str(error.value)


def zipped() -> bytes:
    with zipfile.ZipFile(file := io.BytesIO(), "w") as archive:
        archive.writestr("collection.tsv", "0\ta passage\n")
    return file.getvalue()


def tarred() -> bytes:
    with tarfile.open(fileobj=(file := io.BytesIO()), mode="w") as archive:
        archive.addfile(tarfile.TarInfo("collection.tsv"))
    return file.getvalue()


OTHERS = {
    "page": (b"<!DOCTYPE html>\n<html><body>Not Found", PAGE),
    "page without a type": (b"\n <HTML><head>", PAGE),
    "a store's message": (b'\xef\xbb\xbf<?xml version="1.0"?><Error><Code>BlobNotFound</Code></Error>', PAGE),
    "pointer": (LFS.encode(), "a pointer of Git LFS instead of the file; `git lfs pull` fetches the file"),
    "zip": (zipped(), "a zip archive; unpack it"),
    "tar": (tarred(), "a tar archive; unpack it"),
}


@pytest.mark.parametrize("packed", ["as it is", "named .gz", "gzipped"])
@pytest.mark.parametrize(("content", "expected"), OTHERS.values(), ids=OTHERS)
def test_a_file_that_is_no_text_is_named(content: bytes, expected: str, packed: str, tmp_path: Path) -> None:
    file = tmp_path / ("file.tsv" if packed == "as it is" else "file.tsv.gz")
    file.write_bytes(gzip.compress(content) if packed == "gzipped" else content)

    assert complaint(lambda: list(read_lines(file))) == f"{file}: {expected}"


def test_names_a_gzip_file_whose_name_does_not_say_so(tmp_path: Path) -> None:
    file = tmp_path / "file.tsv"
    file.write_bytes(gzip.compress(b"0\ta passage\n"))

    expected = "gzipped, though its name does not say so; add .gz to the name, or unpack it"
    assert complaint(lambda: list(read_lines(file))) == f"{file}: {expected}"


@pytest.mark.parametrize("kept", range(1, 60, 7))
def test_a_gzip_file_that_is_cut_off_anywhere_is_named(kept: int, tmp_path: Path) -> None:
    lines = [f"{number}\tpassage {number}" for number in range(20)]
    whole, file = gzip.compress("\n".join(lines).encode()), tmp_path / "file.tsv.gz"
    file.write_bytes(whole[: len(whole) * kept // 60])
    read: list[str] = []

    message = complaint(lambda: read.extend(text for _, text in read_lines(file)))

    assert message.startswith(f"{file}: the gzip file is cut off or damaged ")
    assert read == lines[: len(read)]


def test_a_large_line_of_text_is_read_whatever_it_says(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x <html>\n" + "y" * 70_000 + "ustar\n")

    assert [len(text) for _, text in read_lines(tmp_path / "file")] == [8, 70_005]


ARRAY = b'[{"a": 1, "b": ["x", "y"]}, {"a": 2.5, "b": null}]'


@pytest.mark.parametrize("ending", ["json", "json.gz"])
def test_reads_the_objects_of_an_array(ending: str, tmp_path: Path) -> None:
    file = tmp_path / f"file.{ending}"
    file.write_bytes(gzip.compress(ARRAY) if ending.endswith("gz") else ARRAY)

    assert list(read_json_array(file)) == [
        (f"{file} item 1", {"a": 1, "b": ["x", "y"]}),
        (f"{file} item 2", {"a": 2.5, "b": None}),
    ]


@pytest.mark.parametrize("kept", range(len(ARRAY)))
def test_an_array_that_is_cut_off_anywhere_is_named(kept: int, tmp_path: Path) -> None:
    (tmp_path / "file.json").write_bytes(ARRAY[:kept])

    message = complaint(lambda: list(read_json_array(tmp_path / "file.json")))

    assert message.startswith(f"{tmp_path}/file.json: the JSON is cut off or damaged ")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"a": 1}', ": expected an array of JSON objects, found none"),
        ("[]", ": expected an array of JSON objects, found none"),
        ('[{"a": 1}, 2]', " item 2: expected a JSON object, found int"),
        ("<html>", f": {PAGE}"),
    ],
)
def test_names_what_is_no_array_of_objects(content: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text(content)

    assert complaint(lambda: list(read_json_array(tmp_path / "file.json"))) == f"{tmp_path}/file.json{expected}"


def test_an_empty_answer_is_none_since_every_passage_has_it() -> None:
    assert answer_list(["Ada", "", " "], "row") == ["Ada"]
    assert complaint(lambda: answer_list("Ada", "row")) == "row: the answers must be a list of texts, found 'Ada'"
    assert complaint(lambda: answer_list([7], "row")) == "row: the field 'answers' must be text, found 7"
