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


def show_power(arm: str, than: str, metric: str, family: int, results: Path) -> None:
    """Print the variances of the difference between two systems, and the minimum detectable effects of designs.

    A system is RECIPE/ROW, as in the study's page, or RECIPE/steps-N/ROW for runs with a changed number of steps. Where
    runs have folds, their articles are the sample.
    """
    differences = differences_of(arm, than, metric, results)
    variance, queries = variances(differences), differences.shape[2]
    folds, seeds, _ = differences.shape
    say(f"{arm} − {than}: {metric} {differences.mean():+.4f}")
    say(f"folds: {folds}, seeds in each: {seeds}, queries or articles in each: {queries:,}")
    say(
        f"standard deviations: {math.sqrt(variance.run):.4f} between runs, {math.sqrt(variance.query):.4f} between "
        f"queries or articles, {math.sqrt(variance.rest):.4f} rest"
        + ("" if seeds > 1 else ", which one seed in each fold does not separate")
    )
    table = Table("folds", "seeds in each", "runs of a system", "minimum detectable effect (80 % power)")
    for design in (Design(folds, seeds, queries) for folds in FOLDS for seeds in SEEDS if folds * seeds > 1):
        effect = detectable_effect(design, variance, LEVEL / family)
        table.add_row(str(design.folds), str(design.seeds), str(design.runs), f"{effect:.4f}")
    Terminal().print(table)


def differences_of(arm: str, than: str, metric: str, results: Path) -> Values:
    """Return the differences [folds, seeds, queries or articles] of two systems. Raises UserError for unequal runs."""
    runs = list(read_study_runs(results))
    mine, theirs = (_by_fold(name, metric, runs) for name in (arm, than))
    sizes = {(len(by_seed), *np.shape(next(iter(by_seed.values())))) for by_seed in mine.values()}
    if _shapes(mine) != _shapes(theirs) or len(sizes) != 1 or sum(map(len, mine.values())) < 2:
        raise UserError(
            f"{arm} and {than}: expected two runs or more of each in {results}, with the same folds, seeds and "
            f"queries, and equally many in every fold; queries or articles by fold and seed are {_shapes(mine)} of "
            f"{arm} and {_shapes(theirs)} of {than}"
        )
    return np.array([[mine[fold][seed] - theirs[fold][seed] for seed in mine[fold]] for fold in mine])


def _by_fold(system: str, metric: str, runs: list[StudyRun]) -> dict[int, dict[int, Values]]:
    """Return the values of a system by fold and seed; runs without folds have fold 0, and queries for articles."""
    recipe, _, row = system.rpartition("/")
    values: dict[int, dict[int, Values]] = defaultdict(dict)
    for run in runs:
        measured = run.measured(row, metric) if run.facts.fold is None else run.clustered(row, metric)
        names = run.facts.trial.folder(Path()).parts
        if recipe == "/".join(name for name in names if not name.startswith(("fold-", "seed-"))) and measured:
            values[run.facts.fold or 0][run.facts.seed] = measured[1]
    return values


def _shapes(values: dict[int, dict[int, Values]]) -> dict[int, dict[int, int]]:
    return {fold: {seed: len(of_run) for seed, of_run in by_seed.items()} for fold, by_seed in values.items()}
