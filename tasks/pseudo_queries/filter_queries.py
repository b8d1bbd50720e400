"""Drop pseudo-queries by their scores (doc2query--: Gospodinov, MacAvaney and Macdonald, ECIR 2023).

What is dropped stays in the table with its scores and the reason, so another cut is made of the same scores.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Discriminator, Field, Tag, model_validator

from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import parts, read_blocks
from storage.settings import Settings
from storage.tables import PseudoQueries
from tasks.cross_encoder.pairs import Scoring
from tasks.pseudo_queries.column_rewrite import file_shards, is_empty, rewrite
from tasks.pseudo_queries.round_trip import RoundTrip
from tasks.runtime.shard import Shard, ShardJob
from tasks.runtime.shards import run_shards
from tasks.session import print_line
from tasks.stage import stage

SAID = {"": "kept", "round trip": "dropped by the round trip", "relevance": "dropped by relevance", "empty": "empty"}

COUNTERS = 1 << 16

Keys = NDArray[np.uint32]


class Threshold(Settings):
    """Scores that are high enough by themselves."""

    threshold: float
    """The least score that is kept."""


class Percentile(Settings):
    """Scores that are high among those of the whole table."""

    percentile: float = Field(gt=0, lt=100)
    """What stands at or above this percentile is kept: of 70, some 30 in a hundred."""


def _kind(value: Any) -> str:
    of_all = isinstance(value, Percentile) or (isinstance(value, dict) and "percentile" in value)
    return "percentile" if of_all else "threshold"


Least = Annotated[
    Annotated[Threshold, Tag("threshold")] | Annotated[Percentile, Tag("percentile")], Discriminator(_kind)
]


class Cut(Settings):
    """Which scores a query must have to be kept."""

    round_trip: int | None = Field(gt=0)
    """The own passage must be among the first so many; null keeps all."""
    relevance: Least | None
    """Null keeps all."""

    @model_validator(mode="after")
    def _cuts(self) -> Cut:
        if self.round_trip is None and self.relevance is None:
            raise ValueError("expected round_trip, relevance or both; where nothing is dropped, set cut to null")
        return self


class Limits(Settings):
    """What a cut comes to in a table: the last rank and the least score that are kept."""

    round_trip: int | None
    relevance: float | None


class Relevance(Scoring):
    """Which cross-encoder scores, and how much it reads."""

    model: str
    """By hub name, folder or package:NAME/FOLDER."""

    @property
    def scoring(self) -> Scoring:
        """How much of a pair it reads."""
        return Scoring(query_max_tokens=self.query_max_tokens, max_tokens=self.max_tokens)


class Filtering(Settings):
    """How pseudo-queries are scored, and which of them are dropped."""

    round_trip: RoundTrip | None
    relevance: Relevance | None
    cut: Cut | None
    """Null scores the queries and drops none."""

    @model_validator(mode="after")
    def _cuts_what_is_scored(self) -> Filtering:
        if self.round_trip is None and self.relevance is None:
            raise ValueError("expected round_trip, relevance or both; where nothing is scored, set filter to null")
        for name in ("round_trip", "relevance"):
            if getattr(self, name) is None and getattr(self.cut, name, None) is not None:
                raise ValueError(f"cut.{name}: expected null where no {name} is scored; give {name}, or set it to null")
        if self.round_trip and self.cut and (self.cut.round_trip or 0) > self.round_trip.depth:
            raise ValueError(
                f"cut.round_trip: expected at most {self.round_trip.depth}, the round trip's depth, found "
                f"{self.cut.round_trip}"
            )
        return self


@stage(version=1, table=PseudoQueries)
def filter_queries(out: Path, pseudo_queries: Artifact[PseudoQueries], *, settings: Cut) -> None:
    """Write the pseudo-queries with `kept` and `reason`, whatever an earlier cut has said of them.

    A row that fails both cuts fails the round trip; an empty one stays "empty". The percentile is that of the scores
    of all that are not empty, whatever their round trip, as `tasks.percentile` defines it. Raises `UserError` where a
    score that is asked for is missing, and where nothing is kept.
    """
    _check(pseudo_queries, settings)
    limits = Limits(round_trip=settings.round_trip, relevance=_least(pseudo_queries, settings.relevance))
    job = ShardJob(cut_part, out, (pseudo_queries,), limits, what="filtering", unit="queries")
    run_shards(job, file_shards(pseudo_queries))
    counts = Counter(reason for block in _blocks(out, ["reason"]) for reason in block["reason"].to_pylist())
    said = ", ".join(f"{counts[each]:,} {words}" for each, words in SAID.items() if counts[each]) or "no query"
    if not counts[""]:
        raise UserError(f"filter.cut: it keeps no query of {pseudo_queries.reference} ({said}); cut less")
    print_line(f"filter_queries: {said}")


def cut_part(
    out: Path, shard: Shard, done: Callable[[int], object], pseudo_queries: Artifact[PseudoQueries], *, settings: Limits
) -> None:
    """Write a shard's queries with what becomes of them."""

    def change(block: pa.Table) -> dict[str, pa.Array]:
        reasons = _reasons(block, settings)
        done(len(block))
        return {"kept": pa.array(reasons == ""), "reason": pa.array(reasons, pa.string())}

    rewrite(out, shard, pseudo_queries, change)


def _reasons(block: pa.Table, limits: Limits) -> NDArray[np.str_]:
    """Why each is dropped, by the first of these that says so; "" where none does."""
    dropped = {"empty": is_empty(block)}
    if limits.round_trip is not None:
        ranks = block["round_trip"].fill_null(0).to_numpy()
        dropped["round trip"] = (ranks < 1) | (ranks > limits.round_trip)
    if limits.relevance is not None:
        dropped["relevance"] = block["relevance"].fill_null(0).to_numpy().astype(np.float64) < limits.relevance
    return np.select(list(dropped.values()), list(dropped), "")


def _check(queries: Artifact[PseudoQueries], cut: Cut) -> None:
    """Refuse a cut by scores that nobody has made."""
    wanted = [name for name in ("round_trip", "relevance") if getattr(cut, name) is not None]
    for block in _blocks(queries.path, ["passage_id", "rank", "query", *wanted]):
        for name in wanted:
            missing = block[name].is_null().to_numpy() & ~is_empty(block)
            if missing.any():
                row = block.slice(int(missing.argmax()), 1).to_pylist()[0]
                raise UserError(
                    f"filter.cut.{name}: {queries.reference}: query {row['rank']} of passage {row['passage_id']!r} has "
                    f"no {name}; score the queries first, or set filter.cut.{name} to null"
                )


def _least(queries: Artifact[PseudoQueries], least: Threshold | Percentile | None) -> float | None:
    """The least score that is kept."""
    if least is None or isinstance(least, Threshold):
        return None if least is None else least.threshold

    def scores() -> Iterator[NDArray[np.float32]]:
        for block in _blocks(queries.path, ["query", "relevance"]):
            yield block["relevance"].filter(pa.array(~is_empty(block))).to_numpy()

    try:
        return percentile(scores, least.percentile)
    except ValueError:
        return 0.0  # every query is empty, whatever the score


def _blocks(folder: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
    for file in parts(folder):
        yield from read_blocks(file, PseudoQueries, columns)


def percentile(read: Callable[[], Iterable[NDArray[np.float32]]], percent: float) -> float:
    """Of n numbers in rising order, counted from 0, number ceil(percent / 100 * (n - 1)): numpy's method `higher`.

    The same numbers are at or above it as at or above a percentile that is interpolated. `read` gives all of them,
    block by block, the same each time. Raises ValueError where there are none.
    """
    upper = sum((np.bincount(_keys(block) >> 16, minlength=COUNTERS) for block in read()), np.zeros(COUNTERS, np.int64))
    if not (total := int(upper.sum())):
        raise ValueError("there is no percentile of no numbers")
    place = math.ceil(Fraction(str(percent)) * (total - 1) / 100)
    high = int(np.searchsorted(upper.cumsum(), place, side="right"))
    lower = np.zeros(COUNTERS, np.int64)
    for block in read():
        keys = _keys(block)
        lower += np.bincount(keys[keys >> 16 == high] & (COUNTERS - 1), minlength=COUNTERS)
    low = int(np.searchsorted(lower.cumsum(), place - int(upper[:high].sum()), side="right"))
    return _number(high << 16 | low)


def _keys(numbers: NDArray[np.float32]) -> Keys:
    """Whole numbers in the order of these: the bits, with the sign turned, and all others where it is set."""
    bits = numbers.view(np.uint32)
    return np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))


def _number(key: int) -> float:
    """What has this key."""
    bits = key ^ (1 << 31) if key >> 31 else key ^ 0xFFFFFFFF
    return float(np.array(bits, np.uint32).view(np.float32))
