"""Folds over SQuAD's articles, for cross-validation: 1 to 5 have a fifth each, 11 to 20 a tenth, 21 to 40 a twentieth.

Articles are in the order of the SHA-256 of their names, the largest first, and for folds 21 to 40 of their reversed
names, so that these divide the articles otherwise. A fold's `dev` part has the questions on an equal share of
consecutive articles, its `train` part all others. Every question is in the `dev` part of one of the five folds, of one
of the ten and of one of the twenty. The first fold has the articles of qrels/dev.tsv.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from storage.conversions.beir_files import write_qrels
from storage.datasets import beir
from storage.errors import UserError

PARTITIONS = range(1, 6), range(11, 21), range(21, 41)
"""The numbers of the folds that have all articles together."""
REVERSED = range(21, 41)
"""The folds of articles in the order of their reversed names' SHA-256."""
FOLD_FILES = tuple(
    f"qrels/fold_{fold}_{part}.tsv" for partition in PARTITIONS for fold in partition for part in ("train", "dev")
)


def write_folds(folder: Path) -> None:
    """Write qrels/fold_K_train.tsv and qrels/fold_K_dev.tsv for each fold K into a folder with SQuAD's collection.

    Rows are in the order of qrels/train.tsv, then qrels/dev.tsv. No other file is changed. Raises UserError where one
    of these is missing, or where the first fold would not have the articles of qrels/dev.tsv.
    """
    dev = list(beir.qrels(folder, "dev"))
    judged = [*beir.qrels(folder, "train"), *dev]
    articles = {article_of(row["doc_id"]) for row in judged}
    first = fold_articles(articles, 5)[0]
    if {article_of(row["doc_id"]) for row in dev} != first:
        raise UserError(
            f"{folder / 'qrels/dev.tsv'}: expected the questions on {', '.join(sorted(first))}; fetch the "
            "collection again: pretrieve fetch squad DIR"
        )
    for partition in PARTITIONS:
        of_fold = fold_articles(articles, len(partition), reverse=partition == REVERSED)
        for number, chosen in zip(partition, of_fold, strict=True):
            measured = [row for row in judged if article_of(row["doc_id"]) in chosen]
            learned = [row for row in judged if article_of(row["doc_id"]) not in chosen]
            write_qrels(folder / f"qrels/fold_{number}_dev.tsv", measured)
            write_qrels(folder / f"qrels/fold_{number}_train.tsv", learned)


def fold_articles(articles: Iterable[str], folds: int, *, reverse: bool = False) -> list[set[str]]:
    """Return the names of the articles in the `dev` part of each of `folds` folds.

    `reverse` takes the order of the reversed names' SHA-256.
    """
    ordered = ordered_articles(articles, reverse=reverse)
    bounds = [len(ordered) * fold // folds for fold in range(folds + 1)]
    return [set(ordered[low:high]) for low, high in pairwise(bounds)]


def ordered_articles(articles: Iterable[str], *, reverse: bool = False) -> list[str]:
    """Return the names of articles in the order of their SHA-256, or of their reversed names', the largest first."""
    step = -1 if reverse else 1
    return sorted(articles, key=lambda name: hashlib.sha256(name[::step].encode()).digest(), reverse=True)


def article_of(paragraph_id: str) -> str:
    """Return the name of a paragraph's article: the paragraph's id is NAME#NUMBER."""
    return paragraph_id.rpartition("#")[0]
