"""The five, the ten and the twenty folds of SQuAD's articles."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

from storage.conversions.squad_folds import write_folds
from storage.datasets import beir
from storage.errors import UserError

ARTICLES = [f"Town_{letter}" for letter in "ABCDEFGHIJKLMNOPQRST"]
HEADER = "query-id\tcorpus-id\tscore\n"


def article(judgement: dict[str, object]) -> str:
    return str(judgement["doc_id"]).split("#")[0]


def sha256(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def reversed_sha256(name: str) -> str:
    return sha256("".join(reversed(name)))


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    """Twenty articles with three questions each; `dev` has the four with the largest SHA-256."""
    (tmp_path / "qrels").mkdir()
    largest = sorted(ARTICLES, key=sha256)[-4:]
    for split, names in (("train", [name for name in ARTICLES if name not in largest]), ("dev", largest)):
        rows = [f"{name}-{number}\t{name}#{number}\t1\n" for name in names for number in range(3)]
        (tmp_path / "qrels" / f"{split}.tsv").write_text(HEADER + "".join(rows))
    return tmp_path


FIVE, TEN, TWENTY = range(1, 6), range(11, 21), range(21, 41)


def dev_articles(folder: Path, folds: range) -> list[list[str]]:
    """Return the articles of each fold's `dev` part, sorted."""
    return [sorted({article(dict(row)) for row in beir.qrels(folder, f"fold_{k}_dev")}) for k in folds]


def test_folds_are_consecutive_articles_in_the_order_of_their_sha256(collection: Path) -> None:
    write_folds(collection)

    ordered = sorted(ARTICLES, key=sha256, reverse=True)
    assert dev_articles(collection, FIVE) == [sorted(ordered[n : n + 4]) for n in range(0, 20, 4)]
    assert dev_articles(collection, TEN) == [sorted(ordered[n : n + 2]) for n in range(0, 20, 2)]
    assert dev_articles(collection, TWENTY) == [[name] for name in sorted(ARTICLES, key=reversed_sha256, reverse=True)]


def check_partition(folder: Path) -> None:
    """Assert that each question is in one fold's `dev`, and that its fold trains on all other articles."""
    judged = [*beir.qrels(folder, "train"), *beir.qrels(folder, "dev")]
    for folds in (FIVE, TEN, TWENTY):
        seen: Counter[str] = Counter()
        for k in folds:
            train, dev = list(beir.qrels(folder, f"fold_{k}_train")), list(beir.qrels(folder, f"fold_{k}_dev"))
            assert sorted(map(repr, [*train, *dev])) == sorted(map(repr, judged))
            assert {article(dict(row)) for row in train}.isdisjoint({article(dict(row)) for row in dev})
            seen.update(row["query_id"] for row in dev)
        assert seen == Counter(row["query_id"] for row in judged)
    for part in ("train", "dev"):
        assert (folder / f"qrels/fold_1_{part}.tsv").read_bytes() == (folder / f"qrels/{part}.tsv").read_bytes()


def test_every_question_is_in_one_fold_and_the_first_fold_is_the_split(collection: Path) -> None:
    write_folds(collection)

    check_partition(collection)


def test_another_split_is_refused(collection: Path) -> None:
    train, dev = (collection / "qrels" / f"{part}.tsv" for part in ("train", "dev"))
    lines = train.read_text().splitlines(keepends=True)
    dev.write_text(dev.read_text() + lines[1])
    train.write_text("".join(lines[:1] + lines[2:]))

    with pytest.raises(UserError, match=r"dev.tsv: expected the questions on Town_\w(, Town_\w){3}; fetch"):
        write_folds(collection)
    assert len(list((collection / "qrels").iterdir())) == 2


@pytest.mark.skipif("PRETRIEVE_COLLECTIONS" not in os.environ, reason="PRETRIEVE_COLLECTIONS names no collections")
def test_squad_has_five_folds_of_eight_articles_ten_of_four_and_twenty_of_two(tmp_path: Path) -> None:
    squad = Path(os.environ["PRETRIEVE_COLLECTIONS"]) / "squad"
    if not squad.is_dir():
        pytest.skip(f"{squad} is not there")
    (tmp_path / "qrels").mkdir()
    for part in ("train", "dev"):
        shutil.copy(squad / f"qrels/{part}.tsv", tmp_path / "qrels")

    write_folds(tmp_path)

    check_partition(tmp_path)
    assert list(map(len, dev_articles(tmp_path, FIVE))) == [8] * 5
    assert list(map(len, dev_articles(tmp_path, TEN))) == [4] * 10
    assert list(map(len, dev_articles(tmp_path, TWENTY))) == [2] * 20
