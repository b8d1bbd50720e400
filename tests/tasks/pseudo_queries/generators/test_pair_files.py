"""Own pairs: what is read from a file, what is refused by line, and that no passage is on both sides."""

import gzip
from pathlib import Path

import pytest

from storage.errors import UserError
from tasks.pseudo_queries.generators.pair_files import pairs_source, read_pairs, split

TWO = [("The red fox", "fox"), ("Ein Fluß", "was fließt")]
ONE_JSON = '{"passage": "The red fox", "query": "fox"}'


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pairs.tsv", "The red fox\tfox\nEin Fluß\twas  fließt \n"),
        ("pairs.tsv", "\ufeffPassage\tQuery\r\nThe red fox\tfox\r\n\r\nEin Fluß\twas fließt\r\n"),
        ("pairs.txt.gz", "passage\tquery\nThe red fox\tfox\nEin Fluß\twas fließt"),
        ("pairs.jsonl", ONE_JSON + '\n \n{"query": "was\\nfließt", "passage": "Ein Fluß"}'),
        ("pairs.json.gz", ONE_JSON + '\n{"passage": "Ein Fluß", "query": "was fließt", "id": 3}'),
    ],
)  # fmt: skip
def test_all_forms_are_read_alike(name: str, text: str, tmp_path: Path) -> None:
    data = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)

    assert list(read_pairs(tmp_path / name)) == TWO


def test_a_passage_called_passage_is_no_header_in_a_later_line(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("one\ttwo\npassage\tquery\n")

    assert list(read_pairs(tmp_path / "a.tsv")) == [("one", "two"), ("passage", "query")]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.tsv", b"", "at least two different passages, found 0"),
        ("a.tsv", b"passage\tquery\n", "at least two different passages, found 0"),
        ("a.tsv", b"a\tb\na \tc\n", "at least two different passages, found 1"),
        ("a.tsv", b"a\tb\nonly one column\n", r"a.tsv line 2: expected passage<TAB>query, two columns, found 1"),
        ("a.tsv", b"a\tb\n\nc\td\te\n", r"a.tsv line 3: expected passage<TAB>query, two columns, found 3"),
        ("a.tsv", b"a\tb\n\tq\n", "a.tsv line 2: the passage is empty"),
        ("a.tsv", b"a\tb\nc\t \n", "a.tsv line 2: the query is empty"),
        ("a.tsv", b"a\tb\nc\t\xff\n", "a.tsv line 2: not UTF-8"),
        ("a.tsv.gz", gzip.compress(b"a\tb\nc\td\n", mtime=0)[:-9], "a.tsv.gz: the gzip file is cut off or damaged"),
        ("a.tsv.gz", b"a\tb\n", "a.tsv.gz: the gzip file is cut off or damaged at its start"),
        ("a.jsonl", b'{"passage": "a", "query": "b"}\n{"passage": "a",', "a.jsonl line 2: not valid JSON"),
        ("a.jsonl", b'["a", "b"]\n', "a.jsonl line 1: expected a JSON object, found list"),
        ("a.jsonl", b'{"text": "a", "query": "b"}\n', "line 1: the field 'passage' is missing; found query, text"),
        ("a.jsonl", b'{"passage": "a", "query": 3}\n', "a.jsonl line 1: the field 'query' must be text"),
        ("a.jsonl", b'{"passage": "a", "query": ""}\n', "a.jsonl line 1: the query is empty"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_by_line(name: str, data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)

    with pytest.raises(UserError, match=message):
        split(tmp_path / name, 0.1)


def test_a_file_of_no_known_kind_and_none_at_all_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n")

    with pytest.raises(
        UserError, match=r"name ends in \.tsv, \.txt, \.jsonl, \.json, \.ndjson, optionally followed by \.gz"
    ):
        pairs_source(tmp_path / "a.csv")
    for missing in (tmp_path, tmp_path / "b.tsv"):
        with pytest.raises(UserError, match="expected a file of pairs"):
            pairs_source(missing)


def test_a_file_is_known_by_its_contents(tmp_path: Path) -> None:
    for folder, text in (("x", "a\tb\n"), ("y", "a\tb\n"), ("z", "a\tc\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "p.tsv").write_text(text)
    keys = [pairs_source(tmp_path / folder / "p.tsv").key for folder in "xyz"]

    assert keys[0] == keys[1] != keys[2]


def test_no_passage_is_on_both_sides_and_no_pair_is_lost(tmp_path: Path) -> None:
    rows = [(f"passage {n % 300}{' ' * (n % 3)}", f"query {n}") for n in range(900)]
    (tmp_path / "a.tsv").write_text("".join(f"{passage}\t{query}\n" for passage, query in rows))

    sides = split(tmp_path / "a.tsv", 0.2)

    texts = [[" ".join(text.split()) for text in side.passages] for side in sides]
    assert not set(texts[0]) & set(texts[1])
    assert sorted(texts[0] + texts[1]) == sorted({passage.strip() for passage, _ in rows})
    assert 40 <= len(texts[1]) <= 80
    pairs = [pair for side in sides for pair in side.pairs(range(len(side.queries)))]
    assert sorted((passage.strip(), query) for passage, query in pairs) == sorted((p.strip(), q) for p, q in rows)
    assert all(len(side.queries) == 3 * len(side.passages) for side in sides)


def test_which_side_a_passage_is_on_depends_on_its_text_alone(tmp_path: Path) -> None:
    names = [f"passage {n}" for n in range(50)]
    (tmp_path / "a.tsv").write_text("".join(f"{name}\tq\n" for name in names))
    (tmp_path / "b.tsv").write_text("".join(f"{name}\tother\n" for name in [*reversed(names), "new"]))

    first, second = (split(tmp_path / name, 0.3)[1].passages for name in ("a.tsv", "b.tsv"))

    assert [name for name in second if name != "new"] == first


def test_one_passage_is_held_out_at_least_and_one_trained_on(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a\tb\nc\td\n")

    train, held_out = split(tmp_path / "a.tsv", 1e-9)

    assert (len(train.passages), len(held_out.passages)) == (1, 1)
    with pytest.raises(UserError, match=r"all 2 passages would be held out, none trained on; lower the share"):
        split(tmp_path / "a.tsv", 1 - 1e-9)
