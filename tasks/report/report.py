"""The report of a run: what was measured, whether it means anything, and what it was made from.

The artifact holds only what its inputs determine, so that equal runs make equal bytes; the copy that
`publish` writes beside the store's artifacts adds what differs from run to run: the time of each
stage, and the losses of training, which are logs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pydantic import Field
from rich.console import Group
from rich.table import Table as TerminalTable
from rich.text import Text

from storage.artifact import Artifact
from storage.errors import UserError
from storage.files import write_atomically
from storage.rows import read_table
from storage.settings import Settings
from storage.tables import Analysis, Checkpoint, Metrics, Overlap, Queries, Report
from storage.vectors import VECTORS_JSON, describe_vectors
from tasks.report.page.costs import costs, environments
from tasks.report.page.html import page
from tasks.report.page.paper_comparison import Measured, among, among_elsewhere, beside
from tasks.report.page.statistics import clearest_wins, grid, intervals, mark, marks, verdict
from tasks.report.page.statistics import wins as wins_and_losses
from tasks.report.page.training_curves import losses, observed, probes
from tasks.retrieval.index import describe
from tasks.stage import stage

CURVES = Path("logs") / "curves.json"


class Reporting(Settings):
    """What the report says of a run beside its numbers. Nothing here may depend on where or when it ran."""

    recipe: str
    """The stem of the recipe's file."""
    title: str
    paper: str
    dataset: str
    """The collection in words, with the attribution that it asks for."""
    generator: str | None
    """Who wrote the pseudo-queries, where there are any."""
    text: str
    """The recipe as it ran, without paths and what cannot change a result."""
    runs: dict[str, str]
    """What each run is, in a sentence."""
    absent: dict[str, str]
    """Runs that other recipes have and this one has not, and why."""
    main: str
    """The run that the headline is about."""
    baseline: str
    """The run that it is to beat."""
    metric: str
    """The metric of the headline and the pictures."""
    reported: dict[str, Any]
    """What the paper prints: `source`, and values by metric, or by run and metric."""
    trained: list[str]
    """The names of the trainings whose checkpoints are given, in their order."""
    stored: list[str]
    """Whose vectors, or which indexes, are given, in their order."""
    views: dict[str, list[str]]
    """Runs that have several views, and the rows of these."""
    groups: dict[str, str] = Field(default_factory=dict)
    """Of the other collections those that a mean counts as one, by what that is called (CQADupStack's forums)."""


@stage(version=3, table=Report)
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

    The first `metrics` are of the split that the headline is about, and `queries` are that split's; `transfer` are
    measured on other collections. `analyses` are drawn by the template of their stage's name.
    """
    splits, others = [measured(each) for each in metrics], [measured(each) for each in transfer]
    content = contents(splits[0], quality, settings)
    content["splits"] = [each.content() for each in splits[1:]]
    content["transfer"] = [each.content() for each in others]
    content["beside"] = beside(settings.reported, settings.main, splits, grouped(others, settings.groups))
    content["among"] = among(settings.reported, settings.main, settings.metric, splits)
    content["among_elsewhere"] = among_elsewhere(settings.reported, grouped(others, settings.groups))
    content["examples"] = wins and found_by(wins)
    content["analyses"] = [{"name": each.stage, "key": each.key, "found": found_by(each)} for each in analyses]
    content["experts"] = experts(splits[0], queries, settings)
    content["overlap"] = [row for each in agreements for row in read_table(each, Overlap).to_pylist()]
    content["storage"] = [storage(name, each.path) for name, each in zip(settings.stored, stored, strict=True)]
    trained = dict(zip(settings.trained, checkpoints, strict=True))
    curves = {name: losses(one.path) for name, one in trained.items()}
    curves |= {f"{name}, retrieval probe": probes(one.path) for name, one in trained.items()}
    for name, one in trained.items():
        curves |= {f"{name}, {title}": found for title, found in observed(one.path).items()}
    write_atomically(out / CURVES, _as_json({name: found for name, found in curves.items() if found}))
    write_atomically(out / "report.json", _as_json(content))
    write_atomically(out / "report.html", page(content))


def measured(metrics: Artifact[Metrics]) -> Measured:
    """What was measured on one split or collection."""
    by_query = pq.read_table(metrics.path / "queries.parquet")
    rows, comparisons = (_rows(metrics.path / f"{name}.parquet") for name in ("rows", "comparisons"))
    return Measured(rows, intervals(by_query), comparisons, by_query, metrics.key)


def contents(first: Measured, quality: Artifact[Any] | None, settings: Reporting) -> dict[str, Any]:
    """What the report states of the headline's split, and of the recipe."""
    named = {row["run"] for row in first.rows}
    if missing := {settings.main, settings.baseline} - named:
        raise UserError(
            f"report: {', '.join(sorted(missing))} is none of the runs measured ({', '.join(sorted(named))})"
        )
    if settings.metric not in {row["metric"] for row in first.rows}:
        raise UserError(f"report: {settings.metric} was not measured; add it to evaluate.metrics")
    found = quality and json.loads((quality.path / "quality.json").read_text())
    return {
        "recipe": {
            name: getattr(settings, name) for name in ("recipe", "title", "paper", "dataset", "generator", "text")
        },
        "headline": {name: getattr(settings, name) for name in ("main", "baseline", "metric")},
        "runs": {name: settings.runs.get(name, "") for name in dict.fromkeys(row["run"] for row in first.rows)},
        "absent": settings.absent,
        "rows": first.rows,
        "intervals": first.intervals,
        "comparisons": first.comparisons,
        "wins": wins_and_losses(first.by_query, first.comparisons, settings.metric),
        "grid": grid(first.by_query, settings.main, settings.baseline, settings.metric),
        "quality": found or None,
        "reported": settings.reported,
        "groups": settings.groups,
        "inputs": {"metrics": first.key, "quality": quality and quality.key},
    }


def grouped(others: Sequence[Measured], groups: Mapping[str, str]) -> dict[str, list[Measured]]:
    """Other collections by the name under which a mean counts them, in their order."""
    found: dict[str, list[Measured]] = {}
    for each in others:
        found.setdefault(groups.get(each.dataset, each.dataset), []).append(each)
    return found


def found_by(analysis: Artifact[Analysis]) -> Any:
    """What an analysis says."""
    return json.loads((analysis.path / "analysis.json").read_text())


def experts(first: Measured, queries: Artifact[Queries], settings: Reporting) -> list[dict[str, Any]]:
    """For each run of several views: how many queries each view wins by the headline's metric, and its clearest."""
    by_query = first.by_query
    texts = read_table(queries, Queries)
    known = dict(zip(texts["query_id"].to_pylist(), texts["text"].to_pylist(), strict=True))
    return [
        {"run": run, "views": clearest_wins(by_query, names, settings.metric, known)}
        for run, names in settings.views.items()
        if len(names) > 1
    ]


def storage(name: str, folder: Path) -> dict[str, Any]:
    """What vectors or an index take for a passage, by part."""
    if (folder / VECTORS_JSON).is_file():
        found = describe_vectors(folder)
        return {"name": name, "kind": "vectors", "parts": found["bytes_per_passage"]}
    found = describe(folder)
    return {"name": name, "kind": found["engine"], "parts": {"index": found["bytes_per_passage"]}}


def publish(folder: Path, made: Artifact[Report], stages: Sequence[Mapping[str, object]]) -> Path:
    """Write the report with its stages to `folder` as `report.json` and `report.html`; return the latter's path."""
    content = json.loads((made.path / "report.json").read_text())
    content["inputs"]["report"] = made.key
    content["curves"] = json.loads((made.path / CURVES).read_text())
    content["costs"], content["environments"] = costs(stages), environments(stages)
    content["stages"] = [{name: value for name, value in each.items() if name != "built"} for each in stages]
    write_atomically(folder / "report.html", page(content))
    write_atomically(folder / "report.json", _as_json(content))
    return folder / "report.html"


def is_of(path: Path, made: Artifact[Report]) -> bool:
    """Return whether a `report.json` that `publish` wrote is of this report."""
    try:
        return bool(json.loads(path.read_bytes())["inputs"]["report"] == made.key)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def terminal_table(path: Path) -> Group:
    """Runs by metrics from a `report.json`: the best of each column in bold, with marks of significance."""
    content = json.loads(path.read_text())
    rows, head = content["rows"], content["headline"]
    marked = marks(content["comparisons"], head["baseline"])
    values = {(row["run"], row["metric"]): row["value"] for row in rows}
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    table = TerminalTable(box=None, padding=(0, 1, 0, 0))
    table.add_column("run")
    for metric in metrics:
        table.add_column(metric.replace("@", "\n@"), justify="right", no_wrap=True)
    for run in content["runs"]:
        cells = [Text(run, "bold" if run == head["main"] else "")]
        for metric in metrics:
            best = max(values[each, metric] for each in content["runs"])
            style = "bold" if values[run, metric] == best else ""
            cells.append(Text(f"{values[run, metric]:.3f}{mark(marked.get((run, metric), 0)) or ' '}", style))
        table.add_row(*cells)
    return Group(Text(content["recipe"]["title"], "bold"), table, Text("\n".join(_notes(content))))


def _notes(content: Mapping[str, Any]) -> list[str]:
    head = content["headline"]
    queries = max(row["queries"] for row in content["rows"])
    split = content["rows"][0]["split"]
    notes = [f"{queries:,} queries of split {split}; ▲ better, ▼ worse than {head['baseline']}"
             " (paired t-test, Holm, p < 0.05)"]  # fmt: skip
    if writer := content["recipe"]["generator"]:
        notes.append(f"pseudo-queries by {writer}")
    notes += [f"no row {name}: {why}" for name, why in content["absent"].items()]
    tested = [row for row in content["comparisons"] if row["metric"] == head["metric"]]
    return notes + [verdict(row) for row in tested if (row["run"], row["baseline"]) == (head["main"], head["baseline"])]


def _rows(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def _as_json(value: object) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
