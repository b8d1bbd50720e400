"""The collections of an adaptation: held-out documents are never trained on, and duplicates stay together."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.adapt.collections import Pseudo, digest, of_generated, of_salient_sentences, write_collections
from flows.adapt.judgements import Judgements, read_judgements
from flows.adapt.survey import survey
from storage.datasets import beir
from storage.datasets.support.collection_files import kind, read_documents
from storage.errors import UserError
from storage.formats.records import TextRow
from tests.tiny import WORDS


def documents(count: int, *, copies: int = 1) -> list[TextRow]:
    rows: list[TextRow] = []
    for n in range(count):
        words = [WORDS[(n * 7 + k * 3 + k * k) % len(WORDS)] + f"{n}x{k}" for k in range(30)]
        text = " ".join(f"{' '.join(words[start : start + 6]).capitalize()}." for start in range(0, 30, 6))
        rows += [{"doc_id": f"d{n}-{copy}", "title": f"Title {n}", "text": text} for copy in range(copies)]
    return rows


def ids(folder: Path, split: str) -> dict[str, set[str]]:
    """The relevant documents of each query of a split."""
    judged: dict[str, set[str]] = {}
    for row in beir.qrels(folder, split):
        judged.setdefault(row["query_id"], set()).add(row["doc_id"])
    return judged


def test_held_out_documents_are_in_no_text_or_query_of_training(tmp_path: Path) -> None:
    rows = documents(120, copies=2)
    counts = write_collections(tmp_path, rows, of_salient_sentences(rows, "en"), None, hours=1)

    training = tmp_path / "training"
    train, held_out = ids(training, "train"), ids(training, "heldout")
    assert counts == {"train": len(train), "heldout": len(held_out)}
    assert min(counts.values()) > 20
    of_train, of_held_out = ({doc for docs in judged.values() for doc in docs} for judged in (train, held_out))
    assert of_train.isdisjoint(of_held_out)
    pretraining = {row["doc_id"] for row in beir.texts(training, "documents")}
    assert pretraining == {row["doc_id"] for row in rows} - of_held_out
    assert {len(docs) for docs in (*train.values(), *held_out.values())} == {2}  # both copies are relevant
    queries = {row["query_id"]: row["text"] for row in beir.queries(training, "train")}
    texts = {row["doc_id"]: row["text"] for row in beir.texts(training, "corpus")}
    removed = [queries[name] not in texts[doc] for name, docs in train.items() for doc in docs]
    assert sum(removed) > 0.8 * len(removed)
    assert [row["text"] for row in beir.texts(tmp_path / "original", "corpus")] == [row["text"] for row in rows]


def test_held_out_queries_are_short_and_trained_ones_are_sentences_and_short_parts(tmp_path: Path) -> None:
    rows = documents(100)
    for row in rows:  # sentences of 15 words, so that each has two parts
        words = row["text"].replace(".", "").split()
        row["text"] = ". ".join(" ".join(words[start : start + 15]).capitalize() for start in (0, 15)) + "."
    write_collections(tmp_path, rows, of_salient_sentences(rows, "en"), None, hours=1)

    def lengths(split: str) -> dict[str, list[int]]:
        of: dict[str, list[int]] = {}
        texts = {row["query_id"]: row["text"] for row in beir.queries(tmp_path / "training", split)}
        for query_id in ids(tmp_path / "training", split):
            of.setdefault(query_id.split("?")[0], []).append(len(texts[query_id].split()))
        return of

    assert set(map(tuple, lengths("heldout").values())) == {(2, 8, 7)}  # the title and both parts
    assert {tuple(sorted(found)) for found in lengths("train").values()} == {(2, 7, 15), (2, 8, 15)}


def test_equal_collections_are_equal_bytes_so_that_keys_stay(tmp_path: Path) -> None:
    rows = documents(80)
    for name in ("one", "two"):
        write_collections(tmp_path / name, rows, of_salient_sentences(rows, "en"), None, hours=1)

    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert len(files) == 6
    assert all((tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes() for name in files)


def test_the_digest_is_that_of_documents_queries_and_judgements(tmp_path: Path) -> None:
    rows = documents(80)
    judgements = Judgements([{"query_id": "q", "text": "what"}], [{"query_id": "q", "doc_id": "d1-0", "grade": 1}])
    other = [{**rows[0], "text": "Another text."}, *rows[1:]]
    generated = of_generated(rows, {row["doc_id"]: [f"what is {row['doc_id']}"] for row in rows})
    collections = [
        (rows, of_salient_sentences(rows, "en"), None), (rows, of_salient_sentences(rows, "en"), judgements),
        (other, of_salient_sentences(other, "en"), None), (rows, generated, None),
    ]  # fmt: skip
    digests = []
    for number, content in enumerate([*collections, collections[0]]):
        write_collections(tmp_path / f"{number}", *content, hours=1)
        digests.append(digest(tmp_path / f"{number}"))

    assert len(set(digests)) == 4
    assert digests[-1] == digests[0]


def test_a_sentence_of_two_documents_is_left_out_with_its_parts(tmp_path: Path) -> None:
    rows = documents(200)
    shared = "This notice has seventeen words which are the same in every document that the company has published."
    own = {row["doc_id"]: [f"only {row['doc_id']} is about this"] for row in rows}
    write_collections(tmp_path, rows, of_generated(rows, own), None, hours=1)
    for split in ("train", "heldout"):
        (doc_id,) = next(iter(ids(tmp_path / "training", split).values()))
        own[doc_id] = [shared, *own[doc_id]]

    pseudo = [Pseudo(row, own[row["doc_id"]], has_parts=True) for row in rows]
    write_collections(tmp_path, rows, pseudo, None, hours=1)

    texts = [row["text"] for split in ("train", "heldout") for row in beir.queries(tmp_path / "training", split)]
    assert set(texts) == {f"only {row['doc_id']} is about this" for row in rows}


def test_no_part_of_a_judged_query_is_trained_on(tmp_path: Path) -> None:
    rows = documents(200)
    judged = "a long question of a user that is a sentence of the document with many words"
    queries = [judged if n == 7 else f"only {n} is about this" for n in range(200)]
    pseudo = [Pseudo(row, [query], has_parts=True) for row, query in zip(rows, queries, strict=True)]
    judgements = Judgements([{"query_id": "q", "text": judged}], [{"query_id": "q", "doc_id": "d7-0", "grade": 1}])

    write_collections(tmp_path, rows, pseudo, judgements, hours=1)

    texts = [row["text"] for split in ("train", "heldout") for row in beir.queries(tmp_path / "training", split)]
    assert set(texts) == set(queries) - {judged}


def test_few_long_documents_are_too_few_to_decide(tmp_path: Path) -> None:
    rows = documents(8)
    for row in rows:
        row["text"] = " ".join(
            f"Sentence {n} of {row['doc_id']} says something that no other sentence says." for n in range(80)
        )
    with pytest.raises(
        UserError, match=r"of \d documents? to train on and \d+ of [0-4] to decide with; expected 10 of 5"
    ):
        write_collections(tmp_path, rows, of_salient_sentences(rows, "en"), None, hours=1)


def test_a_query_of_several_documents_is_left_out(tmp_path: Path) -> None:
    rows = documents(100)
    generated = {row["doc_id"]: ["what is common", f"what is {row['doc_id']}"] for row in rows}

    write_collections(tmp_path, rows, of_generated(rows, generated), None, hours=1)

    texts = {row["text"] for row in beir.queries(tmp_path / "training", "train")}
    assert "what is common" not in texts
    assert len(texts) == 100
    assert {row["text"] for row in beir.texts(tmp_path / "training", "corpus")} == {row["text"] for row in rows}


def test_documents_of_only_a_title_are_no_duplicates(tmp_path: Path) -> None:
    rows = documents(100)
    rows += [TextRow(doc_id=f"t{n}", title=f"Only  title {n // 2}", text=" ") for n in range(40)]
    generated = {row["doc_id"]: [f"what is {row['doc_id']}"] for row in rows}

    write_collections(tmp_path, rows, of_generated(rows, generated), None, hours=1)

    training = tmp_path / "training"
    judged = ids(training, "train") | ids(training, "heldout")
    assert [judged[f"t{n}?0"] for n in range(0, 40, 2)] == [{f"t{n}", f"t{n + 1}"} for n in range(0, 40, 2)]


def test_too_few_documents_are_an_error(tmp_path: Path) -> None:
    rows = documents(8)
    with pytest.raises(UserError, match=r"14 pseudo-queries of 7 documents to train on and 2 of 1 to decide"):
        write_collections(tmp_path, rows, of_salient_sentences(rows, "en"), None, hours=1)


def test_the_survey_counts_duplicates_and_empty_documents() -> None:
    rows = [*documents(3, copies=2), TextRow(doc_id="e", title="", text=" ")]
    found = survey("a file of CSV", rows)
    assert (found.documents, found.duplicates, found.empty, found.titles) == (7, 3, 1, 6)
    assert "7 documents" in found.lines()[0]


def test_judgements_are_read_as_texts_and_as_qrels(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "queries.jsonl").write_text('{"_id": "q1", "text": "salt?"}\n{"_id": "q2", "text": "ice?"}\n')
    (tmp_path / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t2\n")
    (tmp_path / "judged.tsv").write_text("salt?\td1\t2\nice?\td2\nsalt?\td2\n")

    from_qrels = read_judgements(tmp_path / "qrels" / "dev.tsv", {"d1"})
    assert from_qrels == Judgements(
        [{"query_id": "q1", "text": "salt?"}], [{"query_id": "q1", "doc_id": "d1", "grade": 2}]
    )
    (tmp_path / "dev.tsv").write_text((tmp_path / "qrels" / "dev.tsv").read_text())
    assert read_judgements(tmp_path / "dev.tsv", {"d1"}) == from_qrels
    from_texts = read_judgements(tmp_path / "judged.tsv", {"d1", "d2"})
    assert [row["text"] for row in from_texts.queries] == ["salt?", "ice?"]
    assert [(row["doc_id"], row["grade"]) for row in from_texts.qrels] == [("d1", 2), ("d2", 1), ("d2", 1)]
    with pytest.raises(UserError, match="'d2' is not in the collection"):
        read_judgements(tmp_path / "judged.tsv", {"d1"})
    (tmp_path / "judged.tsv").write_text("salt?\n")
    with pytest.raises(UserError, match="expected a query, a document's id"):
        read_judgements(tmp_path / "judged.tsv", {"d1"})


@pytest.mark.parametrize("form", ["folder", "rows.csv"])
def test_judgements_name_documents_as_the_collection_does(form: str, tmp_path: Path) -> None:
    """Ids of documents have no blanks; names of files and ids of rows may."""
    collection = tmp_path / form
    if form == "folder":
        collection.mkdir()
        (collection / "my notes.txt").write_text("x")
    else:
        collection.write_text("id,text\nmy notes.txt,x\n")
    (tmp_path / "queries.jsonl").write_text('{"_id": "q1", "text": "salt?"}\n')
    (tmp_path / "judged.tsv").write_text("salt?\tmy notes.txt\t2\n")
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\tmy notes.txt\t2\n")
    known = {row["doc_id"] for row in read_documents(collection)}

    for name in ("judged.tsv", "qrels.tsv"):
        judged = read_judgements(tmp_path / name, known, kind(collection))
        assert [row["doc_id"] for row in judged.qrels] == list(known)


@pytest.mark.parametrize("line", ["salt?\td1\t²", "salt?\td1\t99999999999999999999", "salt?\td1\tx", "\td1"])
def test_a_line_of_judgements_that_cannot_be_is_named(line: str, tmp_path: Path) -> None:
    (tmp_path / "judged.tsv").write_text(f"ice?\td1\n{line}\n")

    with pytest.raises(UserError, match=r"judged\.tsv line 2: expected a query, a document's id and maybe a grade"):
        read_judgements(tmp_path / "judged.tsv", {"d1"})


def test_judgements_that_no_evaluation_could_use_are_refused_before_the_training(tmp_path: Path) -> None:
    file = tmp_path / "judged.tsv"
    file.write_text("salt?\td1\t1\nsalt?\td1\t2\n")
    with pytest.raises(UserError, match="document 'd1' has two grades for one query"):
        read_judgements(file, {"d1"})
    file.write_text("salt?\td1\t0\nice?\td1\t-1\n")
    with pytest.raises(UserError, match="expected a relevant document, with a grade above 0"):
        read_judgements(file, {"d1"})


def test_a_document_that_is_not_there_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "judged.tsv"
    file.write_text("query\tdocument\nsalt?\td1\n")
    with pytest.raises(UserError, match=r"line 1: document 'document' is .* \(if it is a header: expected none"):
        read_judgements(file, {"d1"})
    file.write_text("salt?\td1\nice?\td2\n")
    with pytest.raises(UserError, match=r"line 2: document 'd2' is not in the collection; remove the line$"):
        read_judgements(file, {"d1"})
    with pytest.raises(UserError, match="is a folder; name a file"):
        read_judgements(tmp_path, {"d1"})
    file.write_text("salt?\t7.0\n")
    with pytest.raises(UserError, match=r"line 1: document '7\.0' is not in the collection; write 7$"):
        read_judgements(file, {"7"})


def test_a_query_without_a_relevant_document_is_left_out_and_counted(tmp_path: Path) -> None:
    file = tmp_path / "judged.tsv"
    file.write_text("salt?\td1\t0\nice?\td1\t1\nice?\td2\t0\n")

    judged = read_judgements(file, {"d1", "d2"})

    assert [row["text"] for row in judged.queries] == ["ice?"]
    assert [(row["doc_id"], row["grade"]) for row in judged.qrels] == [("d1", 1), ("d2", 0)]
    assert [row["text"] for row in judged.left_out] == ["salt?"]


def test_a_query_that_is_numbered_as_its_document_is_not_taken_for_the_document(tmp_path: Path) -> None:
    """BEIR's evaluation removes a document of the query's id from the results."""
    (tmp_path / "queries.jsonl").write_text('{"_id": "1", "text": "salt?"}\n{"_id": "2", "text": "ice?"}\n')
    (tmp_path / "dev.tsv").write_text("query-id\tcorpus-id\tscore\n1\t1\t1\n2\t3\t1\n")

    judged = read_judgements(tmp_path / "dev.tsv", {"1", "3"})

    assert [row["query_id"] for row in judged.queries] == ["query-1", "query-2"]
    assert [(row["query_id"], row["doc_id"]) for row in judged.qrels] == [("query-1", "1"), ("query-2", "3")]


def test_no_pseudo_query_is_a_judged_query(tmp_path: Path) -> None:
    rows = documents(100)
    judged = Judgements(
        [{"query_id": "q", "text": "title  7"}], [{"query_id": "q", "doc_id": rows[7]["doc_id"], "grade": 1}],
        left_out=[{"query_id": "r", "text": "Title 8"}],
    )  # fmt: skip
    texts = []
    for name, judgements in (("without", None), ("with", judged)):
        write_collections(tmp_path / name, rows, of_salient_sentences(rows, "en"), judgements, hours=1)
        texts.append({row["text"] for row in beir.all_queries(tmp_path / name / "training")})

    assert texts[0] - texts[1] == {"Title 7", "Title 8"}
    assert texts[1] < texts[0]


def test_of_many_queries_as_many_are_trained_on_as_the_hours_allow(tmp_path: Path) -> None:
    rows = documents(4_500)
    for name, hours in (("short", 0.1), ("long", 0.6), ("endless", float("inf"))):
        write_collections(tmp_path / name, rows, of_salient_sentences(rows, "en"), None, hours=hours)
    train = {name: set(ids(tmp_path / name / "training", "train")) for name in ("short", "long", "endless")}

    assert (len(train["short"]), len(train["long"])) == (5_000, 6_000)
    assert 6_000 < len(train["endless"]) < 8_000
    assert train["short"] < train["long"] < train["endless"]
    assert len({name.split("?")[0] for name in train["short"]}) > 2_500  # of all documents, not of the first
    written = {row["query_id"] for row in beir.queries(tmp_path / "short" / "training", "train")}
    assert written >= train["short"]
    assert len(written) == 5_000 + len(ids(tmp_path / "short" / "training", "heldout"))


def test_a_part_of_many_queries_decides(tmp_path: Path) -> None:
    rows = documents(2_600)
    counts = write_collections(tmp_path, rows, of_generated(rows, {
        row["doc_id"]: [f"{row['doc_id']} {n}" for n in range(9)] for row in rows
    }), None, hours=1)  # fmt: skip

    held_out = ids(tmp_path / "training", "heldout")
    assert counts["heldout"] == len(held_out) == 2_000
    assert len({doc for docs in held_out.values() for doc in docs}) > 400
