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

FOLDS, SEEDS = (1, 5, 10), (2, 3, 5, 10)
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
        f"standard deviations: {math.sqrt(variance.fold):.4f} between folds, {math.sqrt(variance.seed):.4f} between "
        f"seeds, {math.sqrt(variance.run):.4f} between runs, {math.sqrt(variance.query):.4f} between queries or "
        f"articles, {math.sqrt(variance.rest):.4f} rest"
        + ("" if seeds > 1 else "; one seed in each fold separates neither runs from folds nor the rest from queries")
    )
    table = Table("folds", "seeds", "runs of a system", "minimum detectable effect (80 % power)")
    for design in (Design(folds, seeds, queries) for folds in FOLDS for seeds in SEEDS):
        effect = detectable_effect(design, variance, LEVEL / family)
        table.add_row(str(design.folds), str(design.seeds), str(design.runs), f"{effect:.4f}")
    Terminal().print(table)


def differences_of(system: str, baseline: str, metric: str, results: Path) -> Values:
    """Return the differences [folds, seeds, queries or articles] of two systems. Raises UserError for unequal runs."""
    runs = list(read_study_runs(results))
    ours, theirs = (_by_fold(name, metric, runs) for name in (system, baseline))
    sizes = {(len(by_seed), *map(len, {ids for ids, _ in by_seed.values()})) for by_seed in ours.values()}
    seeds = {tuple(sorted(by_seed)) for by_seed in ours.values()}
    crossed = len(seeds) == 1 or {len(names) for names in seeds} == {1}  # one seed in each fold may be its own
    alike = _ids(ours) == _ids(theirs) and len(sizes) == 1 and len(*sizes) == 2
    if not crossed or not alike or sum(map(len, ours.values())) < 2:
        raise UserError(
            f"{system} and {baseline}: expected two runs or more of each in {results}, with the same folds, seeds and "
            "queries, and in every fold the same seeds and equally many queries; the numbers of queries or articles by "
            f"fold and seed are {_numbers(ours)} of {system} and {_numbers(theirs)} of {baseline}"
        )
    return np.array([[ours[fold][seed][1] - theirs[fold][seed][1] for seed in sorted(ours[fold])] for fold in ours])


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
