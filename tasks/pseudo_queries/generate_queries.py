"""doc2query: generate queries that a passage answers (Nogueira and Lin 2019; query-as-context, section 4.1).

The queries of a passage depend only on the seed and its text, so they are generated once and stored in the generation
cache (`storage.generation_cache.cache`). A corpus of pseudo-queries is its passages joined with the cache; only missing
queries are generated. A shard is one or more buckets of the cache, or a part of a large one. The queries that it lacks
are added to the cache together, so a killed run loses only the shards that it was working on.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator
from tqdm import tqdm

from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.files import write_atomically
from storage.generation_cache.cache import BUCKETS, GenerationCache
from storage.generation_cache.invalidations import Invalidations
from storage.settings import Seed, Settings
from storage.tables import Checkpoint, Filled, GeneratedQueries, Passages, PseudoQueries
from tasks.pseudo_queries import ledger_join
from tasks.pseudo_queries.generators.sampler import GenerationRequest, Sampler
from tasks.runtime.device import choose_device
from tasks.runtime.shard import ShardJob, ShardTask, load_once
from tasks.runtime.shards import run_shards
from tasks.session import print_line, store
from tasks.stage import stage

VERSION = 2  # of the queries that equal settings generate; each version has its own caches
GROUPS = 8  # of buckets, each with a lock: the number of runs that can fill one cache at the same time

Generator = Artifact[Checkpoint] | Source


class Generation(Settings):
    """The settings for generating pseudo-queries."""

    queries_per_passage: Annotated[int, Field(ge=1)]
    prefix: str
    """Put before each passage, for an encoder-decoder; the prefix that the generator was trained with."""
    prompt: str | None = None
    """For a causal language model, instead of a prefix: a text with {passage} in it."""
    stop: str | None = None
    """The string that ends a query of a causal model, such as a line break; null leaves it to the model."""
    input_max_tokens: Annotated[int, Field(ge=2)]
    """Tokens of prefix or prompt and passage, with special tokens; the rest of the passage is truncated."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    top_k: Annotated[int, Field(ge=1)]
    """The number of likeliest tokens from which one is sampled; 1 is greedy decoding."""
    top_p: Annotated[float, Field(gt=0, le=1)]
    """The share of the top k's probability to which the candidates are cut: nucleus sampling."""
    max_new_tokens: Annotated[int, Field(ge=1)]
    seed: Seed
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """The model's number format; auto is bfloat16 on a GPU and float32 on a CPU."""
    shard_passages: Annotated[int, Field(ge=1)]
    """Passages per shard: the most that are in memory, and that a killed run loses."""
    batch_tokens: Annotated[int, Field(ge=1)]
    """Passage tokens per batch, with padding; each passage is decoded `queries_per_passage` times at once."""

    @model_validator(mode="after")
    def _prefix_or_prompt(self) -> Generation:
        if self.prompt is not None and (self.prefix or "{passage}" not in self.prompt):
            raise ValueError("prompt: expected a text with {passage} in it, and an empty prefix")
        if self.stop is not None and (self.prompt is None or not self.stop):
            raise ValueError("stop: expected null where there is no prompt, or some characters that end a query")
        return self


class NamedGeneration(Generation):
    """The settings of a generation with the generator's name and the share of the buckets to fill."""

    generator: str
    """Its name in the recipe."""
    share: tuple[Annotated[int, Field(ge=0)], Literal[1, 2, 4, 8]] = (0, 1)
    """Number of this share, and the number of shares that divide the buckets; (0, 1) is all buckets."""

    def ledger_in(self, root: Path, generator: Generator) -> GenerationCache:
        """Return the generation cache of these settings in the store at `root`."""
        return GenerationCache.of(root, self.provenance(generator))

    def provenance(self, generator: Generator) -> dict[str, Any]:
        """Return everything that determines a generated text; the number of texts and the batches do not."""
        without_effect = {"queries_per_passage", "shard_passages", "batch_tokens", "generator", "share"}
        settings = self.model_dump(mode="json", exclude=without_effect)
        return {"version": VERSION, "generator": generator.reference, "settings": settings}


@stage(version=1, table=Filled, gpu=True)
def fill_ledger(
    out: Path, passages: Artifact[Passages], generator: Generator, replaced: Source | None, *, settings: NamedGeneration
) -> None:
    """Generate a share of the queries that the cache lacks for these passages; each of several workers takes a share.

    `generate_queries` also generates all missing queries; shares are for several workers.
    """
    counts = _fill(out, passages, generator, replaced, settings)
    filled = {"ledger": _ledger(generator, settings).key, "share": settings.share}
    write_atomically(out / "filled.json", json.dumps(filled))
    write_atomically(out / "logs" / "written.json", json.dumps(counts))
    print_line(f"queries of {settings.generator}, share {settings.share[0] + 1}: {_in_words(counts)}")


@stage(version=2, table=PseudoQueries, gpu=True)
def generate_queries(
    out: Path, passages: Artifact[Passages], generator: Generator, replaced: Source | None,
    filled: Sequence[Artifact[Filled]], *, settings: NamedGeneration,
) -> None:  # fmt: skip
    """Write the pseudo-queries of every passage, in passage order; missing ones are generated.

    `generator` is any Hugging Face seq2seq model, or a causal one if `prompt` is given. `replaced` lists the passages
    whose queries are resampled (`GenerationCache.invalidated`). `filled` only orders the stages. `logs/written.json`
    has the numbers of rows kept from the cache and of generated rows.
    """
    counts, cache = _fill(out, passages, generator, replaced, settings), _ledger(generator, settings)
    ledger_join.merge(out, lambda rows: _described(rows, generator, cache, settings))
    write_atomically(out / "logs" / "written.json", json.dumps(counts))
    print_line(f"queries of {settings.generator}: {_in_words(counts)}")
    if counts["empty"] == counts["kept"] + counts["made"]:
        raise UserError(f"{generator.path}: generated only empty queries for {passages.path}; use another generator")


def _fill(
    out: Path, passages: Artifact[Passages], generator: Generator, replaced: Source | None, settings: NamedGeneration
) -> dict[str, int]:
    """Complete the cache for these passages; return the numbers of kept, generated and empty rows."""
    cache = _ledger(generator, settings)
    cache.describe(settings.provenance(generator))
    with _locked(cache, settings):
        shards = ledger_join.shards(out, passages, settings.shard_passages, _bucket_groups(settings))
        inputs = (generator, Source(cache.key, cache.folder), replaced)
        job = ShardJob(write_buckets, out, inputs, settings, what="generating queries", unit="passages", on_gpus=True)
        run_shards(job, shards)
        for buckets in _bucket_groups(settings):
            cache.merge(buckets.start, buckets.stop - 1)
    return ledger_join.counted(out)


def _in_words(counts: Mapping[str, int]) -> str:
    return f"{counts['kept']:,} from the cache, {counts['made']:,} generated, {counts['empty']:,} of them empty"


def _ledger(generator: Generator, settings: NamedGeneration) -> GenerationCache:
    return settings.ledger_in(store().root, generator)


def _bucket_groups(settings: NamedGeneration) -> list[range]:
    """Return the groups of buckets of this share."""
    size, (number, count) = BUCKETS // GROUPS, settings.share
    return [range(group * size, (group + 1) * size) for group in range(GROUPS) if group % count == number]


@contextlib.contextmanager
def _locked(cache: GenerationCache, settings: NamedGeneration) -> Iterator[None]:
    """Hold the locks of this share's groups, always taken in the same order; no other run adds to them meanwhile."""
    waiting = f"generation cache {cache.key[:8]}: another run generates queries with this generator; waiting"
    with contextlib.ExitStack() as held:
        for group in _bucket_groups(settings):
            held.enter_context(store().lock("ledger", f"{cache.key}-{group.start:02x}", lambda: print_line(waiting)))
        yield


def write_buckets(
    task: ShardTask, generator: Generator, ledger: Source, replaced: Source | None, *, settings: NamedGeneration
) -> None:
    """Generate the queries that a shard's passages lack, add them to the cache, and join its rows with the passages."""
    (first, last), cache = ledger_join.bucket_range(*task.shard.of), GenerationCache(ledger.path)
    passages, invalidations = ledger_join.passages_of(task.out, *task.shard.of), Invalidations.read(replaced)
    draws = [invalidations.draw(sha256) for sha256 in passages["passage_sha256"].to_pylist()]
    passages = passages.append_column("draw", pa.array(draws, pa.int32()))
    texts = passages["passage_sha256"].combine_chunks()
    cached = cache.rows(first, last, texts).filter(pc.field("rank") < settings.queries_per_passage)
    missing = _missing(passages, cached, settings.queries_per_passage)
    task.done(len(passages) - len(missing))
    generated = GeneratedQueries.schema.empty_table()
    if missing:
        rows: list[dict[str, Any]] = []
        try:
            for batch in _generate(missing, load_once(_sampler, generator, settings), task.done):
                rows += batch
        except UserError:  # a passage is refused: keep what was generated before it
            cache.add(first, last, _new(rows, cached))
            raise
        generated = _new(rows, cached)
        cache.add(first, last, generated)
    tables = [
        rows.append_column("made", pa.repeat(new, len(rows))) for new, rows in ((False, cached), (True, generated))
    ]
    ledger_join.write_joined(task.out, task.shard, passages, pa.concat_tables(tables))


def _missing(passages: pa.Table, cached: pa.Table, number: int) -> dict[str, GenerationRequest]:
    """Return, by hash, a request for each text with fewer than `number` cached queries."""
    ranks: dict[tuple[str, int], set[int]] = {}
    for row in cached.select(["passage_sha256", "draw", "rank"]).to_pylist():
        ranks.setdefault((row["passage_sha256"], row["draw"]), set()).add(row["rank"])
    missing = {}
    for row in passages.select(["passage_sha256", "draw", "text"]).to_pylist():
        if lacking := sorted(set(range(number)) - ranks.get((row["passage_sha256"], row["draw"]), set())):
            requested = range(lacking[0], lacking[-1] + 1)
            missing[row["passage_sha256"]] = GenerationRequest(row["text"], requested, row["draw"])
    return missing


def _new(rows: list[dict[str, Any]], cached: pa.Table) -> pa.Table:
    """Return the rows that the cache lacks."""
    generated = pa.Table.from_pylist(rows, schema=GeneratedQueries.schema)
    lacking = generated.join(cached, ["passage_sha256", "draw", "rank"], join_type="left anti")
    return lacking.cast(GeneratedQueries.schema)


def _generate(
    missing: Mapping[str, GenerationRequest], sampler: Sampler, done: Callable[[int], object]
) -> Iterator[list[dict[str, Any]]]:
    """Yield the generated queries batch by batch, as rows of `GeneratedQueries`."""
    hashes, requests = list(missing), list(missing.values())
    for batch in sampler(requests):
        rows = []
        for index, queries in batch:
            names = {"passage_sha256": hashes[index], "draw": requests[index].draw}
            by_rank = zip(requests[index].ranks, queries, strict=True)
            rows += [names | {"rank": rank, "query": query} for rank, query in by_rank]
        yield rows
        done(len(batch))


def _sampler(generator: Generator, settings: NamedGeneration) -> Sampler:
    return Sampler(generator.path, settings, choose_device(), tqdm.write)


def _described(rows: pa.Table, generator: Generator, cache: GenerationCache, settings: NamedGeneration) -> pa.Table:
    """Return the rows with the other columns of PseudoQueries."""
    not_empty = pc.not_equal(rows["query"], "")
    columns = {
        "generator": settings.generator, "revision": generator.key, "ledger": cache.key, "seed": settings.seed,
        "round_trip": None, "relevance": None,
    }  # fmt: skip
    for name, value in columns.items():
        rows = rows.append_column(name, pa.repeat(pa.scalar(value, PseudoQueries.schema.field(name).type), len(rows)))
    return rows.append_column("kept", not_empty).append_column("reason", pc.if_else(not_empty, "", "empty"))
