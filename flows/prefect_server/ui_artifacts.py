"""Prefect artifacts of a run: its metrics next to the paper's, its lineage, and a link to the report.

Where the server does not answer, they are lost, but the run continues.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tasks.report.page.lineage_graph import as_image, drawing, input_rows, named, standalone
from tasks.report.page.statistics import headline_rows
from tasks.runtime.formatting import duration
from tasks.runtime.prefect_progress import best_effort
from tasks.runtime.prefect_task import artifact_key
from tasks.session import Done


def show_run(recipe: str, page: Path, done: Sequence[Done]) -> None:
    """Create all artifacts of a finished run, whose report is at `page`."""
    show_metrics(page.with_suffix(".json"))
    show_lineage(recipe, done)
    link_report(page)


def show_metrics(report_json: Path) -> None:
    """Create a table of a report's metrics, with the paper's numbers."""
    from prefect.artifacts import create_table_artifact

    content = json.loads(report_json.read_text(encoding="utf-8"))
    key, words = artifact_key(f"{content['recipe']['recipe']}-metrics"), measured_on(content)
    with best_effort():
        create_table_artifact(key=key, table=metrics_table(content), description=words)


def show_lineage(recipe: str, done: Sequence[Done]) -> None:
    """Create a page with a drawing of the run's stages and their inputs."""
    from prefect.artifacts import create_markdown_artifact

    with best_effort():
        create_markdown_artifact(key=artifact_key(f"{recipe}-lineage"), markdown=lineage(recipe, done))


def link_report(page: Path) -> None:
    """Create a link to the report below PRETRIEVE_REPORTS_URL; where this is not set, show its path."""
    from prefect.artifacts import create_link_artifact, create_markdown_artifact

    about = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))["recipe"]
    key, words = artifact_key(f"{about['recipe']}-report"), f"The report of {about['title']}"
    with best_effort():
        if served := os.environ.get("PRETRIEVE_REPORTS_URL"):
            link = f"{served.rstrip('/')}/{quote(about['recipe'])}/{page.name}"
            create_link_artifact(key=key, link=link, link_text=words, description=words)
        else:
            create_markdown_artifact(key=key, markdown=f"{words}: `{page}`", description=words)


def measured_on(content: Mapping[str, Any]) -> str:
    """Return a sentence that names the split, the number of queries, and the paper."""
    queries = max(row["queries"] for row in headline_rows(content["rows"]))
    words = f"{content['recipe']['title']}: {queries:,} queries of split {content['rows'][0]['split']}."
    if not content["beside"]:
        return f"{words} The recipe reports no numbers of a paper."
    source = content["reported"].get("source", "the recipe's `reported`")
    return f"{words} Paper: {source}; its collection and model are not this run's unless the recipe says so."


def metrics_table(content: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return rows of run, metric, our value, the paper's and the difference; those with a paper's value come first."""
    beside = content["beside"]
    table = [_row(row["run"], row["metric"], row["ours"], row["theirs"]) for row in beside]
    known = {(row["run"], row["metric"].lower()) for row in beside}
    split = content["rows"][0]["split"]
    for row in content["rows"]:
        metric = row["metric"] if row["split"] == split else f"{row['metric']} on {row['split']}"
        if (row["run"], metric.lower()) not in known:
            table.append(_row(row["run"], metric, row["value"], None))
    return sorted(table, key=lambda row: (not row["difference"], not row["paper"]))


def _row(run: str, metric: str, ours: float | None, paper: float | None) -> dict[str, str]:
    difference = None if ours is None or paper is None else ours - paper
    return {
        "run": run,
        "metric": metric,
        "ours": "not measured" if ours is None else f"{ours:.3f}",
        "paper": "" if paper is None else f"{paper:.3f}",
        "difference": "" if difference is None else f"{'−' if difference < 0 else '+'}{abs(difference):.3f}",
    }


def lineage(recipe: str, done: Sequence[Done]) -> str:
    """Return Markdown with the stages and their inputs as a drawing, and as a table below it."""
    built = sum(not stage.cached for stage in done)
    words = f"{recipe}: {len(done)} stages, {built} built by this run, {len(done) - built} cached"
    lines = [
        f"**{words}**; a line is an artifact, a dot on it a stage that reads it; time is the build time.",
        "",
    ]
    lines += [as_image(standalone(drawing(done)), words), ""]
    lines += ["| | stage | built from | key | | time | rows |", "|---:|---|---|---|---|---:|---:|"]
    lines += [
        f"| {row} | {named(stage)} | {', '.join(str(source + 1) for source in sources)} | `{stage.key[:8]}` "
        f"| {'cached' if stage.cached else 'built'} | {duration(stage.seconds)} "
        f"| {'' if stage.rows is None else f'{stage.rows:,}'} |"
        for row, (stage, sources) in enumerate(zip(done, input_rows(done), strict=True), 1)
    ]
    return "\n".join(lines) + "\n"
