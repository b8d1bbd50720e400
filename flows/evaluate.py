"""`pretrieve evaluate`: any retriever on a suite of collections, as one Prefect flow, and BEIR's table of it.

What the store has of a collection is reused: its passages, and what reproduced recipes have made of them. A run that
was cut off goes on with the first stage that is not finished.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import typer
import yaml

from flows.chain.given_models import check_models
from flows.chain.suites import Collection, Suite, load_suite, measured
from flows.contenders import Contender, contenders
from flows.reproduce import as_flow
from flows.terminal import Terminal, say, unwrapped
from storage import datasets
from storage.artifact import Artifact
from storage.errors import UserError
from storage.files import write_atomically
from storage.store import sources
from storage.store.run_notes import noted
from storage.store.store import Store
from storage.tables import Metrics
from tasks.report.page.statistics import intervals
from tasks.report.page.suite_page import as_markdown, notes, page, terminal_table
from tasks.runtime.prefect_progress import best_effort
from tasks.runtime.prefect_task import artifact_key
from tasks.session import Session, session


@dataclass(frozen=True)
class Asked:
    """What is measured on what."""

    name: str
    suite: Suite
    chosen: Sequence[Collection]
    absent: Mapping[str, str]
    """Collections that are left out, and why."""
    contenders: Sequence[Contender]

    def measure(self) -> dict[str, Artifact[Metrics]]:
        """The metrics of every collection, one after the other."""
        rankers = {each.name: each.ranker for each in self.contenders}
        return {of.name: measured(self.suite, of, rankers) for of in self.chosen}


def run(
    models: Sequence[str], suite_name: str, folder: Path, *, only: Sequence[str] = (), skip_missing: bool = False,
    changes: Sequence[str] = (),
) -> None:  # fmt: skip
    """Measure the models, print the table, and say where the reports are.

    Exit code 1 where a model of which values are expected has others.
    """
    store = Store.open_or_new(folder)
    asked = ask(models, suite_name, folder, only, skip_missing, changes)
    console = unwrapped(stderr=True)
    for why in asked.absent.values():
        console.print(f"left out: {why}")
    with session(Session(store, asked.suite.execution, planning=True)) as plan:
        asked.measure()
    check_models(plan)
    with noted(store, "evaluate", asked.name, plan.done) as note:
        missing = sum(store.manifest(step.stage, step.key) is None for step in plan.done.values())
        counts = f"{len(plan.done)} stages, {len(plan.done) - missing} cached, {missing} to build"
        console.print(f"{asked.suite.title}: {counts}; store {store.root}")
        current = Session(store, asked.suite.execution, print_line=console.print, note=note)
        if missing:
            report = as_flow("evaluate", asked.name, current, lambda: answer(asked, current))
        else:
            report = answer(asked, current)
        note.finish()
    content = json.loads(report.with_suffix(".json").read_text())
    Terminal().print(terminal_table(content))
    say(notes(content))
    say(f"report: {report}")
    if not all(each["alike"] for each in content["expected"]):
        raise typer.Exit(1)


def answer(asked: Asked, current: Session) -> Path:
    """Measure in a session, and publish; where the page is."""
    with session(current):
        return published(asked, asked.measure(), current)


def show_table(asked: Asked, page: Path) -> None:
    """Show the table in the UI of the flow run that calls this."""
    from prefect.artifacts import create_markdown_artifact

    with best_effort():
        create_markdown_artifact(
            key=artifact_key(f"{asked.name}-table"), markdown=page.with_name("table.md").read_text(),
            description=f"{asked.suite.title}: {page}",
        )  # fmt: skip


def ask(
    models: Sequence[str], suite_name: str, folder: Path, only: Sequence[str], skip_missing: bool,
    changes: Sequence[str],
) -> Asked:  # fmt: skip
    """What is asked for, if it can be answered: a suite, collections that are there, and models that can be read."""
    suite, name = load_suite(suite_name, changes)
    chosen = suite.chosen(only)
    absent = {of.name: why for of in chosen if (why := missing_files(suite, of))}
    if absent and not skip_missing:
        raise UserError(f"{'; '.join(dict.fromkeys(absent.values()))}; or leave out what is missing: --skip-missing")
    there = [of for of in chosen if of.name not in absent]
    if not there:
        raise UserError(f"--suite {name}: none of its collections is here: {next(iter(absent.values()))}")
    return Asked(name, suite, there, absent, contenders(models, suite, Store(folder)))


def missing_files(suite: Suite, of: Collection) -> str | None:
    """Why a collection cannot be read; None where its files are there."""
    reader, parts = datasets.dataset_loader(of.reader), [of.retrieve, "queries"]
    parts += ["qrels"] if datasets.has_qrels(of.reader, of.eval_split) else ["answers"]
    try:
        place = sources.locate(of.path, of.reader)
        for part in parts:
            reader.files(place, part, None if part == of.retrieve else of.eval_split)
    except UserError as error:
        return f"{of.name}: {error}".replace("dataset.path", f"collections.{suite.collections.index(of)}.path")
    return None


def published(asked: Asked, made: Mapping[str, Artifact[Metrics]], current: Session) -> Path:
    """Write report.json, table.md and report.html to the store's reports/evaluate/SUITE; the last one's path."""
    for metrics in made.values():
        current.store.check(metrics)
    content, folder = contents(asked, made), current.store.root / "reports" / "evaluate" / asked.name
    content["stages"] = [dataclasses.asdict(each) for each in current.done.values()]
    write_atomically(folder / "report.html", page(content))
    write_atomically(folder / "table.md", as_markdown(content))
    write_atomically(folder / "report.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return folder / "report.html"


def contents(asked: Asked, made: Mapping[str, Artifact[Metrics]]) -> dict[str, Any]:
    """All that was measured, and on what."""
    suite = asked.suite
    measured_on = [
        {"name": of.name, "column": of.column, "metric": suite.metric_of(of), "split": of.eval_split}
        for of in asked.chosen
    ]
    rows, spans, tests = [], [], []
    for name, metrics in made.items():
        rows += pq.read_table(metrics.path / "rows.parquet").to_pylist()
        of_collection = {"dataset": name}
        spans += [of_collection | row for row in intervals(pq.read_table(metrics.path / "queries.parquet"))]
        tests += [of_collection | row for row in pq.read_table(metrics.path / "comparisons.parquet").to_pylist()]
    return {
        "suite": asked.name, "title": suite.title, "description": suite.description, "metric": suite.metric,
        "text": as_yaml(suite), "models": {each.name: each.meaning for each in asked.contenders},
        "collections": measured_on, "columns": _columns(suite), "absent": dict(asked.absent), "rows": rows,
        "intervals": spans, "comparisons": tests, "expected_from": suite.expected_from,
        "expected": compared(suite, asked.chosen, rows),
        "inputs": {name: metrics.key for name, metrics in made.items()},
    }  # fmt: skip


def compared(suite: Suite, chosen: Sequence[Collection], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What is expected of the models that were measured, what was found, and whether it is near enough."""
    found = {(row["dataset"], row["run"], row["metric"]): row["value"] for row in rows}
    return [
        {"dataset": of.name, "run": run, "metric": metric, "expected": expected, "found": found[of.name, run, metric],
         "alike": abs(found[of.name, run, metric] - expected) <= suite.tolerance}
        for of in chosen
        for run, values in of.expected.items()
        for metric, expected in values.items()
        if (of.name, run, metric) in found
    ]  # fmt: skip


def as_yaml(suite: Suite) -> str:
    """The suite as it ran, without where its data lie and what cannot change a result."""
    value = suite.model_dump(mode="json", exclude={"execution": True, "collections": {"__all__": {"path"}}},
                             exclude_defaults=True)  # fmt: skip
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=110)


def _columns(suite: Suite) -> dict[str, int]:
    """The suite's columns, and of how many collections each is the mean."""
    names = [each.column for each in suite.collections]
    return {name: names.count(name) for name in names}
