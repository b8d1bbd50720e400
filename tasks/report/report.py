"""The report of a run: its measurements, their significance, and their lineage.

The artifact contains only what its inputs determine, so that equal runs give equal bytes. `tasks/report/publish.py`
adds what differs from run to run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pydantic import Field

from storage.artifact import Artifact
from storage.errors import UserError
from storage.files import write_atomically
from storage.results.reported import parse_reported
from storage.rows import read_table
from storage.settings import Settings
from storage.tables import Analysis, Checkpoint, Metrics, Overlap, Queries, Report
from storage.vectors import VECTORS_JSON, describe_vectors
from tasks.report.claims import Claims, judged
from tasks.report.page.html import page
from tasks.report.page.paper_comparison import (
    SplitMeasurements,
    compared_numbers,
    systems_by_split,
    systems_on_other_collections,
)
from tasks.report.page.statistics import clearest_wins, grid, intervals
from tasks.report.page.statistics import wins as wins_and_losses
from tasks.report.page.training_curves import PROBE_CURVE, losses, observed, probes
from tasks.retrieval.index import describe
from tasks.stage import stage

CURVES = Path("logs") / "curves.json"


class Reporting(Settings):
    """The texts of a report and the selection of its numbers; nothing here may depend on where or when it ran."""

    recipe: str
    """The stem of the recipe's file."""
    title: str
    fast: bool = Field(default=False, exclude_if=lambda fast: not fast)
    """Whether it was a smoke test, whose numbers are no results."""
    paper: str
    dataset: str
    """The collection in words, with the attribution that its licence requires."""
    generator: str | None
    """The generator of the pseudo-queries, if there are any."""
    text: str
    """The recipe as it ran, without paths and settings that cannot change a result."""
    runs: dict[str, str]
    """A sentence about each system."""
    absent: dict[str, str]
    """Systems that other recipes have and this one lacks, with the reason."""
    main: str
    """The system of the headline."""
    baseline: str
    """The baseline of the headline."""
    metric: str
    """The metric of the headline and the figures."""
    reported: dict[str, Any]
    """The recipe's `reported` (`storage/results/reported.py`): the paper's numbers and rows by run."""
    trained: list[str]
    """The names of the trainings, in the order of `checkpoints`."""
    stored: list[str]
    """The names of the vectors and indexes, in the order of `stored`."""
    views: dict[str, list[str]]
    """Systems with several views, with the system of each view."""
    groups: dict[str, str] = Field(default_factory=dict)
    """The groups of other collections that a mean counts once, by collection (CQADupStack's forums)."""
    claims: Claims | None = Field(default=None, exclude_if=lambda claims: claims is None)
    """The claims of the recipe about its results, if it makes any."""


@stage(version=5, table=Report)
def report(
    out: Path,
    metrics: Sequence[Artifact[Metrics]],
    queries: Artifact[Queries],
    quality: Artifact[Any] | None,
    agreements: Sequence[Artifact[Overlap]],
    checkpoints: Sequence[Artifact[Checkpoint]],
    stored: Sequence[Artifact[Any]],
    wins: Artifact[Analysis] | None,
    analyses: Sequence[Artifact[Analysis]],
    transfer: Sequence[Artifact[Metrics]],
    *,
    settings: Reporting,
) -> None:
    """Write `report.json` and `report.html`, and the checkpoints' training losses to `logs/curves.json`.

    The first `metrics` are those of the headline's split, and `queries` are of that split; `transfer` are metrics on
    other collections. Each of `analyses` is rendered by the template of its stage's name.
    """
    splits, others = [measured(artifact) for artifact in metrics], [measured(artifact) for artifact in transfer]
    content = contents(splits[0], quality, settings)
    if settings.claims:
        content["claims"] = judged(settings.claims, splits[0].comparisons, settings.metric)
    content["splits"] = [split.content() for split in splits[1:]]
    content["transfer"] = [other.content() for other in others]
    reported, collections = parse_reported(settings.reported, settings.main), grouped(others, settings.groups)
    content["beside"] = compared_numbers(reported, splits, collections)
    content["among"] = systems_by_split(reported, settings.metric, splits)
    content["among_elsewhere"] = systems_on_other_collections(reported, collections)
    content["examples"] = wins and results_of(wins)
    content["analyses"] = [
        {"name": analysis.stage, "key": analysis.key, "found": results_of(analysis)} for analysis in analyses
    ]
    content["experts"] = experts(splits[0], queries, settings)
    content["overlap"] = [row for overlap in agreements for row in read_table(overlap, Overlap).to_pylist()]
    content["storage"] = [storage(name, part.path) for name, part in zip(settings.stored, stored, strict=True)]
    trained = dict(zip(settings.trained, checkpoints, strict=True))
    curves = {name: losses(checkpoint.path) for name, checkpoint in trained.items()}
    curves |= {f"{name}{PROBE_CURVE}": probes(checkpoint.path) for name, checkpoint in trained.items()}
    for name, checkpoint in trained.items():
        curves |= {f"{name}, {title}": lines for title, lines in observed(checkpoint.path).items()}
    write_atomically(out / CURVES, as_json({name: lines for name, lines in curves.items() if lines}))
    write_atomically(out / "report.json", as_json(content))
    write_atomically(out / "report.html", page(content))


def measured(metrics: Artifact[Metrics]) -> SplitMeasurements:
    """Read the measurements of one split or collection."""
    by_query = pq.read_table(metrics.path / "queries.parquet")
    rows, comparisons = (_rows(metrics.path / f"{name}.parquet") for name in ("rows", "comparisons"))
    return SplitMeasurements(rows, intervals(by_query), comparisons, by_query, metrics.key)


def contents(first: SplitMeasurements, quality: Artifact[Any] | None, settings: Reporting) -> dict[str, Any]:
    """Return the content of `report.json` about the headline's split and the recipe."""
    systems = {row["run"] for row in first.rows}
    if missing := {settings.main, settings.baseline} - systems:
        raise UserError(
            f"report: {', '.join(sorted(missing))} is none of the runs measured ({', '.join(sorted(systems))})"
        )
    if settings.metric not in {row["metric"] for row in first.rows}:
        raise UserError(f"report: {settings.metric} was not measured; add it to evaluate.metrics")
    fast = {"fast": True} if settings.fast else {}
    measures = quality and json.loads((quality.path / "quality.json").read_text(encoding="utf-8"))
    return {
        "recipe": {
            name: getattr(settings, name) for name in ("recipe", "title", "paper", "dataset", "generator", "text")
        }
        | fast,
        "headline": {name: getattr(settings, name) for name in ("main", "baseline", "metric")},
        "runs": {name: settings.runs.get(name, "") for name in dict.fromkeys(row["run"] for row in first.rows)},
        "absent": settings.absent,
        "rows": first.rows,
        "intervals": first.intervals,
        "comparisons": first.comparisons,
        "wins": wins_and_losses(first.by_query, first.comparisons, settings.metric),
        "grid": grid(first.by_query, settings.main, settings.baseline, settings.metric),
        "quality": measures or None,
        "reported": settings.reported,
        "groups": settings.groups,
        "inputs": {"metrics": first.key, "quality": quality and quality.key},
    }


def grouped(others: Sequence[SplitMeasurements], groups: Mapping[str, str]) -> dict[str, list[SplitMeasurements]]:
    """Return the other collections by group, or by name if they are in no group, in their order."""
    collections: dict[str, list[SplitMeasurements]] = {}
    for other in others:
        collections.setdefault(groups.get(other.dataset, other.dataset), []).append(other)
    return collections


def results_of(analysis: Artifact[Analysis]) -> Any:
    """Read the results of an analysis."""
    return json.loads((analysis.path / "analysis.json").read_text(encoding="utf-8"))


def experts(first: SplitMeasurements, queries: Artifact[Queries], settings: Reporting) -> list[dict[str, Any]]:
    """Return for each system of several views the queries that each view wins by the headline's metric."""
    by_query = first.by_query
    texts = read_table(queries, Queries)
    text_of = dict(zip(texts["query_id"].to_pylist(), texts["text"].to_pylist(), strict=True))
    return [
        {"run": run, "views": clearest_wins(by_query, names, settings.metric, text_of)}
        for run, names in settings.views.items()
        if len(names) > 1
    ]


def storage(name: str, folder: Path) -> dict[str, Any]:
    """Return the bytes per passage of vectors or of an index, by part."""
    if (folder / VECTORS_JSON).is_file():
        return {"name": name, "kind": "vectors", "parts": describe_vectors(folder)["bytes_per_passage"]}
    index = describe(folder)
    return {"name": name, "kind": index["engine"], "parts": {"index": index["bytes_per_passage"]}}


def _rows(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def as_json(value: object) -> str:
    """Return the text of a JSON file of a report."""
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
