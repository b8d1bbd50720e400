"""Kept results of a matrix of runs in Markdown: means, differences, and the retrieval probes of its pre-trainings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.report.page.costs import cpu_range, machines_of_runs
from tasks.report.page.matrix_page import compared, comparisons, interval, verdict
from tasks.report.page.statistics import direction, signed
from tasks.report.page.templates import template

Content = Mapping[str, Any]


def matrix_part(content: Content, remark: str = "") -> str:
    """Return the section of a matrix; the remark is Markdown that says what was measured."""
    content, several = _shortened(content), len(content["variants"]) > 1
    results = [row | {"name": f"{row['variant']}: {row['run']}" if several else row["run"]}
               for row in content["results"]]  # fmt: skip
    rows = comparisons(content)
    tests = [{"name": compared(row) if several else f"{row['run']} − {row['baseline']}",
              "difference": signed(row["difference"]), "interval": interval(row, True), "verdict": verdict(row)}
             for row in rows]  # fmt: skip
    return template("matrix.md.j2", interval=interval).render(
        content, remark=remark, results=results, tests=tests, probes=_probes(content),
        counts={sign: sum(direction(row) == sign for row in rows) for sign in (1, 0, -1)},
        cpu=cpu_range(content["runs"]), machines=machines_of_runs(content["runs"]),
    )  # fmt: skip


def _shortened(content: Content) -> Content:
    """Return the same with the varied settings as the variants' names, where all are of one recipe."""
    recipe, *others = {variant.partition(" ")[0] for variant in content["variants"]}
    if others:
        return content
    names = {variant: variant.removeprefix(f"{recipe} ") for variant in content["variants"]}
    renamed = {
        part: [row | {name: names[row[name]] for name in ("variant", "than") if name in row} for row in content[part]]
        for part in ("results", "comparisons", "within", "runs")
    }
    return {**content, **renamed, "variants": list(names.values())}


def _probes(content: Content) -> list[dict[str, Any]]:
    """Return for each variant with a probe the mean over seeds at each step, by metric."""
    rows = []
    for variant in content["variants"]:
        of_variant = [run["probe"] for run in content["runs"] if run["variant"] == variant]
        for metric in of_variant[0]:
            curves = [dict(map(tuple, probe[metric])) for probe in of_variant]
            means = {step: sum(curve[step] for curve in curves) / len(curves) for step in curves[0]}
            rows.append({"variant": variant, "metric": metric, "means": means})
    return rows
