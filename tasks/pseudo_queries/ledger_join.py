"""A join on disk of passages with generated queries, by the hash of the passage's text, restored to passage order.

All files are in a stage's `scratch` until its artifact is published: passages sorted by hash in several files, and for
each shard its passages joined with their queries, sorted by the passage's position in the corpus (`place`).

It is not a join in a database (`storage.external.database`), because weeks of generation must survive a killed process:
each sorted file and each shard is complete once it is recorded, and several processes write shards at the same time.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from storage.artifact import Artifact
from storage.batched import portions
from storage.files import write_atomically, writing
from storage.generation_cache.cache import BUCKETS, hashes_within
from storage.rows import num_rows, read_rows, write_table
from storage.store.publishing import SCRATCH
from storage.tables import Passages, PseudoQueries, passage_sha256, passage_text
from tasks.runtime.leftovers import record, unfinished
from tasks.runtime.progress import progress
from tasks.runtime.shard import Shard, part

SORTED, COUNTS, JOINED = f"{SCRATCH}/by_prefix", "counts.json", f"{SCRATCH}/joined-????.parquet"
PREFIX_DIGITS = 4  # of a passage's hash, by which passages are counted and divided into shards
PREFIXES_PER_BUCKET = 16**PREFIX_DIGITS // BUCKETS
SORTED_AT_ONCE = 100_000  # passages in memory for sorting, fewer if they are long:
CHARACTERS_AT_ONCE = 100_000_000
PASSAGES_PER_PART = 200_000  # passages whose queries are one file of the table
ROWS_PER_GROUP = 2_000  # of sorted files; small, since a shard reads a range of each file


def shards(out: Path, passages: Artifact[Passages], size: int, ranges: Sequence[range]) -> list[Shard]:
    """Return shards of up to `size` passages, of neighbouring buckets or of a part of one; `of` is a range of prefixes.

    `bucket_range` returns the buckets of such a range. More than `size` passages have a shard only with equal prefixes.
    """
    counts = np.array(_sorted_by_hash(out, passages))
    spans = [span for buckets in ranges for span in _spans(buckets, counts, size)]
    return [
        Shard(number, int(counts[first : last + 1].sum()), [f"{SCRATCH}/joined-{first:04x}.parquet"], [first, last])
        for number, (first, last) in enumerate(spans)
    ]


def bucket_range(first: int, last: int) -> tuple[int, int]:
    """Return the first and last bucket of a range of prefixes."""
    return first // PREFIXES_PER_BUCKET, last // PREFIXES_PER_BUCKET


def _spans(buckets: range, counts: NDArray[np.int64], size: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of prefixes, with `counts` passages each, that have up to `size` passages."""
    counts_of_buckets = counts.reshape(BUCKETS, PREFIXES_PER_BUCKET).sum(axis=1)
    for first, last in _together(buckets, counts_of_buckets, size):
        prefixes = range(first * PREFIXES_PER_BUCKET, (last + 1) * PREFIXES_PER_BUCKET)
        if counts_of_buckets[first] > size:  # a bucket that is too large is the only one of its range
            yield from _together(prefixes, counts, size)
        else:
            yield prefixes[0], prefixes[-1]


def _together(numbers: range, counts: NDArray[np.int64], size: int) -> Iterator[tuple[int, int]]:
    """Yield the first and last of neighbouring numbers with up to `size` passages together; one number may have more.

    Numbers without passages are skipped.
    """
    group: list[int] = []
    for number in (number for number in numbers if counts[number]):
        if group and counts[group].sum() + counts[number] > size:
            yield group[0], group[-1]
            group = []
        group.append(number)
    if group:
        yield group[0], group[-1]


def passages_of(out: Path, first: int, last: int) -> pa.Table:
    """Return the passages of the prefixes first to last, by hash: place, passage_id, doc_id, passage_sha256, text."""
    paths, within = sorted((out / SORTED).glob("*.parquet")), hashes_within(first, last, PREFIX_DIGITS)
    return pa.concat_tables(pq.read_table(path, filters=within) for path in paths).sort_by(
        [("passage_sha256", "ascending"), ("place", "ascending")]
    )


def write_joined(out: Path, shard: Shard, passages: pa.Table, generated: pa.Table) -> None:
    """Write a shard's passages joined with generated queries of the same passage_sha256 and draw."""
    rows = passages.drop_columns("text").join(generated, ["passage_sha256", "draw"], join_type="inner")
    with writing(out / shard.files[0]) as temporary:
        pq.write_table(_in_order(rows), temporary, row_group_size=ROWS_PER_GROUP)


def merge(out: Path, described: Callable[[pa.Table], pa.Table]) -> None:
    """Write the rows of all shards in the order of the passages, with the columns that `described` adds."""
    paths, total = sorted(out.glob(JOINED)), sum(_counts(out))
    for number, first in enumerate(range(0, total, PASSAGES_PER_PART)):
        if unfinished(out, [f"{part(number)}.parquet"]):
            here = [("place", ">=", first), ("place", "<", first + PASSAGES_PER_PART)]
            rows = pa.concat_tables(pq.read_table(path, filters=here) for path in paths)
            write_table(out, PseudoQueries, described(_in_order(rows)), part(number))
            record(out, f"{part(number)}.parquet")


def counted(out: Path) -> dict[str, int]:
    """Return the numbers of rows that are from the generation cache, newly generated, and empty among both."""
    counts = Counter({"kept": 0, "made": 0, "empty": 0})
    for path in sorted(out.glob(JOINED)):
        rows = pq.read_table(path, columns=["made", "query"])
        generated = pc.sum(rows["made"]).as_py()
        counts.update(made=generated, kept=len(rows) - generated, empty=pc.sum(pc.equal(rows["query"], "")).as_py())
    return dict(counts)


def _in_order(rows: pa.Table) -> pa.Table:
    return rows.sort_by([("place", "ascending"), ("rank", "ascending")])


def _sorted_by_hash(out: Path, passages: Artifact[Passages]) -> list[int]:
    """Sort the passages by hash into files, unless that is done; return the number of passages with each prefix."""
    if unfinished(out, [SORTED]):
        counts = np.zeros(16**PREFIX_DIGITS, np.int64)
        total, rows = num_rows(passages.path), read_rows(passages, Passages)
        numbered = enumerate(progress(rows, total=total, what="hashing passages", unit="passages"))
        hashed = (_hashed(number, row) for number, row in numbered)
        limits = {"limit": CHARACTERS_AT_ONCE, "number": SORTED_AT_ONCE}
        for portion in portions(hashed, size=lambda row: len(row["text"]), **limits):
            np.add.at(counts, [int(row["passage_sha256"][:PREFIX_DIGITS], 16) for row in portion], 1)
            with writing(out / SORTED / f"{portion[0]['place']:012d}.parquet") as temporary:
                table = pa.Table.from_pylist(portion).sort_by("passage_sha256")
                pq.write_table(table, temporary, row_group_size=ROWS_PER_GROUP)
        write_atomically(out / SORTED / COUNTS, json.dumps(counts.tolist()))
        record(out, SORTED)
    return _counts(out)


def _counts(out: Path) -> list[int]:
    counts: list[int] = json.loads((out / SORTED / COUNTS).read_text(encoding="utf-8"))
    return counts


def _hashed(number: int, row: dict[str, Any]) -> dict[str, Any]:
    text = passage_text(row["title"], row["text"])
    return {
        "place": number, "passage_id": row["passage_id"], "doc_id": row["doc_id"],
        "passage_sha256": passage_sha256(text), "text": text,
    }  # fmt: skip
