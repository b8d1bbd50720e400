"""`pretrieve study power`: the minimum detectable effect of other designs, by the variances of kept runs."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path

import numpy as np
from rich.table import Table

from flows.terminal import Terminal, say
from storage.errors import UserError
from storage.results.study_runs import StudyRun, read_study_runs
from tasks.evaluation.claim_verdicts import LEVEL
from tasks.evaluation.power import Design, detectable_effect, variances
from tasks.evaluation.significance import Values

FOLDS, SEEDS = (1, 5, 10), (1, 2, 3, 5)
Runs = dict[int, dict[int, tuple[tuple[str, ...], Values]]]
"""Queries or articles, and their values, by fold and seed."""


def show_power(system: str, baseline: str, metric: str, family: int, results: Path) -> None:
    """Print the variances of the difference between two systems, and the minimum detectable effects of designs.

    A system is RECIPE/ROW, as in the study's page, or RECIPE/steps-N/ROW for runs with a changed number of steps. Where
    runs have folds, their articles are the sample.
    """
    differences = differences_of(system, baseline, metric, results)
    variance, queries = variances(differences), differences.shape[2]
    folds, seeds, _ = differences.shape
    say(f"{system} − {baseline}: {metric} {differences.mean():+.4f}")
    say(f"folds: {folds}, seeds in each: {seeds}, queries or articles in each: {queries:,}")
    say(
        f"standard deviations: {math.sqrt(variance.fold):.4f} between folds, {math.sqrt(variance.run):.4f} between "
        f"runs, {math.sqrt(variance.query):.4f} between queries or articles, {math.sqrt(variance.rest):.4f} rest"
        + ("" if seeds > 1 else "; one seed in each fold separates neither runs from folds nor the rest from queries")
    )
    table = Table("folds", "seeds in each", "runs of a system", "minimum detectable effect (80 % power)")
    for design in (Design(folds, seeds, queries) for folds in FOLDS for seeds in SEEDS if folds * seeds > 1):
        effect = detectable_effect(design, variance, LEVEL / family)
        table.add_row(str(design.folds), str(design.seeds), str(design.runs), f"{effect:.4f}")
    Terminal().print(table)


def differences_of(system: str, baseline: str, metric: str, results: Path) -> Values:
    """Return the differences [folds, seeds, queries or articles] of two systems. Raises UserError for unequal runs."""
    runs = list(read_study_runs(results))
    ours, theirs = (_by_fold(name, metric, runs) for name in (system, baseline))
    sizes = {(len(by_seed), *map(len, {ids for ids, _ in by_seed.values()})) for by_seed in ours.values()}
    if _ids(ours) != _ids(theirs) or len(sizes) != 1 or len(*sizes) != 2 or sum(map(len, ours.values())) < 2:
        raise UserError(
            f"{system} and {baseline}: expected two runs or more of each in {results}, with the same folds, seeds and "
            f"queries, and equally many in every fold; the numbers of queries or articles by fold and seed are "
            f"{_numbers(ours)} of {system} and {_numbers(theirs)} of {baseline}"
        )
    return np.array([[ours[fold][seed][1] - theirs[fold][seed][1] for seed in ours[fold]] for fold in ours])


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


def _ids(runs: Runs) -> dict[int, dict[int, tuple[str, ...]]]:
    return {fold: {seed: ids for seed, (ids, _) in by_seed.items()} for fold, by_seed in runs.items()}


def _numbers(runs: Runs) -> dict[int, dict[int, int]]:
    return {fold: {seed: len(ids) for seed, (ids, _) in by_seed.items()} for fold, by_seed in runs.items()}
