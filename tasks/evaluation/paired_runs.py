"""Compare two systems that were evaluated on the same queries, metric by metric, with paired tests.

A system is one run, or several of one recipe with different seeds. Then a query's value is the mean over the seeds, and
the spread is the sample standard deviation of the seeds' means. The tests ask whether the mean over the queries
differs; those of one metric are a family of Holm's correction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from storage.errors import UserError
from tasks.evaluation.significance import Values, holm, paired_t_test, randomisation_test

QueryValues = Any
"""A pandas.Series: values by query id, ascending. pandas is imported when it is first needed."""
RESAMPLES, SEED = 10_000, 0  # of the randomisation test: a p of 0.05 has a standard error of 0.002


def values_by_query(folder: Path) -> dict[tuple[str, str], QueryValues]:
    """Return the values by query of each run and metric, in the order in which they were evaluated."""
    import pandas

    rows = pandas.read_parquet(folder / "queries.parquet").groupby(["run", "metric"], sort=False)
    return {key: group.set_index("query_id")["value"].sort_index() for key, group in rows}


def compare_runs(
    systems: Mapping[str, Sequence[Path]], pairs: Sequence[tuple[str, str]], same: Sequence[tuple[str, str]]
) -> list[dict[str, Any]]:
    """Return how the second system differs from the first, by metric and pair of runs.

    `systems` are two, each with the folders of its Metrics, one per seed; `pairs` name a run of each. Pairs in `same`
    are one and the same run: they are listed and not tested. Raises UserError where the queries differ.
    """
    (first, first_seeds), (second, second_seeds) = (
        (name, [values_by_query(folder) for folder in folders]) for name, folders in systems.items()
    )
    metrics = [metric for metric in _metrics(first_seeds[0]) if metric in _metrics(second_seeds[0])]
    rows = []
    for metric in metrics:
        family = []
        for pair in pairs:
            before = _of_seeds(first_seeds, pair[0], metric)
            after = _of_seeds(second_seeds, pair[1], metric)
            _require_equal_queries(before[0], after[0], (first, second), metric)
            family.append(_comparison(pair, metric, before, after, tested=pair not in same))
        tested = [row for row in family if row["p"] is not None]
        for row, p in zip(tested, holm([row["p"] for row in tested]), strict=True):
            row["p_holm"] = p
        rows += family
    return rows


def _metrics(values: Mapping[tuple[str, str], QueryValues]) -> list[str]:
    return list(dict.fromkeys(metric for _, metric in values))


def _of_seeds(seeds: Sequence[Mapping[tuple[str, str], QueryValues]], run: str, metric: str) -> list[QueryValues]:
    """Return a run's values by query for each seed."""
    values = [seed[run, metric] for seed in seeds]
    for other in values[1:]:
        _require_equal_queries(values[0], other, ("one seed", "another"), metric)
    return values


def _require_equal_queries(one: QueryValues, other: QueryValues, names: tuple[str, str], metric: str) -> None:
    for only, name, without in ((one.index.difference(other.index), *names),
                                (other.index.difference(one.index), *reversed(names))):  # fmt: skip
        if len(only):
            raise UserError(
                f"{metric}: the queries differ: {len(only):,} of {name} are not in {without}, {only[0]!r} "
                "among them; compare runs that were evaluated on the same split of the same data"
            )


def _comparison(
    pair: tuple[str, str], metric: str, before: Sequence[QueryValues], after: Sequence[QueryValues], *, tested: bool
) -> dict[str, Any]:
    first, second = (np.mean(np.stack(seeds), axis=0) for seeds in (before, after))
    return {
        "runs": list(pair), "metric": metric, "queries": len(first),
        "values": [float(first.mean()), float(second.mean())], "spreads": [_spread(before), _spread(after)],
        "difference": float(second.mean() - first.mean()),
        "p": paired_t_test(second, first) if tested else None,
        "p_randomisation": randomisation_test(second, first, resamples=RESAMPLES, seed=SEED) if tested else None,
        "p_holm": None,
    }  # fmt: skip


def _spread(seeds: Sequence[Values]) -> float | None:
    """Return the spread over seeds; None for a run that does not depend on the seed."""
    varies = any(not np.array_equal(values, seeds[0]) for values in seeds)
    return float(np.std([values.mean() for values in seeds], ddof=1)) if varies else None
