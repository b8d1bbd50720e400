"""The results of a matrix: the grid with the state of each run, and means, intervals and tests over its seeds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flows.finished_runs import FinishedRun, Measurement
from flows.matrix.attempts import State
from flows.matrix.planned_grid import PlannedGrid
from flows.matrix.planned_run import PlannedRun
from flows.recipe.grid import Cell, Variant
from storage.files import write_atomically
from storage.store.lookup import must_exist
from storage.store.run_notes import read_notes
from tasks.evaluation.grid_statistics import Measured, RunOverSeeds, corrected, difference
from tasks.report.page.matrix_page import page

PAGE, JSON = "index.html", "matrix.json"
Complete = dict[Variant, dict[int, Measurement]]
"""The measurement of the headline's split of each complete run, by seed."""


def contents(plan: PlannedGrid) -> dict[str, Any]:
    """Return the grid and its results, for the terminal, the page and programs."""
    cells, complete = list(_cells(plan)), _complete(plan)
    recipes = {run.definition.variant: run.recipe for run in plan.runs}
    measured = {
        variant: Measured.of({seed: measurement.path for seed, measurement in seeds.items()})
        for variant, seeds in complete.items()
    }
    stages = plan.stages()
    first = recipes[plan.grid.variants[0]]
    return {
        "name": plan.grid.name, "command": plan.grid.command, "resume": plan.command, "seeds": list(plan.grid.seeds),
        "variants": [variant.words for variant in plan.grid.variants], "changes": list(plan.grid.changes),
        "metric": first.headline.metric, "mains": {v.words: recipes[v].headline.run for v in plan.grid.variants},
        "stages": {"different": len(stages), "cached": sum(stages.values()),
                   "of_all_runs": sum(len(run.jobs) for run in plan.runs)},
        "cells": cells, "splits": {v.words: next(iter(seeds.values())).name for v, seeds in complete.items()},
        "results": list(_results(measured)),
        "comparisons": corrected(list(_between_variants(plan, complete, measured))),
        "within": [row for variant in measured for row in corrected(list(_within(plan, variant, measured[variant])))],
    }  # fmt: skip


def write_page(plan: PlannedGrid) -> Path:
    """Write the matrix as a page and as JSON, and return the page's path."""
    content = contents(plan)
    write_atomically(plan.folder / JSON, json.dumps(content, indent=1) + "\n")
    write_atomically(plan.folder / PAGE, page(content))
    return plan.folder / PAGE


def _cells(plan: PlannedGrid) -> Iterator[dict[str, Any]]:
    """Yield the runs with their states; a complete one has the path of its report's page."""
    notes = read_notes(plan.store.root)
    for run in plan.runs:
        cell, state, missing = run.definition, plan.attempts.state(run, notes), len(run.missing(plan.store))
        shown = plan.folder / cell.folder / "report.html"
        yield {
            "variant": cell.variant.words, "seed": cell.seed, "state": str(state),
            "built": len(run.jobs) - missing, "stages": len(run.jobs), "report": run.report,
            "error": plan.attempts.failure(run) if state is State.FAILED else "",
            "page": f"{cell.folder}/report.html" if shown.exists() else "", "changes": cell.changes,
        }  # fmt: skip


def _complete(plan: PlannedGrid) -> Complete:
    complete: Complete = {}
    for run in plan.runs:
        if plan.attempts.state(run, ()) is State.COMPLETE:
            complete.setdefault(run.definition.variant, {})[run.definition.seed] = _measurement(run, plan)
    return complete


def _measurement(run: PlannedRun[Cell], plan: PlannedGrid) -> Measurement:
    report = must_exist(f"report/{run.report}", plan.store)
    return FinishedRun(run.definition.words, plan.store, report).measurements[0]


def _results(measured: Mapping[Variant, Measured]) -> Iterator[dict[str, Any]]:
    for variant, values in measured.items():
        for run, metric in values.names():
            yield {"variant": variant.words, "run": run, "metric": metric} | RunOverSeeds(values, run).mean(metric)


def _between_variants(
    plan: PlannedGrid, complete: Complete, measured: Mapping[Variant, Measured]
) -> Iterator[dict[str, Any]]:
    """Yield each variant's differences from the first one, for runs of equal names and for the headlines' runs."""
    baseline = plan.grid.variants[0]
    mains = {run.definition.variant: run.recipe.headline.run for run in plan.runs}
    if baseline not in measured:
        return
    for variant in [variant for variant in measured if variant != baseline]:
        ours, theirs = measured[variant], measured[baseline]
        runs = [run for run in dict.fromkeys(run for run, _ in ours.names()) if _has(theirs, run)]
        pairs = dict.fromkeys([(run, run) for run in runs] + [(mains[variant], mains[baseline])])
        for run, other in pairs:
            if _is_same(complete[variant], run, complete[baseline], other) or not _has(ours, run):
                continue
            for metric in _metrics(ours, run):
                if (other, metric) not in theirs.names():
                    continue
                if row := difference(RunOverSeeds(ours, run), RunOverSeeds(theirs, other), metric):
                    names = {"variant": variant.words, "run": run, "than": baseline.words, "baseline": other}
                    yield names | {"metric": metric} | row


def _within(plan: PlannedGrid, variant: Variant, measured: Measured) -> Iterator[dict[str, Any]]:
    """Yield the differences that the variant's recipe compares."""
    recipe = next(run.recipe for run in plan.runs if run.definition.variant == variant)
    for pair in recipe.evaluate.comparisons:
        for metric in _metrics(measured, pair.run):
            if (pair.baseline, metric) in measured.names():
                names = {"variant": variant.words, "run": pair.run, "than": variant.words, "baseline": pair.baseline}
                if row := difference(RunOverSeeds(measured, pair.run), RunOverSeeds(measured, pair.baseline), metric):
                    yield names | {"metric": metric} | row


def _has(measured: Measured, run: str) -> bool:
    return bool(_metrics(measured, run))


def _metrics(measured: Measured, run: str) -> list[str]:
    return [metric for name, metric in measured.names() if name == run]


def _is_same(ours: Mapping[int, Measurement], run: str, theirs: Mapping[int, Measurement], other: str) -> bool:
    """Return whether both runs are the same rankings, in every seed that both have."""
    common = [seed for seed in ours if seed in theirs]
    keys = [(ours[seed].runs().get(run), theirs[seed].runs().get(other)) for seed in common]
    return bool(keys) and all(one and two and one.key == two.key for one, two in keys)
