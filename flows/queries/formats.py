"""Formats of other tools for pseudo-queries: one function per format, which fills a folder passage by passage."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import IO, Any

from storage.errors import UserError
from storage.tables import passage_text

DOCUMENTS_PER_FILE = 1_000_000  # of Anserini's collection, which reads files in parallel

Row = dict[str, Any]
WithQueries = Iterator[tuple[Row, list[Row]]]
"""Every passage, with its queries by rank."""


def doct5query(folder: Path, passages: WithQueries) -> None:
    """Write d2q.jsonl, castorini's format of predictions: a line with `id` and `predicted_queries` per passage."""
    with (folder / "d2q.jsonl").open("w", encoding="utf-8") as file:
        for passage, queries in passages:
            _line(file, {"id": passage["passage_id"], "predicted_queries": [row["query"] for row in queries]})


def anserini(folder: Path, passages: WithQueries) -> None:
    """Write collection/docs*.json, Anserini's JsonCollection of expanded passages: `id`, `contents`.

    Give `collection` to Anserini, not the folder above it: every .json below its input is read as documents.
    """
    (folder / "collection").mkdir()
    number = 0
    while first := next(passages, None):
        with (folder / "collection" / f"docs{number:02d}.json").open("w", encoding="utf-8") as file:
            for passage, queries in _followed(first, islice(passages, DOCUMENTS_PER_FILE - 1)):
                text = passage_text(passage["title"], passage["text"])
                expansion = " ".join(row["query"] for row in queries)
                contents = f"{text}\n{expansion}" if expansion else text
                _line(file, {"id": passage["passage_id"], "contents": contents})
        number += 1


def beir(folder: Path, passages: WithQueries) -> None:
    """Write corpus.jsonl, gen-queries.jsonl and gen-qrels/train.tsv for BEIR's loader, with its prefix "gen"."""
    (folder / "gen-qrels").mkdir()
    with contextlib.ExitStack() as files:
        names = ("corpus.jsonl", "gen-queries.jsonl", "gen-qrels/train.tsv")
        corpus, generated, qrels = (files.enter_context((folder / name).open("w", encoding="utf-8")) for name in names)
        qrels.write("query-id\tcorpus-id\tscore\n")
        for passage, queries in passages:
            passage_id = passage["passage_id"]
            if passage_id.startswith('"'):  # its loader would read all up to the next quotation mark as one field
                raise UserError(f"{passage_id}: BEIR cannot read an id that begins with a quotation mark; rename it")
            _line(corpus, {"_id": passage_id, "title": passage["title"], "text": passage["text"]})
            for row in queries:
                query_id = f"{passage_id}/{row['rank']}"
                _line(generated, {"_id": query_id, "text": row["query"]})
                qrels.write(f"{query_id}\t{passage_id}\t1\n")


LINES: Mapping[str, Callable[[Path, WithQueries], None]] = {
    "doct5query": doct5query,
    "anserini": anserini,
    "beir": beir,
}
"""The formats that are written passage by passage."""


def _line(file: IO[str], value: Mapping[str, Any]) -> None:
    """Write a JSON line in ASCII, so that no character can be mistaken for the end of a line."""
    file.write(json.dumps(value) + "\n")


def _followed(first: tuple[Row, list[Row]], others: WithQueries) -> WithQueries:
    yield first
    yield from others
