"""Write why an adaptation gains nothing into docs/adaptation.md: `python -m benchmarks.adaptation_causes_page`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.adaptation_page import PAGE, short_name, with_interval
from flows.adapt.recipes import FIRST, METRIC, SECOND, START
from flows.documentation.markdown import table, with_part
from tasks.evaluation.seeds_by_queries import Mean, mean_difference
from tasks.evaluation.significance import Values, holm
from tasks.report.page.statistics import probability, signed

RESULTS = Path(__file__).parent / "results" / "adaptation_causes.json"
VALUES = RESULTS.with_suffix("")
MARKS = ("<!-- written by python -m benchmarks.adaptation_causes_page -->\n", "<!-- end of its table -->")
PSEUDO, REAL = "pseudo-queries", "real queries"
SYSTEMS = [
    (queries, negatives, f"{queries}, {candidate}")
    for queries in (PSEUDO, REAL) for candidate, negatives in ((FIRST, "BM25"), (SECOND, "the model itself"))
]  # fmt: skip
"""What the trained models learn from: queries, the source of negatives, and the name of the system."""
HEADER = ("collection", "trained on", "negatives from", f"{METRIC}, real queries", "difference from the start",
          "p (Holm)")  # fmt: skip


def values_file(row: dict[str, Any]) -> Path:
    """Return the file that keeps the values of a run by query and system."""
    size = row["size"].replace(" ", "_")
    return VALUES / f"{row['collection']}-{row['documents']}-{short_name(row['start'])}-{size}-{row['seed']}.parquet"


def values(rows: Sequence[dict[str, Any]], system: str) -> Values:
    """Return the values of a system by seed and query [seeds, queries]."""
    columns = [pq.read_table(values_file(row)).sort_by("query_id")[system].to_numpy() for row in rows]
    return np.asarray(np.stack(columns), np.float64)


def part(rows: Sequence[dict[str, Any]]) -> str:
    """Return the generated table: for each collection the start, and the trained models."""
    groups: dict[tuple[str, int, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["collection"], row["documents"], row["start"], row["size"]), []).append(row)
    listed = [sorted(groups[key], key=lambda row: int(row["seed"])) for key in sorted(groups)]
    means = [_difference(group, system) for group in listed for _, _, system in _trained(group)]
    p_values = iter(holm([mean.p() for mean in means]))
    cells = table(HEADER, (line for group in listed for line in _lines(group, p_values)))
    return f"{cells}\n{' '.join(real_against_pseudo(listed))}\n"


def real_against_pseudo(listed: Sequence[Sequence[dict[str, Any]]]) -> Iterator[str]:
    """Yield for each group what real queries give above pseudo-queries with BM25's negatives; Holm's is over all."""
    means = [
        mean_difference(values(group, f"{REAL}, {FIRST}") - values(group, f"{PSEUDO}, {FIRST}")) for group in listed
    ]
    for group, mean, p in zip(listed, means, holm([mean.p() for mean in means]), strict=True):
        yield (
            f"On {group[0]['collection']}, with BM25's negatives, the model that was trained on real queries differs "
            f"from the one that was trained on pseudo-queries by {with_interval(mean, signed)} (p {probability(p)})."
        )


def _trained(group: Sequence[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Return those of `SYSTEMS` that a group's plan has trained."""
    return [row for row in SYSTEMS if row[2] in pq.read_schema(values_file(group[0])).names]


def _difference(group: Sequence[dict[str, Any]], system: str) -> Mean:
    return mean_difference(values(group, system) - values(group, START))


def _lines(group: Sequence[dict[str, Any]], p_values: Iterator[float]) -> Iterator[list[str]]:
    first, seeds = group[0], ", ".join(str(row["seed"]) for row in group)
    what = (
        f"{first['collection']}: {first['documents']:,} documents, {first['train']:,} train and {first['test']:,} test "
        f"queries; {short_name(first['start'])}, plan {first['size']}, seed{'s' if len(group) > 1 else ''} {seeds}"
    )
    yield [what, "nothing (start)", "–", _value(group, START), "–", "–"]
    for queries, negatives, system in _trained(group):
        p = probability(next(p_values)).removeprefix("= ")
        difference = with_interval(_difference(group, system), signed)
        yield ["", queries, negatives, _value(group, system), difference, p]


def _value(group: Sequence[dict[str, Any]], system: str) -> str:
    return with_interval(mean_difference(values(group, system)), "{:.3f}".format)


def main() -> None:
    """Write the table."""
    text = part(json.loads(RESULTS.read_text()))
    PAGE.write_text(with_part(PAGE.read_text(encoding="utf-8"), text, MARKS, PAGE), encoding="utf-8")


if __name__ == "__main__":
    main()
