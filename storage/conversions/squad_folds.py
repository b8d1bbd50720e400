"""Five folds over SQuAD's articles, for cross-validation: every question is in the `dev` part of one fold.

Articles are in the order of the SHA-256 of their names, the largest first. A fold's `dev` part has the questions on an
equal share of consecutive articles, its `train` part all others. The first fold has the articles of qrels/dev.tsv.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from storage.conversions.beir_files import write_qrels
from storage.datasets import beir
from storage.errors import UserError

NUM_FOLDS = 5
FOLD_FILES = tuple(f"qrels/fold_{fold}_{part}.tsv" for fold in range(1, NUM_FOLDS + 1) for part in ("train", "dev"))


def write_folds(folder: Path) -> None:
    """Write qrels/fold_K_train.tsv and qrels/fold_K_dev.tsv for K from 1 to 5 into a folder with SQuAD's collection.

    Rows are in the order of qrels/train.tsv, then qrels/dev.tsv. No other file is changed. Raises UserError where one
    of these is missing, or where the first fold would not have the articles of qrels/dev.tsv.
    """
    dev = list(beir.qrels(folder, "dev"))
    judged = [*beir.qrels(folder, "train"), *dev]
    folds = fold_articles({article_of(row["doc_id"]) for row in judged})
    if {article_of(row["doc_id"]) for row in dev} != folds[0]:
        raise UserError(
            f"{folder / 'qrels/dev.tsv'}: expected the questions on {', '.join(sorted(folds[0]))}; fetch the "
            "collection again: pretrieve fetch squad DIR"
        )
    for number, articles in enumerate(folds, 1):
        measured = [row for row in judged if article_of(row["doc_id"]) in articles]
        learned = [row for row in judged if article_of(row["doc_id"]) not in articles]
        write_qrels(folder / f"qrels/fold_{number}_dev.tsv", measured)
        write_qrels(folder / f"qrels/fold_{number}_train.tsv", learned)


def fold_articles(articles: Iterable[str]) -> list[set[str]]:
    """Return the names of the articles in the `dev` part of each fold."""
    ordered = ordered_articles(articles)
    bounds = [len(ordered) * fold // NUM_FOLDS for fold in range(NUM_FOLDS + 1)]
    return [set(ordered[bounds[fold] : bounds[fold + 1]]) for fold in range(NUM_FOLDS)]


def ordered_articles(articles: Iterable[str]) -> list[str]:
    """Return the names of articles in the order of their SHA-256, the largest first."""
    return sorted(articles, key=lambda name: hashlib.sha256(name.encode()).digest(), reverse=True)


def article_of(paragraph_id: str) -> str:
    """Return the name of a paragraph's article: the paragraph's id is NAME#NUMBER."""
    return paragraph_id.rpartition("#")[0]
