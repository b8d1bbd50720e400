"""Drop pseudo-queries by their scores (doc2query--: Gospodinov, MacAvaney and Macdonald, ECIR 2023).

Dropped queries stay in the table with their scores and the reason, so that another cutoff can use the same scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Discriminator, Field, Tag, model_validator

from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import table_blocks
from storage.settings import Settings
from storage.tables import PseudoQueries
from tasks.pseudo_queries.column_rewrite import file_shards, is_empty, rewrite
from tasks.pseudo_queries.dropped_counts import report_dropped
from tasks.runtime.shard import ShardJob, ShardTask
from tasks.runtime.shards import run_shards
from tasks.stage import stage

COUNTERS = 1 << 16

Keys = NDArray[np.uint32]


class Threshold(Settings):
    """An absolute cutoff of scores."""

    threshold: float
    """The lowest score that is kept."""


class Percentile(Settings):
    """A cutoff relative to all scores of the table."""

    percentile: float = Field(gt=0, lt=100)
    """Scores at or above this percentile are kept: 70 keeps some 30 %."""


THRESHOLD, PERCENTILE = "[threshold]", "[percentile]"  # with brackets, since tags are no keys of an error's location


def _kind(value: Any) -> str:
    of_all = isinstance(value, Percentile) or (isinstance(value, dict) and "percentile" in value)
    return PERCENTILE if of_all else THRESHOLD


Least = Annotated[Annotated[Threshold, Tag(THRESHOLD)] | Annotated[Percentile, Tag(PERCENTILE)], Discriminator(_kind)]


class Cut(Settings):
    """The scores that a query needs to be kept."""

    round_trip: Annotated[int | None, Field(gt=0, examples=[3])] = None
    """The lowest rank of the own passage that is kept; null keeps all."""
    relevance: Annotated[Least | None, Field(examples=[{"percentile": 70}])] = None
    """Null keeps all."""

    @model_validator(mode="after")
    def _cuts(self) -> Cut:
        if self.round_trip is None and self.relevance is None:
            raise ValueError("expected round_trip, relevance or both; to drop no query, set cut to null")
        return self


class Limits(Settings):
    """The cutoffs for a table: the last rank and the lowest score that are kept."""

    round_trip: int | None
    relevance: float | None


@stage(version=1, table=PseudoQueries)
def filter_queries(out: Path, pseudo_queries: Artifact[PseudoQueries], *, settings: Cut) -> None:
    """Write the pseudo-queries with new values of `kept` and `reason`.

    The reason of a row that fails both cutoffs is the round trip; that of an empty row stays "empty". The percentile is
    over the scores of all rows that are not empty (`percentile`). Raises UserError if a required score is missing or
    if no query is kept.
    """
    _check(pseudo_queries, settings)
    limits = Limits(round_trip=settings.round_trip, relevance=_least(pseudo_queries, settings.relevance))
    job = ShardJob(cut_part, out, (pseudo_queries,), limits, what="filtering", unit="queries")
    run_shards(job, file_shards(pseudo_queries))
    report_dropped("filter_queries", out, pseudo_queries, "queries.filter.cut", "lower the cutoff")


def cut_part(task: ShardTask, pseudo_queries: Artifact[PseudoQueries], *, settings: Limits) -> None:
    """Write a shard's queries with `kept` and `reason`."""

    def change(block: pa.Table) -> dict[str, pa.Array]:
        reasons = _reasons(block, settings)
        task.done(len(block))
        return {"kept": pa.array(reasons == ""), "reason": pa.array(reasons, pa.string())}

    rewrite(task.out, task.shard, pseudo_queries, change)


def _reasons(block: pa.Table, limits: Limits) -> NDArray[np.str_]:
    """Return the first reason why each row is dropped, or "" if it is kept."""
    dropped = {"empty": is_empty(block)}
    if limits.round_trip is not None:
        ranks = block["round_trip"].fill_null(0).to_numpy()
        dropped["round trip"] = (ranks < 1) | (ranks > limits.round_trip)
    if limits.relevance is not None:
        dropped["relevance"] = block["relevance"].fill_null(0).to_numpy().astype(np.float64) < limits.relevance
    return np.select(list(dropped.values()), list(dropped), "")


def _check(queries: Artifact[PseudoQueries], cut: Cut) -> None:
    """Raise UserError if a required score is missing."""
    required = [name for name in ("round_trip", "relevance") if getattr(cut, name) is not None]
    for block in table_blocks(queries.path, PseudoQueries, ["passage_id", "rank", "query", *required]):
        for name in required:
            missing = block[name].is_null().to_numpy() & ~is_empty(block)
            if missing.any():
                row = block.slice(int(missing.argmax()), 1).to_pylist()[0]
                raise UserError(
                    f"queries.filter.cut.{name}: {queries.reference}: query {row['rank']} of passage "
                    f"{row['passage_id']!r} has no {name}; score the queries first, or set "
                    f"queries.filter.cut.{name} to null"
                )


def _least(queries: Artifact[PseudoQueries], least: Threshold | Percentile | None) -> float | None:
    """Return the lowest score that is kept."""
    if least is None or isinstance(least, Threshold):
        return None if least is None else least.threshold

    def scores() -> Iterator[NDArray[np.float32]]:
        for block in table_blocks(queries.path, PseudoQueries, ["query", "relevance"]):
            yield block["relevance"].filter(pa.array(~is_empty(block))).to_numpy()

    try:
        return percentile(scores, least.percentile)
    except ValueError:
        return 0.0  # every query is empty, whatever the score


def percentile(read: Callable[[], Iterable[NDArray[np.float32]]], percent: float) -> float:
    """Return an exact percentile of more numbers than fit in memory: numpy's method `higher`.

    It is the number at position ceil(percent / 100 * (n - 1)) of n sorted numbers, counted from 0; the same numbers are
    at or above it as at or above an interpolated percentile. `read` yields all numbers in blocks and is called twice:
    numbers are counted by the upper 16 bits of their sort keys, then by the lower 16 bits within one upper value.
    Raises ValueError if there are no numbers.
    """
    upper = sum((np.bincount(_keys(block) >> 16, minlength=COUNTERS) for block in read()), np.zeros(COUNTERS, np.int64))
    if not (total := int(upper.sum())):
        raise ValueError("expected at least one number")
    position = math.ceil(Fraction(str(percent)) * (total - 1) / 100)
    high = int(np.searchsorted(upper.cumsum(), position, side="right"))
    lower = np.zeros(COUNTERS, np.int64)
    for block in read():
        keys = _keys(block)
        lower += np.bincount(keys[keys >> 16 == high] & (COUNTERS - 1), minlength=COUNTERS)
    low = int(np.searchsorted(lower.cumsum(), position - int(upper[:high].sum()), side="right"))
    return _number(high << 16 | low)


def _keys(numbers: NDArray[np.float32]) -> Keys:
    """Return integers with the order of the numbers: the bits with the sign flipped; all bits of negative numbers."""
    bits = numbers.view(np.uint32)
    return np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))


def _number(key: int) -> float:
    """Return the number of a sort key."""
    bits = key ^ (1 << 31) if key >> 31 else key ^ 0xFFFFFFFF
    return float(np.array(bits, np.uint32).view(np.float32))
