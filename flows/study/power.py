"""`pretrieve study power`: the minimum detectable effect of other designs, by the variances of kept runs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from rich.table import Table

from flows.terminal import Terminal, say
from storage.errors import UserError
from storage.results.study_runs import StudyRun, read_study_runs
from tasks.evaluation.claim_verdicts import LEVEL
from tasks.evaluation.power import Design, Variances, detectable_effect, variances
from tasks.evaluation.significance import Values

FOLDS, SEEDS = (1, 5, 10, 20), (1, 2, 3, 5, 10)
Measured = tuple[tuple[str, ...], Values]
"""Queries or articles, and their values."""
Runs = dict[int, dict[int, Measured]]
"""What was measured, by fold and seed."""
Pairs = dict[int, tuple[Measured, Measured]]
"""What was measured of two systems in a fold, by seed."""


def show_power(system: str, baseline: str, metric: str, family: int, results: Path) -> None:
    """Print the variances of the difference between two systems, and the minimum detectable effects of designs.

    A system is RECIPE/ROW, as in the study's page, or RECIPE/steps-N/ROW for runs with a changed number of steps. Where
    runs have folds, their articles are the sample. Folds of other sizes are shown one after the other.
    """
    for differences in differences_of(system, baseline, metric, results):
        _show(f"{system} − {baseline}", differences, metric, family)


def _show(pair: str, differences: Values, metric: str, family: int) -> None:
    variance, (folds, seeds, queries) = variances(differences), differences.shape
    say(f"{pair}: {metric} {differences.mean():+.4f}")
    say(f"folds: {folds}, seeds in each: {seeds}, queries or articles in each: {queries:,}")
    say(
        f"standard deviations: {math.sqrt(variance.fold):.4f} between folds, {math.sqrt(variance.seed):.4f} between "
        f"seeds, {math.sqrt(variance.run):.4f} between runs, {math.sqrt(variance.query):.4f} between queries or "
        f"articles, {math.sqrt(variance.rest):.4f} rest"
        + ("" if seeds > 1 else "; one seed in each fold separates neither runs from folds nor the rest from queries")
    )
    table = Table("folds", "seeds in each", "runs of a system", "minimum detectable effect (80 % power)")
    for design in designs(folds * queries, seeds, folds):
        effect = detectable_effect(design, _of_design(variance, design), LEVEL / family)
        table.add_row(str(design.folds), str(design.seeds), str(design.runs), f"{effect:.4f}")
    Terminal().print(table)


def designs(queries: int, seeds: int, folds: int) -> Iterator[Design]:
    """Yield designs with as many queries or articles in all folds as the runs have, which are `seeds` in each fold.

    Runs without folds say nothing of folds, and runs with one seed in each fold nothing of several seeds.
    """
    for number in FOLDS if folds > 1 else (1,):
        for num_seeds in SEEDS if seeds > 1 else (1,):
            if number * num_seeds > 1 and queries // number > 1:
                yield Design(number, num_seeds, queries // number)


def _of_design(variance: Variances, design: Design) -> Variances:
    """Return the variances as a design sees them: with a seed of its own in each fold, those of a fold are one."""
    if design.seeds > 1:
        return variance
    of_fold = variance.fold + variance.seed + variance.run
    return Variances(of_fold, 0.0, 0.0, variance.query + variance.rest, 0.0)


def differences_of(system: str, baseline: str, metric: str, results: Path) -> list[Values]:
    """Return the differences [folds, seeds, queries or articles] of two systems, a table for each size of folds.

    Runs are left out that only one of the systems has. Raises UserError where none or a single one is left, and for
    unequal ones.
    """
    runs = list(read_study_runs(results))
    ours, theirs = (_by_fold(name, metric, runs) for name in (system, baseline))
    groups = _folds_of_a_size(ours, theirs)
    groups = [folds for folds in groups if sum(map(len, folds)) > 1] or groups  # of a look that has just begun
    tables = [table for folds in groups if (table := _table(folds)) is not None]
    if not tables or len(tables) < len(groups):
        raise UserError(
            f"{system} and {baseline}: expected two runs or more of each in {results}, with the same folds, seeds and "
            "queries, and in every fold the same seeds and equally many queries; the numbers of queries or articles by "
            f"fold and seed are {_numbers(ours)} of {system} and {_numbers(theirs)} of {baseline}"
        )
    return tables


def _folds_of_a_size(ours: Runs, theirs: Runs) -> list[list[Pairs]]:
    """Return the runs that both systems have, by fold and seed: a list for each number of queries or articles."""
    groups: dict[int, list[Pairs]] = defaultdict(list)
    for fold in sorted(ours.keys() & theirs.keys()):
        seeds = sorted(ours[fold].keys() & theirs[fold].keys())
        pairs = {seed: (ours[fold][seed], theirs[fold][seed]) for seed in seeds}
        for size in {len(ids) for pair in pairs.values() for ids, _ in pair}:
            groups[size].append(pairs)
    return list(groups.values())


def _table(folds: Sequence[Pairs]) -> Values | None:
    """Return the differences [folds, seeds, queries or articles]; None where runs do not fit, or for a single run."""
    seeds = {tuple(pairs) for pairs in folds}
    crossed = len(seeds) == 1 or {len(names) for names in seeds} == {1}  # one seed in each fold may be its own
    alike = all(mine[0] == other[0] for pairs in folds for mine, other in pairs.values())
    if not crossed or not alike or sum(map(len, folds)) < 2:
        return None
    return np.array([[mine[1] - other[1] for mine, other in pairs.values()] for pairs in folds])


def _by_fold(system: str, metric: str, runs: list[StudyRun]) -> Runs:
    """Return the values of a system by fold and seed; runs without folds have fold 0, and queries for articles."""
    recipe, _, row = system.rpartition("/")
    values: Runs = defaultdict(dict)
    for run in runs:
        measured = run.measured(row, metric) if run.facts.fold is None else run.clustered(row, metric)
        names = run.facts.trial.folder(Path()).parts
        if recipe == "/".join(name for name in names if not name.startswith(("fold-", "seed-"))) and measured:
            ids, of_run = measured
            values[run.facts.fold or 0][run.facts.seed] = tuple(ids.to_pylist()), of_run
    return values


def _numbers(runs: Runs) -> dict[int, dict[int, int]]:
    return {fold: {seed: len(ids) for seed, (ids, _) in by_seed.items()} for fold, by_seed in runs.items()}
