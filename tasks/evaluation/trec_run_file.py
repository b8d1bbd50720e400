"""Write a run in the TREC format, `query Q0 document rank score tag`, in the order in which it is evaluated.

Passages are folded to documents (`tasks.evaluation.max_passage`), since qrels name documents. Scores have nine
significant digits, from which the float32 number is recovered exactly.
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
from storage.row_index import PassageIndex, RowIndex
from storage.tables import Run
from tasks.evaluation.max_passage import fold, without_identical_ids
from tasks.retrieval.run_lists import query_blocks


def trec_lines(run: Artifact[Run], index: PassageIndex, tag: str, *, ignore_identical_ids: bool) -> Iterator[str]:
    """Yield the lines of a run, query by query, with the index of the ranked passages.

    Raises UserError for an id that contains white space.
    """
    for values, what in ((index.doc_ids, "document"), (pa.array([tag]), "tag")):
        _refuse_white_space(values, what)
    for block in query_blocks(run):
        rows = without_identical_ids(block, index) if ignore_identical_ids else block
        queries = RowIndex(rows["query_id"].unique())
        _refuse_white_space(queries.ids, "query")
        for query_id, documents in zip(queries.ids.to_pylist(), fold(rows, queries, index, len(rows)), strict=True):
            ranked = documents[documents[:, 0] >= 0]
            doc_ids = index.doc_ids.take(pa.array(ranked[:, 0].astype("int64"))).to_pylist()
            for rank, (doc_id, score) in enumerate(zip(doc_ids, ranked[:, 1], strict=True), start=1):
                yield f"{query_id} Q0 {doc_id} {rank} {score:.9g} {tag}\n"


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines, compressed if the name ends in .gz; equal lines give equal bytes."""
    with writing(path) as temporary, temporary.open("wb") as file:
        if path.suffix == ".gz":
            with gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as compressed:
                compressed.writelines(line.encode() for line in lines)
        else:
            file.writelines(line.encode() for line in lines)


def _refuse_white_space(values: pa.Array, what: str) -> None:
    invalid = values.filter(pc.or_(pc.match_substring_regex(values, r"[\s\p{Z}]"), pc.equal(values, "")))
    if len(invalid):
        raise UserError(
            f"{what} {invalid[0].as_py()!r}: the TREC format separates columns by blanks; expected an id without blanks"
        )
