"""Write what adaptation gains on real queries into docs/adaptation.md: `python -m benchmarks.adaptation_page`.

Seeds and queries are both random samples (`tasks.evaluation.seeds_by_queries`). Holm's correction is over all
comparisons of a table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from flows.adapt.recipes import METRIC, START
from flows.documentation.markdown import table, with_part
from tasks.evaluation.seeds_by_queries import Mean, mean_difference
from tasks.evaluation.significance import Values, holm
from tasks.report.page.statistics import SIGNIFICANT, probability, signed

RESULTS = Path(__file__).parent / "results" / "adaptation.json"
VALUES = RESULTS.with_suffix("")
PAGE = Path(__file__).parent.parent / "docs" / "adaptation.md"
MARKS = ("<!-- written by python -m benchmarks.adaptation_page -->\n", "<!-- end of what it writes -->")
HYBRID, BM25 = "hybrid", "bm25"
GIVEN = ("generator", "teacher")
"""Models that a run may be given besides its start; a row without such a key had none."""
HEADER = ("collection", "start", "system", f"{METRIC}, real queries", "difference from the start", "p (Holm)",
          "on held-out pseudo-queries", "returned")  # fmt: skip


@dataclass(frozen=True)
class Group:
    """The runs of one collection, size and models, a row of the results for each seed."""

    rows: list[dict[str, Any]]

    def values(self, system: str) -> Values:
        """Return the values by seed and query [seeds, queries]."""
        return np.stack([values_by_query(row, system) for row in self.rows])

    def returned(self) -> Values:
        """Return the values of the model that each run returned."""
        return np.stack([values_by_query(row, row["winner"]) for row in self.rows])

    def difference(self, system: str) -> Mean:
        """Return the mean difference from the start."""
        return mean_difference(self.values(system) - self.values(START))


def values_file(row: dict[str, Any]) -> Path:
    """Return the file that keeps the values of a run by query and system."""
    return VALUES / f"{file_name(row)}.parquet"


def file_name(row: dict[str, Any]) -> str:
    """Return the name of a run's files and folders, without an ending."""
    models = [short_name(row["start"]), *(f"{kind}_{short_name(model)}" for kind, model in given(row).items())]
    size = row["requested_size"].replace(" ", "_")
    return f"{row['collection']}-{row['requested']}-{'-'.join(models)}-{size}-{row['seed']}"


def short_name(model: str) -> str:
    """Return the last part of a model's path, or the package's name."""
    return model.removesuffix("/model").rpartition("/")[2].rpartition(":")[2]


def given(row: dict[str, Any]) -> dict[str, str]:
    """Return the generator and the teacher that a run was given."""
    return {kind: row[kind] for kind in GIVEN if row.get(kind)}


def in_words(row: dict[str, Any], start: str = "{}") -> str:
    """Return a run's start and the models given to it in words; `start` is the form of the first."""
    models = "".join(f", {kind} {short_name(model)}" for kind, model in given(row).items())
    return start.format(short_name(row["start"])) + models


def values_by_query(row: dict[str, Any], system: str) -> Values:
    """Return the values of a run's system, in the order of query ids."""
    return np.asarray(pq.read_table(values_file(row)).sort_by("query_id")[system].to_numpy(), np.float64)


def groups(rows: Sequence[dict[str, Any]]) -> list[Group]:
    """Return the runs by start, size, collection, generator and teacher."""
    found: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        others = [row.get(kind) or "" for kind in GIVEN]
        found.setdefault((row["start"], row["requested_size"], row["collection"], *others), []).append(row)
    return [Group(sorted(found[key], key=lambda row: int(row["seed"]))) for key in sorted(found)]


def part(rows: Sequence[dict[str, Any]]) -> str:
    """Return the generated part of the page."""
    listed = groups(rows)
    compared = [(group, system) for group in listed for system in group.rows[0]["systems"] if system != START]
    corrected = holm([group.difference(system).p() for group, system in compared])
    p_values = {(id(group), system): p for (group, system), p in zip(compared, corrected, strict=True)}
    cells = [line for group in listed for line in _lines(group, p_values)]
    against = table(
        ("collection", "start", "returned model − BM25", "p (Holm)", "hybrid − BM25", "p (Holm)"), against_bm25(listed)
    )
    sentences = " ".join([agreement(rows), *given_models(listed), cost(rows)])
    return f"{answer(listed)}\n{table(HEADER, cells)}\n{against}\n{sentences}\n"


def answer(listed: Sequence[Group]) -> str:
    """Return a table: on how many collections the returned model and the hybrid are better or worse, by models."""
    starts = [in_words(group.rows[0], "`{}`") for group in listed]
    all_gains = _signs([group.returned() - group.values(START) for group in listed])
    all_against = _signs([difference for group in listed for difference in _from_bm25(group)]).reshape(-1, 2)
    lines = []
    for start in dict.fromkeys(starts):
        own = [name == start for name in starts]
        lines.append([start, str(sum(own)), *map(_counts, (all_gains[own], *all_against[own].T))])
    header = ("start", "collections or parts", "returned model to start", "returned model to BM25", "hybrid to BM25")
    return (
        "**Answer.** Each cell has the number of collections, or parts of one, on which the first of two systems is "
        "significantly better than the second, and significantly worse. Compare with BM25, which the report has, "
        f"before you use a small model.\n\n{table(header, lines)}"
    )


def _signs(differences: Sequence[Values]) -> Values:
    """Return 1, 0 or -1 for each comparison, after Holm's correction over all of them."""
    means = [mean_difference(values) for values in differences]
    corrected = holm([mean.p() for mean in means])
    return np.array([sign(mean.value, p) for mean, p in zip(means, corrected, strict=True)])


def _counts(signs: Values) -> str:
    return f"{int((signs == 1).sum())} better, {int((signs == -1).sum())} worse"


def _from_bm25(group: Group) -> tuple[Values, Values]:
    """Return the differences of the returned models and of the hybrid from BM25."""
    return group.returned() - group.values(BM25), group.values(HYBRID) - group.values(BM25)


def _lines(group: Group, p_values: dict[tuple[int, str], float]) -> Iterator[list[str]]:
    first = group.rows[0]
    what = f"{_documents(first)}, {first['systems'][START]['queries']:,} queries"
    seeds = f"seed{'s' if len(group.rows) > 1 else ''} {', '.join(str(row['seed']) for row in group.rows)}"
    heading = [what, f"{in_words(first)}, plan {first['size']}, {seeds}"]
    for system in first["systems"]:
        name = f"{system} of {_hybrids(group)}" if system == HYBRID else system
        line = [name, with_interval(mean_difference(group.values(system)), "{:.3f}".format)]
        if system == START:
            line += ["–", "–", "–"]
        else:
            p = probability(p_values[id(group), system]).removeprefix("= ")
            line += [with_interval(group.difference(system), signed), p, _pseudo(group, system)]
        yield [*heading, *line, _returned(group, system)]
        heading = ["", ""]


def _documents(row: dict[str, Any]) -> str:
    return f"{row['collection']}: {row['documents']:,} documents"


def with_interval(mean: Mean, in_words: Callable[[float], str]) -> str:
    """Return a mean with its 95 % interval."""
    return f"{in_words(mean.value)} [{', '.join(map(in_words, mean.interval()))}]"


def against_bm25(listed: Sequence[Group]) -> Iterator[list[str]]:
    """Yield for each group the differences of the returned models and of the hybrid from BM25; Holm's is over all."""
    means = [mean_difference(differences) for group in listed for differences in _from_bm25(group)]
    corrected = holm([mean.p() for mean in means])
    cells = [
        (with_interval(mean, signed), probability(p).removeprefix("= "))
        for mean, p in zip(means, corrected, strict=True)
    ]
    for group, returned, hybrid in zip(listed, cells[::2], cells[1::2], strict=True):
        first = group.rows[0]
        yield [_documents(first), f"{in_words(first)}, plan {first['size']}", *returned, *hybrid]


def given_models(listed: Sequence[Group]) -> Iterator[str]:
    """Yield what a generator or a teacher changes, where the same seeds were run without; Holm's is over all."""
    pairs = [
        (group, plain) for group in listed if given(group.rows[0]) for plain in listed if _is_without(plain, group)
    ]
    means = [mean_difference(group.returned() - plain.returned()) for group, plain in pairs]
    for (group, _), mean, p in zip(pairs, means, holm([mean.p() for mean in means]), strict=True):
        first = group.rows[0]
        models = " and ".join(f"the {kind} `{short_name(model)}`" for kind, model in given(first).items())
        yield (
            f"With {models}, the model that is returned on {first['documents']:,} documents of {first['collection']} "
            f"differs from the one without by {with_interval(mean, signed)} (p {probability(p)})."
        )


def _is_without(plain: Group, group: Group) -> bool:
    """Return whether a group has the runs of another one without generator and teacher."""
    same = ("collection", "requested", "requested_size", "seed")
    runs = [[(short_name(row["start"]), *map(row.get, same)) for row in one.rows] for one in (plain, group)]
    return not given(plain.rows[0]) and runs[0] == runs[1]


def _hybrids(group: Group) -> str:
    """Return the systems with which BM25 was fused: those that the runs returned."""
    return ", ".join(dict.fromkeys(row["winner"] for row in group.rows))


def _pseudo(group: Group, system: str) -> str:
    gains = [row["systems"][system].get("pseudo_difference") for row in group.rows]
    return "–" if None in gains else ", ".join(map(signed, gains))


def _returned(group: Group, system: str) -> str:
    times = sum(row["winner"] == system for row in group.rows)
    return f"{times} of {len(group.rows)}" if times else ""


def sign(difference: float, p_holm: float) -> int:
    """Return 1 for significantly better, -1 for significantly worse, else 0."""
    return 0 if p_holm >= SIGNIFICANT else (difference > 0) - (difference < 0)


def agreement(rows: Sequence[dict[str, Any]]) -> str:
    """Return how often the verdict of a run's pseudo-queries is that of its real queries, by start."""
    by_start: dict[str, list[tuple[int, int]]] = {}
    for row in rows:
        by_start.setdefault(f"`{short_name(row['start'])}`", []).extend(_verdicts(row))
    same = [
        f"{sum(real == pseudo for real, pseudo in own)} of {len(own)} from {start}" for start, own in by_start.items()
    ]
    losses = [pseudo for own in by_start.values() for real, pseudo in own if real < 0]
    noticed = f", {sum(pseudo < 0 for pseudo in losses)} of these on pseudo-queries, too"
    returned = [row for row in rows if row["winner"] != START]
    below = sum(row["systems"][row["winner"]]["difference"] < 0 for row in returned)
    return (
        "The verdict of held-out pseudo-queries (better, worse or no significant difference, p < 0.05 in one run) is "
        f"that of real queries for so many candidates: {', '.join(same)}. On real queries {len(losses)} of them are "
        f"significantly worse than their start{noticed if losses else ', so whether a loss is noticed was not seen'}. "
        f"In {below} of {len(returned)} runs that returned a candidate its mean on real queries is below the start's. "
        f"{missed_gains(rows)} {choices(rows)}"
    )


def _verdicts(row: dict[str, Any]) -> Iterator[tuple[int, int]]:
    """Yield for each candidate of a run the sign of its difference on real and on pseudo-queries."""
    for system in filter(_is_candidate, row["systems"].values()):
        yield sign(system["difference"], system["p_holm"]), sign(system["pseudo_difference"], system["pseudo_p_holm"])


def missed_gains(rows: Sequence[dict[str, Any]]) -> str:
    """Return how often the start was returned although a candidate is significantly better on real queries."""
    kept = [row["systems"] for row in rows if row["winner"] == START]
    candidates = [[system for system in systems.values() if _is_candidate(system)] for systems in kept]
    better = [
        [one["difference"] for one in found if sign(one["difference"], one["p_holm"]) > 0] for found in candidates
    ]
    if not kept:
        return "No run returned the start."
    missed = [max(gains) for gains in better if gains]
    by = f", by at most {max(missed):.3f}" if missed else ""
    return (
        f"In {len(missed)} of {len(kept)} runs that returned the start, a candidate is significantly better than it on "
        f"real queries{by}."
    )


def _is_candidate(system: dict[str, Any]) -> bool:
    return "pseudo_difference" in system


def choices(rows: Sequence[dict[str, Any]]) -> str:
    """Return how often the candidate that pseudo-queries chose is the best of several on real queries."""
    best, runs, losses = 0, 0, [0.0]
    for row in rows:
        values = {name: system["value"] for name, system in row["systems"].items() if _is_candidate(system)}
        if len(values) > 1 and row["winner"] in values:
            runs, highest = runs + 1, max(values.values())
            best += values[row["winner"]] == highest
            losses.append(highest - values[row["winner"]])
    others = f"; the others lost at most {max(losses):.3f} by the choice" if best < runs else ""
    return (
        f"Of the runs that chose among several candidates, {best} of {runs} returned the one that is best on real "
        f"queries{others}."
    )


def cost(rows: Sequence[dict[str, Any]]) -> str:
    """Return the CPU time of the runs' training and of what it needs."""
    seconds = [row["cpu_seconds"] for row in rows]
    return (
        f"A run took {min(seconds) / 60:.0f} to {max(seconds) / 60:.0f} minutes of CPU time, without its decision and "
        "index."
    )


def main() -> None:
    """Write the page."""
    PAGE.write_text(with_part(PAGE.read_text(), part(json.loads(RESULTS.read_text())), MARKS, PAGE))


if __name__ == "__main__":
    main()
