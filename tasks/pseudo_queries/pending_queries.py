"""Count what a build of a corpus would generate: changed passages, and queries that the generation cache lacks."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from storage.artifact import Artifact, Manifest, Source
from storage.batched import arrow_blocks
from storage.external.database import Database
from storage.generation_cache.cache import GenerationCache
from storage.generation_cache.invalidations import Invalidations
from storage.rows import num_rows, read_rows, rows_at
from storage.tables import GeneratedQueries, Passages, passage_sha256, passage_text
from tasks.pseudo_queries.generate_queries import Generator, NamedGeneration
from tasks.pseudo_queries.generators.sampler import GenerationRequest, Sampler
from tasks.pseudo_queries.version_join import PASSAGES, join_passages, passage_counts
from tasks.runtime.device import choose_device
from tasks.runtime.progress import progress

PASSAGES_PER_BLOCK = 10_000
MEASURED = 8  # passages that are generated for, where no earlier build says how fast a generator is
TEXTS = pa.schema([("passage_sha256", pa.string()), ("draw", pa.int32())])
CACHED = pa.schema([GeneratedQueries.schema.field(name) for name in ("passage_sha256", "draw", "rank")])
LACKING = """
    CREATE TABLE lacking AS SELECT texts.passage_sha256, {number} - count(DISTINCT rank) AS queries
    FROM texts LEFT JOIN (SELECT * FROM cached WHERE rank < {number}) AS usable USING (passage_sha256, draw)
    GROUP BY texts.passage_sha256
    """
COUNTED = """
    SELECT count(*) FILTER (queries > 0) AS passages, coalesce(sum(queries), 0)::BIGINT AS queries, count(*) AS texts
    FROM lacking
    """


@dataclass(frozen=True)
class Pending:
    """The queries of one generator for a corpus; passages with equal texts count once."""

    cached: int
    to_generate: int
    passages: int
    """Passages for which queries are to be generated."""


@dataclass(frozen=True)
class Rate:
    """The speed of a generator on this machine."""

    queries_per_second: float
    measured: str
    """Where it was measured."""


def compare_passages(
    database: Database, before: Artifact[Passages] | None, after: Artifact[Passages]
) -> dict[str, int]:
    """Return how many passages are the same, moved, changed, new and removed; the table `passages` has both."""
    versions = {"before": before, "after": after}
    rows = (row for name, passages in versions.items() if passages for row in _hashed(name, passages))
    join_passages(database, arrow_blocks(rows, PASSAGES, PASSAGES_PER_BLOCK))
    return passage_counts(database)


def _hashed(version: str, passages: Artifact[Passages]) -> Iterator[dict[str, object]]:
    total, rows = num_rows(passages.path), read_rows(passages, Passages)
    for number, row in enumerate(progress(rows, what="hashing passages", unit="passages", total=total)):
        sha256 = passage_sha256(passage_text(row["title"], row["text"]))
        # "hash" orders examples, which are not shown here: any number will do.
        yield {"version": version, "row": number, "passage_id": row["passage_id"], "text": sha256, "hash": number}


def count_pending(database: Database, cache: GenerationCache, settings: NamedGeneration) -> Pending:
    """Return what a generator's cache has and lacks for the passages of `compare_passages`."""
    invalidations, number = Invalidations.read(cache.invalidated()), settings.queries_per_passage
    database.create("texts", TEXTS, _texts(database, invalidations))
    database.create("cached", CACHED, (table.select(CACHED.names) for table in cache.read_unlocked(CACHED.names)))
    database.execute(LACKING.format(number=number))
    (counts,) = database.rows(COUNTED)
    for name in ("texts", "lacking", "cached"):
        database.drop(name)
    return Pending(counts["texts"] * number - counts["queries"], counts["queries"], counts["passages"])


def _texts(database: Database, invalidations: Invalidations) -> Iterator[pa.Table]:
    for batch in database.batches("SELECT DISTINCT text FROM passages WHERE version = 'after'"):
        texts = batch.column("text").to_pylist()
        yield pa.table({"passage_sha256": texts, "draw": list(map(invalidations.draw, texts))}, schema=TEXTS)


def recorded_rate(builds: Iterable[tuple[Path, Manifest | None]], generator: Generator) -> Rate | None:
    """Return the rate of the newest stage that generated with this generator here; None where none has."""
    rates = []
    for folder, manifest in builds:
        file = folder / "logs" / "written.json"
        if manifest and manifest.inputs.get("generator") == generator.reference and file.exists():
            queries = json.loads(file.read_text(encoding="utf-8"))["made"]
            if queries and manifest.built["seconds"]:
                rate = Rate(queries / manifest.built["seconds"], f"as {manifest.reference} took")
                rates.append((str(manifest.built["at"]), rate))
    return max(rates, key=lambda rate: rate[0])[1] if rates else None


def measured_rate(generator: Generator, settings: NamedGeneration, passages: Artifact[Passages]) -> Rate | None:
    """Generate queries of a few passages of the corpus and return the rate; None where the generator is not built."""
    total = num_rows(passages.path)
    if not total or not (isinstance(generator, Source) or generator.path.exists()):
        return None
    sampler = Sampler(generator.path, settings, choose_device(), lambda line: None)
    rows = rows_at(passages, Passages, np.linspace(0, total - 1, min(MEASURED, total)).astype(int).tolist(),
                   ["title", "text"]).to_pylist()  # fmt: skip
    ranks = range(settings.queries_per_passage)
    requests = [GenerationRequest(passage_text(row["title"], row["text"]), ranks, 0) for row in rows]
    list(sampler(requests[:1]))  # the first call also warms up
    start = time.perf_counter()
    list(sampler(requests))
    return Rate(len(requests) * len(ranks) / (time.perf_counter() - start), f"measured now, {len(requests)} passages")
