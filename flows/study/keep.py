"""The results that a study keeps of a finished run: values by query, curves, and the keys and costs of its stages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flows.finished_runs import FinishedRun, Measurement
from flows.recipe.schema import Recipe
from flows.study.trials import PlannedTrial
from storage.artifact import Artifact
from storage.results.study_runs import Facts, write_study_run
from storage.rows import read_table
from storage.store import sources
from storage.store.lookup import artifact, must_exist
from storage.store.store import Store
from storage.tables import Qrels
from tasks.estimates.flops import Costs
from tasks.report.page.training_curves import averaged
from tasks.report.report import CURVES
from tasks.session import Done, Session
from tasks.training.metrics_log import seconds_in_steps

POINTS = 40  # of a stored curve
PROBED = "pre-training, retrieval probe"


def keep(
    plan: PlannedTrial, store: Store, results: Path, rows: Mapping[str, Sequence[str]], current: Session
) -> None:  # fmt: skip
    """Write the small files with the results of a run."""
    finished = FinishedRun(plan.title, store, must_exist(f"report/{plan.report}", store))
    first, done = finished.measurements[0], list(current.done.values())
    report: Artifact[Any] = Artifact("report", plan.report, store.folder("report", plan.report))
    curves = json.loads((store.check(report) / CURVES).read_text(encoding="utf-8"))
    trial = plan.definition
    facts = Facts(
        trial.recipe, trial.seed, plan.recipe.title, plan.report, collection_of(plan.recipe),
        done[-1].built["versions"], pretraining(plan, store, done), trial.fold, trial.steps,
    )  # fmt: skip
    write_study_run(
        trial.folder(results), facts, scores=scores(first.path / "queries.parquet", rows, clusters(first)),
        curves=list(points(curves)), keys=[key(step, store) for step in done],
    )  # fmt: skip


def collection_of(recipe: Recipe[Any]) -> str:
    """Return the collection and the evaluation split, as claims name them."""
    return f"{Path(recipe.dataset.path or recipe.dataset.reader).stem}/{recipe.dataset.eval_splits[0]}"


def pretraining(plan: PlannedTrial, store: Store, done: Sequence[Done]) -> dict[str, float]:
    """Return the cost per step of the pre-training; {} where nothing is pre-trained."""
    settings, step = plan.recipe.pretrain, next((stage for stage in done if stage.stage == "pretrain"), None)
    if settings is None or step is None:
        return {}
    texts = next(stage for stage in done if stage.reference == step.inputs[0]).rows or 0
    steps = settings.num_steps(texts)
    costs = Costs(sources.weights(plan.recipe.backbone.weights).path, plan.recipe.backbone)
    per_step = costs.pretraining(settings).times(settings.batch)
    cost = {"steps": steps, "tokens": per_step.tokens, "flops": per_step.flops}
    log = store.folder(step.stage, step.key) / "logs" / "metrics.jsonl"
    rows = settings.batch * getattr(settings.objective, "rows_per_text", 1)
    # Where the log's steps took longer, only the last attempt was timed.
    if step.built["seconds"] >= seconds_in_steps(log.read_text(encoding="utf-8"), rows):
        cost["cpu_seconds"] = step.built["cpu_seconds"] / steps
    return cost


def clusters(measurement: Measurement) -> dict[str, str]:
    """Return the cluster of each judged query: its first relevant document's id up to a `#`, such as an article's."""
    if (judged := measurement.input("qrels")) is None:
        return {}
    qrels = read_table(artifact(judged.reference, measurement.store), Qrels)
    # Of several relevant documents the smallest id counts: a dictionary keeps the last value of a key.
    relevant = qrels.filter(pc.greater(qrels["grade"], 0)).sort_by(
        [("query_id", "ascending"), ("doc_id", "descending")]
    )
    ids = zip(relevant["query_id"].to_pylist(), relevant["doc_id"].to_pylist(), strict=True)
    return {query_id: doc_id.partition("#")[0] for query_id, doc_id in ids}


def scores(path: Path, rows: Mapping[str, Sequence[str]], cluster_of: Mapping[str, str]) -> pa.Table:
    """Return the values by query of the rows and metrics that claims compare, with the query's cluster."""
    table = pq.read_table(path)
    selected = [
        table.filter(pc.and_(pc.equal(table["run"], row), pc.equal(table["metric"], metric)))
        for row, metrics in rows.items() for metric in metrics
    ]  # fmt: skip
    values = pa.concat_tables(selected or [table.slice(0, 0)]).rename_columns({"run": "row"})
    names = [cluster_of.get(query_id, query_id) for query_id in values["query_id"].to_pylist()]
    return values.append_column("cluster", pa.array(names, pa.string()))


def points(curves: Mapping[str, Mapping[str, Sequence[Sequence[float]]]]) -> Iterator[dict[str, Any]]:
    """Yield the points of every training's losses and of the pre-training's probe, averaged to `POINTS` per curve."""
    for training, lines in curves.items():
        if ", " not in training or training == PROBED:
            for name, line in lines.items():
                for step, value in averaged(line, POINTS):
                    yield {"training": training, "name": name, "step": step, "value": value}


def key(step: Done, store: Store) -> dict[str, Any]:
    """Return what is stored of a stage."""
    built = step.built
    return {
        "stage": step.stage, "round": step.round, "key": step.key,
        "version": must_exist(step.reference, store).version, "rows": step.rows, "cached": step.cached,
        "seconds": built["seconds"], "cpu_seconds": built["cpu_seconds"], "at": built["at"],
        "device": built["device"], "cores": built["machine"]["cores"],
    }  # fmt: skip
