"""`pretrieve evaluate`: any retrievers on a suite of collections, as one Prefect flow, with a table as in BEIR.

Artifacts in the store are reused, those of reproduced recipes too. An interrupted run resumes with the first stage that
is not complete.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import typer
import yaml

from flows.build import print_stages
from flows.chain.given_inputs import inputs_reported_together
from flows.chain.given_models import check_models
from flows.chain.suites import evaluate_collection
from flows.evaluate.systems import NamedSystem, named_systems
from flows.prefect_server.as_flow import as_flow
from flows.recipe.suite_schema import Collection, Suite, load_suite, suite_of_folder
from flows.terminal import Terminal, say, unwrapped
from storage import datasets
from storage.artifact import Artifact
from storage.errors import UserError
from storage.files import write_atomically
from storage.store import sources
from storage.store.run_notes import noted
from storage.store.store import Store
from storage.tables import Metrics
from tasks.job import needed_references
from tasks.report.page.statistics import intervals
from tasks.report.page.suite_page import as_markdown, notes, page, terminal_table
from tasks.runtime.prefect_progress import best_effort
from tasks.runtime.prefect_task import artifact_key
from tasks.session import Session, session


@dataclass(frozen=True)
class EvaluationRequest:
    """Systems, and the collections of a suite that they are evaluated on."""

    name: str
    suite: Suite
    collections: Sequence[Collection]
    absent: Mapping[str, str]
    """Collections that are left out, each with the reason."""
    systems: Sequence[NamedSystem]

    def evaluate(self) -> dict[str, Artifact[Metrics]]:
        """Return the metrics of the systems on each collection, by the collection's name."""
        systems = {named.name: named.system for named in self.systems}
        return {
            collection.name: evaluate_collection(self.suite, collection, systems) for collection in self.collections
        }


def run(
    models: Sequence[str], suite_name: str, folder: Path, *, only: Sequence[str] = (), skip_missing: bool = False,
    changes: Sequence[str] = (),
) -> None:  # fmt: skip
    """Evaluate the models, print the table and the path of the report.

    Exit code 1 where a model's values differ from the expected ones.
    """
    store = Store.open_or_new(folder)
    show_evaluation(requested(models, suite_name, folder, only, skip_missing, changes), store)


def run_on_folder(
    models: Sequence[str], collection: str, splits: Sequence[str], reader: str, folder: Path, *,
    skip_missing: bool = False, changes: Sequence[str] = (),
) -> None:  # fmt: skip
    """Evaluate the models on splits of one collection, as `run` does on a suite."""
    store = Store.open_or_new(folder)
    suite, name = suite_of_folder(collection, splits, reader, changes)
    try:
        sources.locate(collection, reader)
    except UserError as error:
        words = str(error).removeprefix("dataset.path: ").replace("--set dataset.path=DIR", "name another folder")
        raise UserError(f"--collection {collection}: {words}") from None
    show_evaluation(request_of(models, suite, name, folder, [], skip_missing=skip_missing), store)


def show_evaluation(request: EvaluationRequest, store: Store) -> None:
    """Evaluate, print the table and the path of the report. Exit code 1 where values differ from the expected ones."""
    report = evaluated(request, store, print_line=unwrapped(stderr=True).print)
    content = json.loads(report.with_suffix(".json").read_text(encoding="utf-8"))
    Terminal().print(terminal_table(content))
    say(notes(content))
    say(f"report: {report}")
    if not all(value["alike"] for value in content["expected"]):
        raise typer.Exit(1)


def evaluated(
    request: EvaluationRequest, store: Store, *, print_line: Callable[[str], None], with_server: bool = True
) -> Path:
    """Evaluate what is requested; return the page of the report.

    `with_server` runs stages that are missing as a Prefect flow. Without it the same stages run in this process only.
    """
    for why in request.absent.values():
        print_line(f"left out: {why}")
    with session(Session(store, request.suite.execution, planning=True)) as plan, inputs_reported_together(plan):
        request.evaluate()
    check_models(plan.jobs, plan)
    with noted(store, "evaluate", request.name, needed_references(plan.jobs.values())) as note:
        current = Session(store, request.suite.execution, print_line=print_line, note=note)
        missing = print_stages(request.suite.title, plan.done, current)
        if missing and with_server:
            report = as_flow("evaluate", request.name, current, lambda: evaluate_and_publish(request, current))
        else:
            report = evaluate_and_publish(request, current)
        note.finish()
    return report


def evaluate_and_publish(request: EvaluationRequest, current: Session) -> Path:
    """Evaluate in a session and publish the report; return the path of its page."""
    with session(current):
        return published(request, request.evaluate(), current)


def show_table(request: EvaluationRequest, page: Path) -> None:
    """Show the table in the UI of the flow run that calls this."""
    from prefect.artifacts import create_markdown_artifact

    with best_effort():
        create_markdown_artifact(
            key=artifact_key(f"{request.name}-table"), markdown=page.with_name("table.md").read_text(encoding="utf-8"),
            description=f"{request.suite.title}: {page}",
        )  # fmt: skip


def requested(
    models: Sequence[str], suite_name: str, folder: Path, only: Sequence[str], skip_missing: bool,
    changes: Sequence[str],
) -> EvaluationRequest:  # fmt: skip
    """Return the request for models on a suite. Raises UserError for missing collections and unreadable models."""
    suite, name = load_suite(suite_name, changes)
    return request_of(models, suite, name, folder, only, skip_missing=skip_missing)


def request_of(
    models: Sequence[str], suite: Suite, name: str, folder: Path, only: Sequence[str], *, skip_missing: bool
) -> EvaluationRequest:
    """Return the request for models on a suite that is read."""
    selected = suite.select(only)
    absent = {collection.name: why for collection in selected if (why := missing_files(suite, collection))}
    if absent and not skip_missing:
        leave_out = "; or leave out what is missing: --skip-missing" if len(absent) < len(selected) else ""
        raise UserError(f"{'; '.join(dict.fromkeys(absent.values()))}{leave_out}")
    present = [collection for collection in selected if collection.name not in absent]
    if not present:
        raise UserError(f"--suite {name}: none of its collections is here: {next(iter(absent.values()))}")
    return EvaluationRequest(name, suite, present, absent, named_systems(models, suite, Store(folder)))


def missing_files(suite: Suite, collection: Collection) -> str | None:
    """Return why a collection cannot be read; None where its files are present."""
    reader, parts = datasets.dataset_loader(collection.reader), [collection.retrieve, "queries"]
    parts += ["qrels"] if datasets.has_qrels(collection.reader, collection.eval_split) else ["answers"]
    try:
        location = sources.locate(collection.path, collection.reader)
        for part in parts:
            reader.files(location, part, None if part == collection.retrieve else collection.eval_split)
    except UserError as error:
        key = f"collections.{suite.collections.index(collection)}.path"
        return f"{collection.name}: {error}".replace("dataset.path", key)
    return None


def published(request: EvaluationRequest, results: Mapping[str, Artifact[Metrics]], current: Session) -> Path:
    """Write report.json, table.md and report.html to the store's reports/evaluate/SUITE; return the last one's path."""
    for metrics in results.values():
        current.store.check(metrics)
    content, folder = contents(request, results), current.store.root / "reports" / "evaluate" / request.name
    content["stages"] = [dataclasses.asdict(step) for step in current.done.values()]
    write_atomically(folder / "report.html", page(content))
    write_atomically(folder / "table.md", as_markdown(content))
    write_atomically(folder / "report.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return folder / "report.html"


def contents(request: EvaluationRequest, results: Mapping[str, Artifact[Metrics]]) -> dict[str, Any]:
    """Return what the report says: metrics, intervals and tests by collection, and what was evaluated."""
    suite = request.suite
    collections = [
        {
            "name": collection.name,
            "column": collection.column,
            "metric": suite.metric_of(collection),
            "split": collection.eval_split,
        }
        for collection in request.collections
    ]
    rows, spans, tests = [], [], []
    for name, metrics in results.items():
        rows += pq.read_table(metrics.path / "rows.parquet").to_pylist()
        of_collection = {"dataset": name}
        spans += [of_collection | row for row in intervals(pq.read_table(metrics.path / "queries.parquet"))]
        tests += [of_collection | row for row in pq.read_table(metrics.path / "comparisons.parquet").to_pylist()]
    return {
        "suite": request.name, "title": suite.title, "description": suite.description, "metric": suite.metric,
        "text": as_yaml(suite), "models": {named.name: named.description for named in request.systems},
        "collections": collections, "columns": _columns(suite), "absent": dict(request.absent), "rows": rows,
        "intervals": spans, "comparisons": tests, "expected_from": suite.expected_from,
        "expected": compared(suite, request.collections, rows),
        "inputs": {name: metrics.key for name, metrics in results.items()},
    }  # fmt: skip


def compared(
    suite: Suite, collections: Sequence[Collection], rows: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the expected and the measured values of the models that have some, and whether they agree."""
    values = {(row["dataset"], row["run"], row["metric"]): row["value"] for row in rows}
    return [
        {"dataset": collection.name, "run": run, "metric": metric, "expected": expected, "found": value,
         "alike": abs(value - expected) <= suite.tolerance}
        for collection in collections
        for run, by_metric in collection.expected.items()
        for metric, expected in by_metric.items()
        if (value := values.get((collection.name, run, metric))) is not None
    ]  # fmt: skip


def as_yaml(suite: Suite) -> str:
    """Return the suite as it ran, without the paths of its data and without what cannot change a result."""
    value = suite.model_dump(mode="json", exclude={"execution": True, "collections": {"__all__": {"path"}}},
                             exclude_defaults=True)  # fmt: skip
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=110)


def _columns(suite: Suite) -> dict[str, int]:
    """Return the suite's columns, each with the number of collections that it is the mean of."""
    names = [collection.column for collection in suite.collections]
    return {name: names.count(name) for name in names}
