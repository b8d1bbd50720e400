"""Front matter, code blocks and links of Markdown files."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.datasets.support.collection_files import read_documents


def of_file(text: str, folder: Path) -> tuple[str, str]:
    (folder / "a.md").write_text(text)
    (row,) = read_documents(folder)
    return row["title"], row["text"]


@pytest.mark.parametrize(
    ("front", "title"),
    [
        ("title: Salt: a guide\ndate: 2020-01-01\n", "Salt: a guide"),
        ('layout: page\nTitle:  "Salt" \n', "Salt"),
        ("title: 'Salt'\n", "Salt"),
        ("title: >-\n  Salt\n", ""),
        ("title:\nsubtitle: Ice\n", ""),
        ("tags:\n  - title: none\n", ""),
        ("", ""),
    ],
)
def test_front_matter_is_cut_and_has_the_title(front: str, title: str, tmp_path: Path) -> None:
    assert of_file(f"---\n{front}---\n\nMelts ice.\n\n---\n\nAnd snow.\n", tmp_path) == (
        title,
        "Melts ice.\n\n---\n\nAnd snow.",
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("---\ntitle: Salt\n---\n# Salt\n\nMelts ice.", ("Salt", "Melts ice.")),
        ("---\ntitle: Salt\n---\n# Use\n\nMelts ice.", ("Salt", "# Use\n\nMelts ice.")),
        ("---\nlayout: page\n---\n# Salt\n\nMelts ice.", ("Salt", "Melts ice.")),
        ("---\ntitle: Salt\n\nMelts ice.", ("", "---\ntitle: Salt\n\nMelts ice.")),
        ("---\n\nMelts ice.\n\n---\n\nAnd snow.", ("", "---\n\nMelts ice.\n\n---\n\nAnd snow.")),
        ("Melts ice.\n---\ntitle: Salt\n---", ("", "Melts ice.\n---\ntitle: Salt\n---")),
    ],
    ids=["same heading", "other heading", "no title", "not closed", "rules", "not first"],
)
def test_the_heading_and_rules_next_to_front_matter(text: str, expected: tuple[str, str], tmp_path: Path) -> None:
    assert of_file(text, tmp_path) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Run:\n\n```python\nf[0](x)\n\n# note\n```\n\nThen [stop](x).", "Run:\n\nf[0](x)\n\n# note\n\nThen stop."),
        ("~~~\na\n```\nb\n~~~\nc", "a\n```\nb\nc"),
        ("````\n```\na\n```\n````\nb", "```\na\n```\nb"),
        ("- one\n\n  ```\n  a\n  ```\n- two", "- one\n\n  a\n- two"),
        ("1. ```sh\n   a\n   ```\n2. [b](x)", "   a\n2. b"),
        ("```\nf[0](x)", "f[0](x)"),
        ("a ```b``` c", "a ```b``` c"),
    ],
    ids=["backticks", "tildes", "nested", "indented", "list item", "not closed", "in a line"],
)
def test_fences_are_dropped_and_code_is_kept(text: str, expected: str, tmp_path: Path) -> None:
    assert of_file(text, tmp_path)[1] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A [salt\nroad](a.md#b), [ice](<b c> 'T') and [sea](x/Sea_(a) \"T\").", "A salt\nroad, ice and sea."),
        ("![A map](map.png) [![badge](b.svg)](x) ![](c.png)d", "A map badge d"),
        ("[see [1]](x), [`f[0](x)`](y)", "see [1], `f[0](x)`"),
        ("`f[0](x)` [1] (see below), [2](see below), [3]", "`f[0](x)` [1] (see below), [2](see below), [3]"),
        ("[" * 20_000, "[" * 20_000),
        ("[ " + "[a](b) " * 2_000 + "x", "[ " + "a " * 2_000 + "x"),
    ],
    ids=["links", "images", "nested", "no links", "brackets", "not closed"],
)
def test_links_and_images_become_their_texts(text: str, expected: str, tmp_path: Path) -> None:
    assert of_file(text, tmp_path)[1] == expected


def test_a_heading_with_a_link_is_the_title_and_plain_text_is_kept(tmp_path: Path) -> None:
    text = "# [Salt](x)\n\n[Ice](y)"
    assert of_file(text, tmp_path) == ("Salt", "Ice")
    (tmp_path / "a.md").rename(tmp_path / "a.txt")
    assert [(row["title"], row["text"]) for row in read_documents(tmp_path)] == [("", text)]
