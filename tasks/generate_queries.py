"""doc2query: write queries that a passage answers (Nogueira and Lin 2019; paper 004, section 4.1).

Passages are taken in shards (`tasks/shards.py`), so a run that was killed goes on where it stopped.
What is drawn for a passage depends on the seed and its text alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from tqdm import tqdm

from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.rows import num_rows, read_rows, write_rows
from storage.settings import Settings
from storage.tables import Checkpoint, Passages, PseudoQueries, passage_text
from tasks.device import choose_device
from tasks.generators.sampling import Asked, Sampler, open_sampler
from tasks.shards import Job, Shard, kept, part, row_shards, run_shards
from tasks.stage import stage


class Generation(Settings):
    """How pseudo-queries are written."""

    queries_per_passage: Annotated[int, Field(ge=1)]
    prefix: str
    """Put before each passage; what the generator was trained with."""
    input_max_tokens: Annotated[int, Field(ge=2)]
    """Tokens read of prefix and passage, with special tokens; the rest is cut."""
    top_k: Annotated[int, Field(ge=1)]
    """A token is drawn from the so many likeliest, 1 being greedy,"""
    top_p: Annotated[float, Field(gt=0, le=1)]
    """and of these from the fewest that hold this share of their probability."""
    max_new_tokens: Annotated[int, Field(ge=1)]
    seed: int
    shard_passages: Annotated[int, Field(ge=1)]
    """Passages of a shard: what a killed run loses at most."""
    batch_tokens: Annotated[int, Field(ge=1)]
    """Passage tokens of a batch, with padding; each is decoded `queries_per_passage` times at once."""


@stage(version=1, table=PseudoQueries, gpu=True)
def generate_queries(
    out: Path, passages: Artifact[Passages], generator: Artifact[Checkpoint] | Source, *, settings: Generation
) -> None:
    """Write the pseudo-queries of every passage, in passage order; empty ones are left out.

    `generator` is any Hugging Face seq2seq model. A passage's `rank` numbers its samples as they were drawn.
    """
    job = Job(write_part, out, (passages, generator), settings, what="writing queries", unit="passages", on_gpus=True)
    run_shards(job, row_shards(num_rows(passages.path), settings.shard_passages))
    if not num_rows(out):
        raise UserError(f"{generator.path}: wrote only empty queries for {passages.path}; name another generator")


def write_part(
    out: Path, shard: Shard, done: Callable[[int], object], passages: Artifact[Passages],
    generator: Artifact[Checkpoint] | Source, *, settings: Generation,
) -> None:  # fmt: skip
    """Write the pseudo-queries of a shard's passages."""
    sampler, rows = kept(_sampler, generator, settings), list(read_rows(passages, Passages, *shard.of))
    write_rows(out, PseudoQueries, _queries(rows, sampler, settings.queries_per_passage, done), part(shard.number))


def _sampler(generator: Artifact[Checkpoint] | Source, settings: Generation) -> Sampler:
    return open_sampler(generator.path, settings, choose_device(), tqdm.write)


def _queries(
    rows: Sequence[dict[str, Any]], sampler: Sampler, number: int, done: Callable[[int], object]
) -> Iterator[dict[str, Any]]:
    asked = [Asked(passage_text(row["title"], row["text"]), range(number), draw=0) for row in rows]
    written: list[list[str]] = [[] for _ in rows]
    for batch in sampler(asked):
        for place, queries in batch:
            written[place] = queries
        done(len(batch))
    for row, queries in zip(rows, written, strict=True):
        for rank, text in enumerate(queries):
            if text:
                yield {"passage_id": row["passage_id"], "rank": rank, "text": text}
