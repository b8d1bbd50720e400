"""`pretrieve compare RUN RUN`: settings that differ, artifacts that both runs share, and metrics with tests.

RUN is a finished run (`flows.finished_runs`), or several runs of one recipe with different seeds, separated by commas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.export.export import impossible_paths_in_words
from flows.finished_runs import FinishedRun, Measurement, finished_run
from flows.terminal import Terminal, say
from storage.errors import UserError
from storage.files import write_atomically
from storage.settings import flattened
from storage.store.store import Store
from tasks.evaluation.paired_runs import compare_runs

DESCRIPTIONS = ("title", "reported")  # keys of a recipe that do not change a result


def show_comparison(first: str, second: str, store_folder: Path, html: Path | None) -> None:
    """Print the comparison of two runs; also write it as a page where `html` is given."""
    from tasks.report.page.compare_page import page, terminal_tables

    content = compared(first, second, Store.open_or_new(store_folder))
    Terminal().print(*terminal_tables(content), sep="\n")
    if html is not None:
        with impossible_paths_in_words(html):
            write_atomically(html, page(content))
        say(f"page: {html}")


def compared(first: str, second: str, store: Store) -> dict[str, Any]:
    """Return the content of a comparison, for the terminal and for the page."""
    sides = [seeds(names, store) for names in (first, second)]
    first_settings, second_settings = ([flat(run.recipe) for run in side] for side in sides)
    return {
        "sides": [
            {"name": name, "title": side[0].recipe["title"], "keys": [run.report.key for run in side]}
            for name, side in zip("AB", sides, strict=True)
        ],
        "settings": differences(first_settings, second_settings),
        "artifacts": artifacts(*sides),
        "splits": splits(sides[0], sides[1]),
        "alone": [
            sorted(set(_splits_of(side[0])) - set(_splits_of(opposite[0])))
            for side, opposite in (sides, sides[::-1])
        ],
    }  # fmt: skip


def seeds(names: str, store: Store) -> list[FinishedRun]:
    """Return the runs that the user names by RUN. Raises UserError where they differ in more than seeds."""
    if not all(names.split(",")):
        raise UserError(f"RUN {names!r}: expected a recipe's name, a report's key or a folder, or several with commas")
    runs = [finished_run(name, store) for name in names.split(",")]
    keys = Counter(run.report.key for run in runs)
    if twice := [run.name for run in runs if keys[run.report.key] > 1]:
        raise UserError(f"{names}: {', '.join(dict.fromkeys(twice))} is there twice; name the run of each seed once")
    for run in runs[1:]:
        for setting, *_ in differences([flat(runs[0].recipe)], [flat(run.recipe)]):
            if setting.rpartition(".")[2] != "seed":
                raise UserError(
                    f"{names}: expected runs that differ only in seeds; {runs[0].name} and {run.name} differ in "
                    f"{setting}; compare them as two runs"
                )
    return runs


def flat(recipe: Mapping[str, Any]) -> dict[str, str]:
    """Return a recipe's settings that can change a result, by their dotted names."""
    return {name: value for name, value in flattened(recipe) if name.partition(".")[0] not in DESCRIPTIONS}


def differences(one: Sequence[Mapping[str, str]], other: Sequence[Mapping[str, str]]) -> list[tuple[str, str, str]]:
    """Return the settings that differ: name, and the value (or the seeds' values) of each side; "" for none."""
    names = list(dict.fromkeys(name for settings in (*one, *other) for name in settings))
    values = [(name, _values(name, one), _values(name, other)) for name in names]
    return [(name, before, after) for name, before, after in values if before != after]


def _values(name: str, side: Sequence[Mapping[str, str]]) -> str:
    return ", ".join(dict.fromkeys(settings[name] for settings in side if name in settings))


def artifacts(one: Sequence[FinishedRun], other: Sequence[FinishedRun]) -> dict[str, Any]:
    """Return for each stage the number of artifacts that both sides share, and that only one side has.

    `first` lists for each side its own artifacts whose inputs are all shared: there the two runs begin to differ.
    """
    mine, theirs = ({name: inputs for run in side for name, inputs in run.lineage.items()} for side in (one, other))
    shared = set(mine) & set(theirs)
    alone = [[name for name in side if name not in shared] for side in (mine, theirs)]
    counts = [Counter(name.partition("/")[0] for name in names) for names in (shared, *alone)]
    first = [
        [name for name in names if set(side[name]) <= shared]
        for names, side in zip(alone, (mine, theirs), strict=True)
    ]  # fmt: skip
    stages = sorted({stage for count in counts for stage in count})
    return {
        "stages": [{"stage": stage, "counts": [count[stage] for count in counts]} for stage in stages],
        "first": [sorted(names) for names in first],
    }


def splits(one: Sequence[FinishedRun], other: Sequence[FinishedRun]) -> list[dict[str, Any]]:
    """Return the comparison of every split that both sides were measured on."""
    mine, theirs = _splits_of(one[0]), _splits_of(other[0])
    common = [name for name in mine if name in theirs]
    if not common:
        raise UserError(f"nothing to compare: A was measured on {', '.join(mine)}, B on {', '.join(theirs)}")
    return [split(name, _on_split(name, one), _on_split(name, other), one[0], other[0]) for name in common]


def _splits_of(run: FinishedRun) -> list[str]:
    return [measurement.name for measurement in run.measurements]


def _on_split(name: str, side: Sequence[FinishedRun]) -> list[Measurement]:
    """Return the measurement of a split for each seed."""
    measurements = []
    for run in side:
        if name not in _splits_of(run):
            raise UserError(f"{run.name}: was not measured on {name}, as the other seeds were")
        measurements += [measurement for measurement in run.measurements if measurement.name == name]
    return measurements


def split(
    name: str, one: Sequence[Measurement], other: Sequence[Measurement], first: FinishedRun, second: FinishedRun
) -> dict[str, Any]:
    """Return the metrics of one split side by side."""
    for parameter in ("qrels", "answers"):
        inputs = [measurement.input(parameter) for measurement in (*one, *other)]
        if len({manifest and manifest.hash for manifest in inputs}) > 1:
            raise UserError(f"{name}: the runs were measured by different {parameter}; compare runs on the same data")
    pairs = [(row, row) for row in _rows(one[0]) if row in _rows(other[0])]
    heads = (first.recipe["headline"]["run"], second.recipe["headline"]["run"])
    if heads not in pairs and heads[0] in _rows(one[0]) and heads[1] in _rows(other[0]):
        pairs.append(heads)
    if not pairs:
        raise UserError(f"{name}: the runs have no row in common: {', '.join(_rows(one[0]))} and "
                        f"{', '.join(_rows(other[0]))}")  # fmt: skip
    alone = [[row for row in _rows(mine[0]) if row not in {pair[index] for pair in pairs}]
             for index, mine in enumerate((one, other))]  # fmt: skip
    same = [pair for pair in pairs if _keys(one, pair[0]) == _keys(other, pair[1]) != [None]]
    folders = {"A": [seed.path for seed in one], "B": [seed.path for seed in other]}
    return {"name": name, "headline": list(heads), "alone": alone, "rows": compare_runs(folders, pairs, same)}


def _rows(measurement: Measurement) -> list[str]:
    return [*measurement.manifest.settings["names"], *measurement.manifest.settings["averaged"]]


def _keys(seeds: Sequence[Measurement], row: str) -> list[str | None]:
    """Return the keys of the rankings of a row, over all seeds; None stands for a mean of several."""
    rankings = [seed.runs().get(row) for seed in seeds]
    return sorted({ranking.key if ranking else None for ranking in rankings}, key=str)
