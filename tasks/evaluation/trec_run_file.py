"""A run as TREC writes it: `query Q0 document rank score tag`, in the order in which it was measured.

Passages are folded to documents (`tasks.evaluation.max_passage`), since that is what qrels name. Scores have nine
digits, from which float32 is read back as it was.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from storage.artifact import Artifact
from storage.errors import UserError
from storage.files import writing
from storage.rows import read_table
from storage.tables import Passages, Run
from tasks.evaluation.max_passage import fold, numbered, without_identical_ids


def trec_lines(
    run: Artifact[Run], passages: Artifact[Passages], tag: str, *, ignore_identical_ids: bool
) -> Iterator[str]:
    """The lines of a run, query by query, each with its end. Raises UserError for an id that the format cannot hold."""
    ids = read_table(passages, Passages, ["passage_id", "doc_id"])
    found = read_table(run, Run, ["query_id", "passage_id", "score"])
    if ignore_identical_ids:
        found = without_identical_ids(found, ids)
    known = numbered(found["query_id"], ids)
    for values, what in ((known.query_ids, "query"), (known.doc_ids, "document"), (pa.array([tag]), "tag")):
        _must_be_words(values, what)
    query_ids, documents_QK = known.query_ids.to_pylist(), fold(found, known, len(found))
    for query_id, documents in zip(query_ids, documents_QK, strict=True):
        listed = documents[documents[:, 0] >= 0]
        doc_ids = known.doc_ids.take(pa.array(listed[:, 0].astype("int64"))).to_pylist()
        for rank, (doc_id, score) in enumerate(zip(doc_ids, listed[:, 1], strict=True), start=1):
            yield f"{query_id} Q0 {doc_id} {rank} {score:.9g} {tag}\n"


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines, compressed where the name ends in .gz; equal lines make equal bytes."""
    with writing(path) as temporary, temporary.open("wb") as file:
        if path.suffix == ".gz":
            with gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
                packed.writelines(line.encode() for line in lines)
        else:
            file.writelines(line.encode() for line in lines)


def _must_be_words(values: pa.Array, what: str) -> None:
    odd = values.filter(pc.or_(pc.match_substring_regex(values, r"[\s\p{Z}]"), pc.equal(values, "")))
    if len(odd):
        raise UserError(f"{what} {odd[0].as_py()!r}: TREC's format parts its columns by blanks; expected an id without")
