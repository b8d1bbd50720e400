"""The rows of a recipe's collection for its plan: counted in the files that are on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flows.chain.collection import CollectionSource, Part
from flows.recipe.schema import Recipe
from storage import datasets
from storage.artifact import Source
from storage.errors import UserError
from storage.formats.ids import in_slice
from storage.store import sources
from tasks.corpus.ingest import Topics, judged_queries

MOST_BYTES = 1 << 29
"""Larger files are not read for a plan: half a gigabyte of JSON takes some ten seconds."""

Count = dict[str, Any]
"""Rows of a part: `part`, `split`, `rows`, and the file or folder that they were counted `in`."""


class CollectionCounts:
    """Counts the documents, queries and judgements that a recipe reads; each part is read once, when it is needed."""

    def __init__(self, recipe: Recipe[Any]) -> None:
        self.recipe = recipe
        self.counted: list[Count] = []
        self._documents: dict[tuple[str, str | None, str], int | None] = {}
        self._queries: dict[str, int | None] = {}

    def all(self) -> list[Count]:
        """Count the corpora and splits; return all counts."""
        data, corpora = self.recipe.dataset, self.recipe.corpora
        for source, part in ((data, corpora.retrieve), (corpora.pretrain_from or data, corpora.pretrain)):
            self.documents(source, part)
        for split in dict.fromkeys(filter(None, (data.train_split, *data.eval_splits))):
            self.queries(split)
        return self.counted

    def documents(self, source: CollectionSource, part: Part) -> int | None:
        """Return the documents of a collection's part, of its fraction; None where the files are not here or large."""
        name = source.reader, source.path, part
        if name not in self._documents:
            self._documents[name] = self._count_documents(source, part)
        return self._documents[name]

    def queries(self, split: str) -> int | None:
        """Return the queries of a split as they are ingested; None where they or their judgements are not here."""
        if split not in self._queries:
            self._queries[split] = self._count_topics(split)
        return self._queries[split]

    def _count_documents(self, source: CollectionSource, part: Part) -> int | None:
        if (files := _readable(source, part)) is None:
            return None
        try:
            rows = datasets.dataset_loader(source.reader).texts(files.path, part)
            number = sum(in_slice(row["doc_id"], source.fraction) for row in rows)
        except (UserError, OSError):  # the run names what is malformed
            return None
        self._note(part, None, number, files.path)
        return number

    def _count_topics(self, split: str) -> int | None:
        data = self.recipe.dataset
        files = _readable(data, "queries", split)
        if files is None or not datasets.has_qrels(data.reader, split):
            return None
        training = split == data.train_split
        settings = Topics(
            reader=data.reader, split=split, fraction=data.fraction, complete=False, relevant_alone=training
        )
        loader = datasets.dataset_loader(data.reader)
        try:
            queries = {row["query_id"] for row in judged_queries(loader, files.path, settings)}
            judged = sum(
                row["query_id"] in queries and in_slice(row["doc_id"], data.fraction)
                for row in loader.qrels(files.path, split)
            )
        except (UserError, OSError):
            return None
        self._note("queries", split, len(queries), files.path)
        self._note("judgements", split, judged, files.path)
        return len(queries)

    def _note(self, part: str, split: str | None, rows: int, path: Path) -> None:
        self.counted.append({"part": part, "split": split, "rows": rows, "in": str(path)})


def in_words(counted: list[Count]) -> list[str]:
    """Return a line for each file or folder with what was counted in it."""
    by_path: dict[str, list[str]] = {}
    for count in counted:
        of_split = f" of {count['split']}" if count["split"] else ""
        part = {"corpus": "documents of the corpus", "documents": "source documents"}.get(count["part"], count["part"])
        by_path.setdefault(count["in"], []).append(f"{count['rows']:,} {part}{of_split}")
    return [f"counted in {path}: {', '.join(parts)}" for path, parts in by_path.items()]


def _readable(source: CollectionSource, part: str, split: str | None = None) -> Source | None:
    """Return the files of a part; None where they are not on this machine, or large."""
    with sources.assuming_present():
        files = sources.dataset(source.reader, source.path, part, split)
    if isinstance(files, sources.Absent):
        return None
    listed = datasets.dataset_loader(source.reader).files(files.path, part, split)
    return files if sum(file.stat().st_size for file in listed) <= MOST_BYTES else None
