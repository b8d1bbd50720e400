"""Two systems that were measured on the same queries, metric by metric, with paired tests.

A system is one run, or several of one recipe with other seeds: then a query's value is the mean over these, and the
spread is the sample standard deviation of their means. What is tested is whether the mean over the queries differs;
the tests of one metric are a family of Holm's correction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.errors import UserError
from tasks.evaluation.significance import Values, holm, paired_t_test, randomisation_test

Row = tuple[str, str]
"""A run and a metric."""
RESAMPLES, SEED = 10_000, 0  # of the randomisation test: a p of 0.05 has a standard error of 0.002


def values_by_query(folder: Path) -> dict[Row, pa.Table]:
    """The queries and values of each run and metric, in the order in which they were measured, ordered by query."""
    table = pq.read_table(folder / "queries.parquet")
    found = {}
    for run in table["run"].unique().to_pylist():
        rows = table.filter(pc.equal(table["run"], run)).sort_by("query_id")
        for metric in rows["metric"].unique().to_pylist():
            found[run, metric] = rows.filter(pc.equal(rows["metric"], metric)).select(["query_id", "value"])
    return found


def compare_runs(
    systems: Mapping[str, Sequence[Path]], pairs: Sequence[tuple[str, str]], same: Sequence[tuple[str, str]]
) -> list[dict[str, Any]]:
    """How the second system differs from the first, by metric and pair of runs.

    `systems` are two, each with the folders of its Metrics, one a seed; `pairs` name a run of each. Pairs that are the
    `same` run are listed and not tested. Raises UserError where the systems were not asked the same queries.
    """
    (first, mine), (second, theirs) = (
        (name, [values_by_query(folder) for folder in folders]) for name, folders in systems.items()
    )
    metrics = [metric for metric in _metrics(mine[0]) if metric in _metrics(theirs[0])]
    rows = []
    for metric in metrics:
        family = []
        for pair in pairs:
            before = _values(mine, pair[0], metric)
            after = _values(theirs, pair[1], metric)
            _must_be_equal(before[0], after[0], first, second, metric)
            family.append(_compared(pair, metric, before[1], after[1], tested=pair not in same))
        tested = [row for row in family if row["p"] is not None]
        for row, p in zip(tested, holm([row["p"] for row in tested]), strict=True):
            row["p_holm"] = p
        rows += family
    return rows


def _metrics(values: Mapping[Row, pa.Table]) -> list[str]:
    return list(dict.fromkeys(metric for _, metric in values))


def _values(seeds: Sequence[Mapping[Row, pa.Table]], run: str, metric: str) -> tuple[pa.ChunkedArray, list[Values]]:
    """The queries, and each seed's values."""
    tables = [each[run, metric] for each in seeds]
    for other in tables[1:]:
        _must_be_equal(tables[0]["query_id"], other["query_id"], "one seed", "another", metric)
    return tables[0]["query_id"], [each["value"].to_numpy() for each in tables]


def _must_be_equal(one: pa.ChunkedArray, other: pa.ChunkedArray, first: str, second: str, metric: str) -> None:
    if one.equals(other):
        return
    for mine, theirs, name, without in ((one, other, first, second), (other, one, second, first)):
        alone = mine.filter(pc.invert(pc.is_in(mine, value_set=theirs.combine_chunks())))
        if len(alone):
            raise UserError(
                f"{metric}: the queries differ: {len(alone):,} of {name} are not in {without}, {alone[0].as_py()!r} "
                "among them; compare runs that were measured on the same split of the same data"
            )


def _compared(
    pair: tuple[str, str], metric: str, before: Sequence[Values], after: Sequence[Values], *, tested: bool
) -> dict[str, Any]:
    one, other = (np.mean(np.stack(seeds), axis=0) for seeds in (before, after))
    return {
        "runs": list(pair), "metric": metric, "queries": len(one),
        "values": [float(one.mean()), float(other.mean())], "spreads": [_spread(before), _spread(after)],
        "difference": float(other.mean() - one.mean()),
        "p": paired_t_test(other, one) if tested else None,
        "p_randomisation": randomisation_test(other, one, resamples=RESAMPLES, seed=SEED) if tested else None,
        "p_holm": None,
    }  # fmt: skip


def _spread(seeds: Sequence[Values]) -> float | None:
    """The spread over seeds; None where a run does not depend on them."""
    varies = any(not np.array_equal(each, seeds[0]) for each in seeds)
    return float(np.std([each.mean() for each in seeds], ddof=1)) if varies else None
