"""What the Prefect UI shows of a whole run: its metrics beside the paper's, what was made of what, and the report.

Each is an artifact of the flow run that calls these. A server that is away loses them, never the run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tasks.report.page.lineage_graph import as_image, drawing, made_of, named, standalone
from tasks.runtime.formatting import duration
from tasks.runtime.prefect_progress import courtesy
from tasks.runtime.prefect_task import artifact_key
from tasks.session import Done


def show_run(recipe: str, page: Path, done: Sequence[Done]) -> None:
    """All that is shown of a recipe that has run to its report, whose page is at `page`."""
    show_metrics(page.with_suffix(".json"))
    show_lineage(recipe, done)
    link_report(page)


def show_metrics(report_json: Path) -> None:
    """A table of what a report measured, with the paper's numbers beside ours."""
    from prefect.artifacts import create_table_artifact

    content = json.loads(report_json.read_text())
    key, words = artifact_key(f"{content['recipe']['recipe']}-metrics"), measured_on(content)
    with courtesy():
        create_table_artifact(key=key, table=metrics_table(content), description=words)


def show_lineage(recipe: str, done: Sequence[Done]) -> None:
    """A page that draws the run's stages and what each was made of."""
    from prefect.artifacts import create_markdown_artifact

    with courtesy():
        create_markdown_artifact(key=artifact_key(f"{recipe}-lineage"), markdown=lineage(recipe, done))


def link_report(page: Path) -> None:
    """A link to the report where PRETRIEVE_REPORTS_URL says that the reports folder is served, else its path."""
    from prefect.artifacts import create_link_artifact, create_markdown_artifact

    about = json.loads(page.with_suffix(".json").read_text())["recipe"]
    key, words = artifact_key(f"{about['recipe']}-report"), f"The report of {about['title']}"
    with courtesy():
        if served := os.environ.get("PRETRIEVE_REPORTS_URL"):
            link = f"{served.rstrip('/')}/{quote(about['recipe'])}/{page.name}"
            create_link_artifact(key=key, link=link, link_text=words, description=words)
        else:
            create_markdown_artifact(key=key, markdown=f"{words}: `{page}`", description=words)


def measured_on(content: Mapping[str, Any]) -> str:
    """The split, how many queries, and whose numbers stand beside ours."""
    queries = max(row["queries"] for row in content["rows"])
    words = f"{content['recipe']['title']}: {queries:,} queries of split {content['rows'][0]['split']}."
    if not content["beside"]:
        return f"{words} The recipe reports no numbers of a paper."
    source = content["reported"].get("source", "the recipe's `reported`")
    return f"{words} Paper: {source}; its collection and model are not this run's unless the recipe says so."


def metrics_table(content: Mapping[str, Any]) -> list[dict[str, str]]:
    """Run, metric, our value, the paper's and the difference; first what the paper has too."""
    beside = content["beside"]
    table = [_row(each["run"], each["metric"], each["ours"], each["theirs"]) for each in beside]
    known = {(each["run"], each["metric"].lower()) for each in beside}
    rest = [row for row in content["rows"] if (row["run"], row["metric"].lower()) not in known]
    table += [_row(row["run"], row["metric"], row["value"], None) for row in rest]
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
    """Markdown: the stages and what they were made of as a drawing, and as a table below it."""
    built = sum(not each.cached for each in done)
    words = f"{recipe}: {len(done)} stages, {built} built by this run, {len(done) - built} found in the store"
    lines = [f"**{words}**; a line is an artifact, a dot on it a stage that reads it; time is what building took.", ""]
    lines += [as_image(standalone(drawing(done)), words), ""]
    lines += ["| | stage | made of | key | | time | rows |", "|---:|---|---|---|---|---:|---:|"]
    lines += [
        f"| {row} | {named(each)} | {', '.join(str(source + 1) for source in sources)} | `{each.key[:8]}` "
        f"| {'stored' if each.cached else 'built'} | {duration(each.seconds)} "
        f"| {'' if each.rows is None else f'{each.rows:,}'} |"
        for row, (each, sources) in enumerate(zip(done, made_of(done), strict=True), 1)
    ]
    return "\n".join(lines) + "\n"
