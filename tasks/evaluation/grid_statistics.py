"""Means, intervals and paired tests of runs with several seeds, such as those of a matrix.

Seeds and queries are both random samples (`tasks.evaluation.seeds_by_queries`), so intervals and tests hold for other
seeds and other queries. Two systems are compared in the seeds that both have. The tests of a metric are a family of
Holm's correction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from storage.errors import UserError
from tasks.evaluation.paired_runs import QueryValues, values_by_query
from tasks.evaluation.seeds_by_queries import mean_difference
from tasks.evaluation.significance import Values, holm


@dataclass(frozen=True)
class Measured:
    """The values by query of all systems of one recipe, for each of its seeds."""

    by_seed: Mapping[int, Mapping[tuple[str, str], QueryValues]]
    """Values by query of each run and metric."""

    @staticmethod
    def of(folders: Mapping[int, Path]) -> Measured:
        """Read the folders of Metrics, by seed."""
        return Measured({seed: values_by_query(folder) for seed, folder in folders.items()})

    def names(self) -> list[tuple[str, str]]:
        """Return the runs and metrics that every seed has."""
        first, *others = self.by_seed.values()
        return [name for name in first if all(name in other for other in others)]

    def table(self, run: str, metric: str, seeds: Sequence[int]) -> tuple[list[str], Values]:
        """Return the sorted query ids and the values [seeds, queries]. Raises UserError where the queries differ."""
        values = [self.by_seed[seed][run, metric] for seed in seeds]
        for other in values[1:]:
            if not values[0].index.equals(other.index):
                raise UserError(f"{run}: its seeds were measured on different queries; run all seeds on the same data")
        return list(values[0].index), np.stack([of_seed.to_numpy() for of_seed in values])


@dataclass(frozen=True)
class RunOverSeeds:
    """A run of a recipe's report, over the recipe's seeds."""

    measured: Measured = field(repr=False)
    run: str

    def mean(self, metric: str) -> dict[str, Any]:
        """Return the mean over seeds and queries with its 95 % interval, clipped to [0, 1], and each seed's mean."""
        seeds = list(self.measured.by_seed)
        _, table = self.measured.table(self.run, metric, seeds)
        mean = _mean(table)
        return mean | {
            "low": max(0.0, mean["low"]), "high": min(1.0, mean["high"]),
            "by_seed": dict(zip(map(str, seeds), table.mean(axis=1).tolist(), strict=True)),
        }  # fmt: skip


def difference(system: RunOverSeeds, baseline: RunOverSeeds, metric: str) -> dict[str, Any] | None:
    """Return the mean difference with interval and p, over the seeds that both have.

    None where they share no seed or were measured on different queries.
    """
    seeds = [seed for seed in system.measured.by_seed if seed in baseline.measured.by_seed]
    if not seeds:
        return None
    ids, ours = system.measured.table(system.run, metric, seeds)
    other_ids, theirs = baseline.measured.table(baseline.run, metric, seeds)
    if ids != other_ids:
        return None
    mean = _mean(ours - theirs)
    return {"difference": mean.pop("mean"), **mean, "p": mean_difference(ours - theirs).p() if len(ids) > 1 else 1.0}


def corrected(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tests with `p_holm`, corrected within each metric."""
    families: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        families.setdefault(row["metric"], []).append(row)
    adjusted = {metric: iter(holm([row["p"] for row in family])) for metric, family in families.items()}
    return [row | {"p_holm": next(adjusted[row["metric"]])} for row in rows]


def _mean(table: Values) -> dict[str, Any]:
    """Return mean, interval and sizes of values [seeds, queries]; one query has no interval."""
    seeds, queries = table.shape
    value = float(table.mean())
    low, high = mean_difference(table).interval() if queries > 1 else (value, value)
    return {"mean": value, "low": low, "high": high, "seeds": seeds, "queries": queries}
