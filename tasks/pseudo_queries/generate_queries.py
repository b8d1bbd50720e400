"""doc2query: write queries that a passage answers (Nogueira and Lin 2019; paper 004, section 4.1).

What is drawn for a passage depends on the seed and its text alone, so it is written once and kept in a ledger
(`storage.ledger.ledger`): a corpus is its passages joined with what the ledger has, and only what is missing is
written. The work is the ledger's buckets, some together where they are small (`tasks/runtime/shards.py`); what a bucket
lacks is added to the ledger at once, so a run that was killed loses the buckets it was at.
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
from storage.ledger.ledger import BUCKETS, Ledger
from storage.ledger.regenerations import Replaced
from storage.settings import Seed, Settings
from storage.tables import Checkpoint, Filled, Passages, PseudoQueries, Written
from tasks.pseudo_queries import ledger_join
from tasks.pseudo_queries.generators.sampler import Asked, Sampler, open_sampler
from tasks.runtime.device import choose_device
from tasks.runtime.shard import Job, Shard, kept
from tasks.runtime.shards import run_shards
from tasks.session import store, tell
from tasks.stage import stage

VERSION = 2  # of what a generator writes with given settings; another one has ledgers of its own
GROUPS = 8  # of buckets, each with a lock: as many generations of the same ledger can go on side by side

Generator = Artifact[Checkpoint] | Source


class Generation(Settings):
    """How pseudo-queries are written."""

    queries_per_passage: Annotated[int, Field(ge=1)]
    prefix: str
    """Put before each passage, for an encoder-decoder; what the generator was trained with."""
    prompt: str | None = None
    """For a causal language model, instead of a prefix: a text with {passage} in it."""
    stop: str | None = None
    """What ends a causal model's query, such as a line's end; null leaves it to the model."""
    input_max_tokens: Annotated[int, Field(ge=2)]
    """Tokens read of prefix or prompt and passage, with special tokens; the rest of the passage is cut."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    top_k: Annotated[int, Field(ge=1)]
    """A token is drawn from the so many likeliest, 1 being greedy,"""
    top_p: Annotated[float, Field(gt=0, le=1)]
    """and of these from the fewest that hold this share of their probability."""
    max_new_tokens: Annotated[int, Field(ge=1)]
    seed: Seed
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """What the model computes in; auto is bfloat16 on a GPU and float32 on a CPU."""
    shard_passages: Annotated[int, Field(ge=1)]
    """Buckets are worked on together up to so many passages: what a killed run loses at most, if no bucket has more."""
    batch_tokens: Annotated[int, Field(ge=1)]
    """Passage tokens of a batch, with padding; each is decoded `queries_per_passage` times at once."""

    @model_validator(mode="after")
    def _one_way_of_asking(self) -> Generation:
        if self.prompt is not None and (self.prefix or "{passage}" not in self.prompt):
            raise ValueError("prompt: expected a text with {passage} in it, and an empty prefix")
        if self.stop is not None and (self.prompt is None or not self.stop):
            raise ValueError("stop: expected null where there is no prompt, or some characters that end a query")
        return self


class Writing(Generation):
    """A generation with the name of its generator, and the share of the work that is its own."""

    generator: str
    """What the recipe calls it."""
    share: tuple[Annotated[int, Field(ge=0)], Literal[1, 2, 4, 8]] = (0, 1)
    """Number and count of the shares that the buckets are divided into; (0, 1) is all of them."""

    def ledger_in(self, root: Path, generator: Generator) -> Ledger:
        """The ledger, in the store at `root`, of what this writes."""
        return Ledger.of(root, self.made_by(generator))

    def made_by(self, generator: Generator) -> dict[str, Any]:
        """All that decides a text; not how many there are, how they are made, or for which corpus."""
        others = {"queries_per_passage", "shard_passages", "batch_tokens", "generator", "share"}
        settings = self.model_dump(mode="json", exclude=others)
        return {"version": VERSION, "generator": generator.reference, "settings": settings}


@stage(version=1, table=Filled, gpu=True)
def fill_ledger(
    out: Path, passages: Artifact[Passages], generator: Generator, replaced: Source | None, *, settings: Writing
) -> None:
    """Write a share of the queries that the ledger lacks for these passages; several workers take a share each.

    `generate_queries` does this too, for whatever is missing; shares are for workers of their own.
    """
    counts = _fill(out, passages, generator, replaced, settings)
    written = {"ledger": _ledger(generator, settings).key, "share": settings.share}
    write_atomically(out / "filled.json", json.dumps(written))
    write_atomically(out / "logs" / "written.json", json.dumps(counts))
    tell(f"queries of {settings.generator}, share {settings.share[0] + 1}: {_in_words(counts)}")


@stage(version=2, table=PseudoQueries, gpu=True)
def generate_queries(
    out: Path, passages: Artifact[Passages], generator: Generator, replaced: Source | None,
    filled: Sequence[Artifact[Filled]], *, settings: Writing,
) -> None:  # fmt: skip
    """Write the pseudo-queries of every passage, in passage order; those that are missing are written now.

    `generator` is any Hugging Face seq2seq model, or a causal one where `prompt` is given. `replaced` says of which
    passages other queries than the first are wanted (`Ledger.replaced`). `filled` only come before.
    `logs/written.json` says how many rows were kept from the ledger and how many made.
    """
    counts, ledger = _fill(out, passages, generator, replaced, settings), _ledger(generator, settings)
    ledger_join.merge(out, lambda rows: _described(rows, generator, ledger, settings))
    write_atomically(out / "logs" / "written.json", json.dumps(counts))
    tell(f"queries of {settings.generator}: {_in_words(counts)}")
    if counts["empty"] == counts["kept"] + counts["made"]:
        raise UserError(f"{generator.path}: wrote only empty queries for {passages.path}; name another generator")


def _fill(
    out: Path, passages: Artifact[Passages], generator: Generator, replaced: Source | None, settings: Writing
) -> dict[str, int]:
    """Have the ledger hold what is asked for; how many rows it had, and how many were made, some of them empty."""
    ledger = _ledger(generator, settings)
    ledger.describe(settings.made_by(generator))
    with _alone_at(ledger, settings):
        shards = ledger_join.shards(out, passages, settings.shard_passages, _mine(settings))
        inputs = (generator, Source(ledger.key, ledger.folder), replaced)
        job = Job(write_buckets, out, inputs, settings, what="writing queries", unit="passages", on_gpus=True)
        run_shards(job, shards)
        for buckets in _mine(settings):
            ledger.merge(buckets.start, buckets.stop - 1)
    return ledger_join.counted(out)


def _in_words(counts: Mapping[str, int]) -> str:
    return f"{counts['kept']:,} kept, {counts['made']:,} made, {counts['empty']:,} of them empty"


def _ledger(generator: Generator, settings: Writing) -> Ledger:
    return settings.ledger_in(store().root, generator)


def _mine(settings: Writing) -> list[range]:
    """Groups of buckets that are this share's."""
    size, (number, count) = BUCKETS // GROUPS, settings.share
    return [range(group * size, (group + 1) * size) for group in range(GROUPS) if group % count == number]


@contextlib.contextmanager
def _alone_at(ledger: Ledger, settings: Writing) -> Iterator[None]:
    """Hold the locks of this share's groups, always in the same order: nobody else adds to them."""
    waiting = f"ledger {ledger.key[:8]}: another run writes queries with this generator; waiting"
    with contextlib.ExitStack() as held:
        for group in _mine(settings):
            held.enter_context(store().lock("ledger", f"{ledger.key}-{group.start:02x}", lambda: tell(waiting)))
        yield


def write_buckets(
    out: Path, shard: Shard, done: Callable[[int], object], generator: Generator, ledger: Source,
    replaced: Source | None, *, settings: Writing,
) -> None:  # fmt: skip
    """Write the queries that some buckets lack, add them to the ledger, and join its rows with their passages."""
    (first, last), book = shard.of, Ledger(ledger.path)
    passages = _with_draws(ledger_join.passages_of(out, first, last), Replaced.read(replaced))
    texts = passages["passage_sha256"].combine_chunks()
    found = book.rows(first, last, texts).filter(pc.field("rank") < settings.queries_per_passage)
    missing = _missing(passages, found, settings.queries_per_passage)
    done(len(passages) - len(missing))
    written = Written.schema.empty_table()
    if missing:
        rows: list[dict[str, Any]] = []
        try:
            for batch in _written(missing, kept(_sampler, generator, settings), done):
                rows += batch
        except UserError:  # a passage is refused: what was written until then is not written again
            book.add(first, last, _new(rows, found))
            raise
        written = _new(rows, found)
        book.add(first, last, written)
    flagged = [
        rows.append_column("made", pa.repeat(made, len(rows))) for made, rows in ((False, found), (True, written))
    ]
    ledger_join.write_joined(out, shard, passages, pa.concat_tables(flagged))


def _with_draws(passages: pa.Table, replaced: Replaced) -> pa.Table:
    """The passages with the number of the draw that each is to have."""
    draws = [replaced.draw(sha256) for sha256 in passages["passage_sha256"].to_pylist()]
    return passages.append_column("draw", pa.array(draws, pa.int32()))


def _missing(passages: pa.Table, found: pa.Table, number: int) -> dict[str, Asked]:
    """What is to be written of texts of which fewer than so many queries were found, by hash."""
    ranks: dict[tuple[str, int], set[int]] = {}
    for row in found.select(["passage_sha256", "draw", "rank"]).to_pylist():
        ranks.setdefault((row["passage_sha256"], row["draw"]), set()).add(row["rank"])
    missing = {}
    for row in passages.select(["passage_sha256", "draw", "text"]).to_pylist():
        if lacking := sorted(set(range(number)) - ranks.get((row["passage_sha256"], row["draw"]), set())):
            asked = range(lacking[0], lacking[-1] + 1)
            missing[row["passage_sha256"]] = Asked(row["text"], asked, row["draw"])
    return missing


def _new(rows: list[dict[str, Any]], found: pa.Table) -> pa.Table:
    """Those of the rows that were not found before."""
    written = pa.Table.from_pylist(rows, schema=Written.schema)
    return written.join(found, ["passage_sha256", "draw", "rank"], join_type="left anti").cast(Written.schema)


def _written(
    missing: Mapping[str, Asked], sampler: Sampler, done: Callable[[int], object]
) -> Iterator[list[dict[str, Any]]]:
    """What the generator writes, batch by batch; rows of `Written`."""
    hashes, asked = list(missing), list(missing.values())
    for batch in sampler(asked):
        rows = []
        for place, queries in batch:
            names = {"passage_sha256": hashes[place], "draw": asked[place].draw}
            by_rank = zip(asked[place].ranks, queries, strict=True)
            rows += [names | {"rank": rank, "query": query} for rank, query in by_rank]
        yield rows
        done(len(batch))


def _sampler(generator: Generator, settings: Writing) -> Sampler:
    return open_sampler(generator.path, settings, choose_device(), tqdm.write)


def _described(rows: pa.Table, generator: Generator, ledger: Ledger, settings: Writing) -> pa.Table:
    """Rows of PseudoQueries."""
    kept_ = pc.not_equal(rows["query"], "")
    columns = {
        "generator": settings.generator, "revision": generator.key, "ledger": ledger.key, "seed": settings.seed,
        "round_trip": None, "relevance": None,
    }  # fmt: skip
    for name, value in columns.items():
        rows = rows.append_column(name, pa.repeat(pa.scalar(value, PseudoQueries.schema.field(name).type), len(rows)))
    return rows.append_column("kept", kept_).append_column("reason", pc.if_else(kept_, "", "empty"))
