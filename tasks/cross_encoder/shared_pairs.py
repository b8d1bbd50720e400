"""The pairs of a query and a passage that a stage scores, in files that its processes share as memory maps.

A part has the pairs of QUERIES_PER_PART queries and becomes one file of the table. Only the
pairs of a part decide which pairs share a batch, so that the bytes depend neither on the number of processes nor on an
interruption. A shard has several parts: while one is scored, a thread reads and tokenises the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from models.retrievers.cross_encoder import Pair, encode_pair
from models.tokens import Tokenizer
from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.external.database import Database
from storage.external.mapped_index import MappedPassageIndex, MappedRowIndex, write_row_index
from storage.external.mapped_strings import mapped_numbers, mapped_strings
from storage.rows import read_rows, table_blocks
from storage.store.publishing import SCRATCH
from storage.tables import Checkpoint, Passages, Queries
from tasks.cross_encoder.pairs import Scorer, Scoring
from tasks.finetuning.training_data import missing_passage
from tasks.retrieval.shared_passages import share_passages, share_texts, shared_passages, write_once
from tasks.runtime.leftovers import is_intact, record
from tasks.runtime.shard import Shard, ShardTask, load_once, part
from tasks.runtime.work_folder import PASSAGE_TEXTS

QUERIES_PER_PART = 128  # some 10,000 pairs with 64 passages per query; a finished part is never scored again
PARTS_PER_SHARD = 8
FOLDER = Path(SCRATCH) / "pairs"
PAIRS = pa.schema([("query", pa.int64()), ("passage", pa.int64()), ("number", pa.int64())])
DISTINCT = """
    CREATE TABLE distinct_pairs AS
    SELECT query, passage, min(number) AS number FROM pairs GROUP BY query, passage
    """
ORDERED = "SELECT query, passage FROM distinct_pairs ORDER BY query, number"


def share_pairs(
    out: Path, queries: Artifact[Queries], passages: Artifact[Passages], sources: Mapping[str, Iterable[pa.Table]]
) -> list[Shard]:
    """Write the pairs of tables with query_id and passage_id, by reference, and return their shards.

    The pairs are different, in the order of the queries, and those of a query in the order of the tables. Rows of other
    queries are left out. Raises UserError if a passage is not in `passages`.
    """
    ids = share_passages(out, passages)
    share_texts(out, passages)

    def write(folder: Path) -> None:
        with Database(out / SCRATCH / "database") as database:
            database.create("pairs", PAIRS, _numbered(folder, queries, ids, sources, passages))
            database.execute(DISTINCT)
            _write_pairs(folder, database.batches(ORDERED))

    write_once(out, FOLDER, write)
    starts = mapped_numbers(out / FOLDER / "starts", np.int64)
    num_parts = len(starts) - 1
    shards = []
    for number, first in enumerate(range(0, num_parts, PARTS_PER_SHARD)):
        last = min(first + PARTS_PER_SHARD, num_parts)
        files = [f"{part(index)}.parquet" for index in range(first, last)]
        shards.append(Shard(number, int(starts[last] - starts[first]), files, [first, last]))
    return shards


def _numbered(
    folder: Path, queries: Artifact[Queries], ids: MappedPassageIndex, sources: Mapping[str, Iterable[pa.Table]],
    passages: Artifact[Passages],
) -> Iterator[pa.Table]:  # fmt: skip
    """Yield the rows of queries and passages of all pairs, numbered in their order."""
    query_ids = (block["query_id"].combine_chunks() for block in table_blocks(queries.path, Queries, ["query_id"]))
    write_row_index(folder / "queries", query_ids)
    index, number = MappedRowIndex(folder / "queries"), 0
    for reference, blocks in sources.items():
        for block in blocks:
            query_rows = index.rows(block["query_id"])
            passage_ids = block["passage_id"].filter(pa.array(query_rows >= 0))
            passage_rows = ids.require(passage_ids, partial(missing_passage, reference, passages))
            numbers = np.arange(number, number + len(passage_rows))
            number += len(passage_rows)
            yield pa.table([query_rows[query_rows >= 0], passage_rows, numbers], schema=PAIRS)


def _write_pairs(folder: Path, batches: Iterable[pa.RecordBatch]) -> None:
    """Write the rows of queries and passages, and the number of the first pair of each part, then of all pairs."""
    starts, last, count, num_queries = [], -1, 0, 0
    with (folder / "query").open("wb") as queries, (folder / "passage").open("wb") as passages:
        for batch in batches:
            query_rows, passage_rows = (column.to_numpy() for column in batch.columns)
            firsts = np.flatnonzero(np.diff(query_rows, prepend=last))
            is_start = (num_queries + np.arange(len(firsts))) % QUERIES_PER_PART == 0
            starts += (count + firsts[is_start]).tolist()
            num_queries, count, last = num_queries + len(firsts), count + len(query_rows), int(query_rows[-1])
            queries.write(query_rows.tobytes())
            passages.write(passage_rows.tobytes())
    (folder / "starts").write_bytes(np.array([*starts, count], np.int64).tobytes())


class ScoredPart(NamedTuple):
    """The pairs of a part with their scores, N pairs in the order of the queries."""

    query_ids: list[str]
    """[N]"""
    passage_rows: NDArray[np.int64]
    """[N]"""
    scores: NDArray[np.float32]
    """[N]"""
    name: str
    """The name of the file to write, without its suffix."""


class PairScorer:
    """A cross-encoder, and the pairs that `share_pairs` has written to the folder of a stage."""

    def __init__(
        self, out: Path, teacher: Artifact[Checkpoint] | Source, queries: Artifact[Queries], settings: Scoring
    ) -> None:
        self.scorer, self.settings = Scorer(teacher, settings), settings
        self.teacher, self.queries, self.ids = teacher, queries, shared_passages(out)
        self.texts = mapped_strings(out / PASSAGE_TEXTS)
        files = (out / FOLDER / name for name in ("starts", "query", "passage"))
        self.starts, self.query_rows, self.passage_rows = (mapped_numbers(file, np.int64) for file in files)

    def parts(self, task: ShardTask) -> Iterator[ScoredPart]:
        """Yield the parts of a shard that are not finished; the caller writes each before it takes the next."""
        numbers = []
        for number in range(*task.shard.of):
            if is_intact(task.out, f"{part(number)}.parquet"):
                task.done(int(self.starts[number + 1] - self.starts[number]))
            else:
                numbers.append(number)
        if not numbers:
            return
        with ThreadPoolExecutor(1) as reader:
            tokenised = reader.submit(self._tokenised, numbers[0])
            for number, following in zip(numbers, [*numbers[1:], None], strict=True):
                query_ids, pairs = tokenised.result()
                if following is not None:
                    tokenised = reader.submit(self._tokenised, following)
                passage_rows = self.passage_rows[self.starts[number] : self.starts[number + 1]]
                scores = self.scorer(pairs, task.done)
                self._check_finite(scores, query_ids, passage_rows)
                yield ScoredPart(query_ids, passage_rows, scores, part(number))
                record(task.out, f"{part(number)}.parquet")

    def _tokenised(self, number: int) -> tuple[list[str], list[Pair]]:
        """Return the query's id and the token ids of each pair of a part."""
        span = slice(self.starts[number], self.starts[number + 1])
        rows, query_of_pair = np.unique(self.query_rows[span], return_inverse=True)
        passage_rows, passage_of_pair = np.unique(self.passage_rows[span], return_inverse=True)
        table = list(read_rows(self.queries, Queries, int(rows[0]), int(rows[-1]) + 1))
        topics = [table[row - rows[0]] for row in rows]
        tokenizer: Tokenizer = self.scorer.tokenizer
        queries = tokenizer.token_ids([topic["text"] for topic in topics])
        passages = tokenizer.token_ids(self.texts.take(pa.array(passage_rows)).to_pylist())
        pairs = [
            encode_pair(tokenizer, queries[query], passages[passage], **self.settings.limits)
            for query, passage in zip(query_of_pair, passage_of_pair, strict=True)
        ]
        return [topics[query]["query_id"] for query in query_of_pair], pairs

    def _check_finite(self, scores: NDArray[np.float32], query_ids: list[str], passage_rows: NDArray[np.int64]) -> None:
        if (wrong := np.flatnonzero(~np.isfinite(scores))).size:
            number = int(wrong[0])
            passage = self.ids.ids[int(passage_rows[number])].as_py()
            raise UserError(
                f"{self.teacher.reference}: its score of query {query_ids[number]!r} with passage {passage!r} is not a "
                "number; train it again with a lower learning rate"
            )


def pair_scorer(
    task: ShardTask, teacher: Artifact[Checkpoint] | Source, queries: Artifact[Queries], settings: Scoring
) -> PairScorer:
    """Return the scorer of a shard's pairs, which a process loads once."""
    return load_once(PairScorer, task.out, teacher, queries, settings)
