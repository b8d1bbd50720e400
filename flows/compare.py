"""`pretrieve compare RUN RUN`: what two runs have in common, where they part, and which is better.

RUN is one finished run (`flows.finished_runs`), or several of one recipe with other seeds, joined by commas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.export import impossible_paths_in_words
from flows.finished_runs import FinishedRun, Measurement, finished_run
from flows.terminal import Terminal, say
from storage.errors import UserError
from storage.files import write_atomically
from storage.settings import flattened
from storage.store.store import Store
from tasks.evaluation.paired_runs import compare_runs

WORDS_ALONE = ("title", "reported")  # of a recipe: they say what it is, and change nothing


def show_comparison(first: str, second: str, store_folder: Path, html: Path | None) -> None:
    """Print what two runs differ in, and by how much; write the same as a page where one is asked for."""
    from tasks.report.page.compare_page import page, terminal_tables

    content = compared(first, second, Store.open_or_new(store_folder))
    Terminal().print(*terminal_tables(content), sep="\n")
    if html is not None:
        with impossible_paths_in_words(html):
            write_atomically(html, page(content))
        say(f"page: {html}")


def compared(first: str, second: str, store: Store) -> dict[str, Any]:
    """Everything that a comparison says."""
    sides = [seeds(each, store) for each in (first, second)]
    one, other = ([flat(each.recipe) for each in side] for side in sides)
    return {
        "sides": [
            {"name": name, "title": side[0].recipe["title"], "keys": [each.report.key for each in side]}
            for name, side in zip("AB", sides, strict=True)
        ],
        "settings": differences(one, other),
        "artifacts": artifacts(*sides),
        "splits": splits(sides[0], sides[1]),
        "alone": [
            sorted({each.name for each in side[0].measurements} - {each.name for each in beside[0].measurements})
            for side, beside in (sides, sides[::-1])
        ],
    }  # fmt: skip


def seeds(names: str, store: Store) -> list[FinishedRun]:
    """The runs of a RUN; UserError where they differ in more than seeds."""
    if not all(names.split(",")):
        raise UserError(f"RUN {names!r}: expected a recipe's name, a report's key or a folder, or several with commas")
    runs = [finished_run(name, store) for name in names.split(",")]
    keys = Counter(each.report.key for each in runs)
    if twice := [each.name for each in runs if keys[each.report.key] > 1]:
        raise UserError(f"{names}: {', '.join(dict.fromkeys(twice))} is there twice; name the run of each seed once")
    for each in runs[1:]:
        for setting, *_ in differences([flat(runs[0].recipe)], [flat(each.recipe)]):
            if setting.rpartition(".")[2] != "seed":
                raise UserError(
                    f"{names}: expected runs that differ in seeds alone; {runs[0].name} and {each.name} differ in "
                    f"{setting}; compare them as two runs"
                )
    return runs


def flat(recipe: Mapping[str, Any]) -> dict[str, str]:
    """Return a recipe's settings that can change a result, by their dotted names."""
    return {name: value for name, value in flattened(recipe) if name.partition(".")[0] not in WORDS_ALONE}


def differences(one: Sequence[Mapping[str, str]], other: Sequence[Mapping[str, str]]) -> list[tuple[str, str, str]]:
    """The settings that differ between two sides, with the value, or the seeds' values, of each; "" for none."""
    names = list(dict.fromkeys(name for each in (*one, *other) for name in each))
    found = [(name, *(", ".join(dict.fromkeys(_said(name, side))) for side in (one, other))) for name in names]
    return [(name, before, after) for name, before, after in found if before != after]


def _said(name: str, side: Sequence[Mapping[str, str]]) -> list[str]:
    return [each[name] for each in side if name in each]


def artifacts(one: Sequence[FinishedRun], other: Sequence[FinishedRun]) -> dict[str, Any]:
    """By stage, how many artifacts both were made of, and each alone; and which of the latter come first.

    First is what was made of nothing but what both have.
    """
    mine, theirs = ({name: made_of for each in side for name, made_of in each.lineage.items()} for side in (one, other))
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
    """Every split that both sides were measured on."""
    common = [each.name for each in one[0].measurements if each.name in {it.name for it in other[0].measurements}]
    if not common:
        lists = (", ".join(each.name for each in side[0].measurements) for side in (one, other))
        raise UserError(f"nothing to compare: A was measured on {next(lists)}, B on {next(lists)}")
    return [split(name, _of(name, one), _of(name, other), one[0], other[0]) for name in common]


def _of(name: str, side: Sequence[FinishedRun]) -> list[Measurement]:
    """What each seed measured on a split."""
    found = [{each.name: each for each in run.measurements}.get(name) for run in side]
    if None in found:
        raise UserError(f"{side[found.index(None)].name}: was not measured on {name}, as the other seeds were")
    return [each for each in found if each is not None]


def split(
    name: str, one: Sequence[Measurement], other: Sequence[Measurement], first: FinishedRun, second: FinishedRun
) -> dict[str, Any]:
    """The metrics of one split side by side."""
    for parameter in ("qrels", "answers"):
        judged = {made and made.hash for made in (each.input(parameter) for each in (*one, *other))}
        if len(judged) > 1:
            raise UserError(f"{name}: the runs were measured by different {parameter}; compare runs on the same data")
    pairs = [(row, row) for row in _rows(one[0]) if row in _rows(other[0])]
    heads = (first.recipe["headline"]["run"], second.recipe["headline"]["run"])
    if heads not in pairs and heads[0] in _rows(one[0]) and heads[1] in _rows(other[0]):
        pairs.append(heads)
    if not pairs:
        raise UserError(f"{name}: the runs have no row in common: {', '.join(_rows(one[0]))} and "
                        f"{', '.join(_rows(other[0]))}")  # fmt: skip
    alone = [[row for row in _rows(mine[0]) if row not in {pair[place] for pair in pairs}]
             for place, mine in enumerate((one, other))]  # fmt: skip
    same = [pair for pair in pairs if _keys(one, pair[0]) == _keys(other, pair[1]) != [None]]
    folders = {"A": [each.path for each in one], "B": [each.path for each in other]}
    return {"name": name, "headline": list(heads), "alone": alone, "rows": compare_runs(folders, pairs, same)}


def _rows(measured: Measurement) -> list[str]:
    return [*measured.manifest.settings["names"], *measured.manifest.settings["averaged"]]


def _keys(seeds: Sequence[Measurement], row: str) -> list[str | None]:
    """The keys of the runs that a row was measured from; None for a mean of several."""
    found = {run.key if run else None for run in (each.runs().get(row) for each in seeds)}
    return sorted(found, key=str)
