"""Evaluate runs: metrics by query, their means, and paired tests between runs.

Runs are folded to documents (`tasks.evaluation.max_passage`) in the order of trec_eval. ranx does not know that order
and receives the documents already sorted. Queries that a run lacks and queries without a relevant document count 0, and
every mean is over the queries of the qrels. `answer@k` is the accuracy of DPR (`tasks.evaluation.answer_match`): it
judges whether passages contain an answer, and its mean is over the queries that have answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, field_validator, model_validator

from storage.artifact import Artifact
from storage.errors import UserError
from storage.files import writing
from storage.row_index import PassageIndex
from storage.rows import read_table
from storage.settings import Seed, Settings
from storage.tables import Answers, Metrics, Passages, Qrels, Run, Table
from tasks.evaluation.answer_match import first_hits
from tasks.evaluation.max_passage import without_identical_ids
from tasks.evaluation.metrics import METRIC, Blocks, RunValues, largest_cutoff, measure_runs, parse
from tasks.evaluation.significance import Values, holm, paired_t_test, randomisation_test
from tasks.retrieval.run_lists import query_blocks
from tasks.retrieval.shared_passages import share_passages
from tasks.stage import stage


class Comparison(Settings):
    """Two runs to test against each other."""

    run: str
    baseline: str


class Evaluation(Settings):
    """The metrics to compute, and the runs."""

    dataset: str
    """The collection's name, which is written in every row."""
    split: str
    titles: bool
    """Whether the passages have titles, which changes all values; it is written in every row."""
    relevant_from: int = Field(ge=1)
    """The lowest grade that counts as relevant; gains of nDCG are all grades."""
    ignore_identical_ids: bool
    """Whether a document with the query's own id is the query itself, and is removed from its results."""
    metrics: list[str] = Field(min_length=1)
    """MRR@k, nDCG@k, recall@k or success@k of judged documents; answer@k of passages that contain an answer."""
    names: list[str] = Field(min_length=1)
    """The names of the runs, in the order of the runs."""
    comparisons: list[Comparison]
    """Pairs to test; the tests of one metric are a family of Holm's correction."""
    averaged: dict[str, list[str]] = Field(default_factory=dict)
    """Additional rows by name, each the mean of several runs (such as few-shot samples) query by query.

    Their `spread` is the sample standard deviation of the runs' means.
    """
    seed: Seed
    resamples: int = Field(ge=10_000)
    """Samples of the randomisation test."""

    @field_validator("metrics")
    @classmethod
    def _known(cls, metrics: list[str]) -> list[str]:
        for metric in metrics:
            if not METRIC.fullmatch(metric):
                raise ValueError(f"{metric!r} is no metric; expected MRR@k, nDCG@k, recall@k, success@k or answer@k")
        return metrics

    @model_validator(mode="after")
    def _named(self) -> Evaluation:
        for name, members in self.averaged.items():
            if not members or name in self.names or set(members) - set(self.names) or len(set(members)) < len(members):
                raise ValueError(
                    f"averaged: {name}: expected some of the runs {self.names}, each once, and a name of its own"
                )
        for pair in self.comparisons:
            if unknown := {pair.run, pair.baseline} - {*self.names, *self.averaged}:
                raise ValueError(f"comparison of {', '.join(sorted(unknown))}, which is none of the runs {self.names}")
        return self


@stage(version=3, table=Metrics)
def evaluate(
    out: Path,
    qrels: Artifact[Qrels] | None,
    answers: Artifact[Answers] | None,
    passages: Artifact[Passages],
    runs: Sequence[Artifact[Run]],
    *,
    settings: Evaluation,
) -> None:
    """Write `queries.parquet` (values by query), `rows.parquet` (their means) and `comparisons.parquet`."""
    if len(settings.names) != len(runs):
        raise UserError(f"evaluate.names: expected a name for each of the {len(runs)} runs, found {settings.names}")
    index = share_passages(out, passages, ordered=False)
    by_answers = [metric for metric in settings.metrics if parse(metric)[0] == "answer"]
    by_grades = [metric for metric in settings.metrics if metric not in by_answers]
    measured: list[RunValues] = []
    if by_grades:
        judgements, tables = _required(qrels, Qrels, by_grades, settings), _read(runs, index, settings)
        measured.append(measure_runs(judgements, index, tables, by_grades, settings.relevant_from))
    if by_answers:
        expected, tables = _required(answers, Answers, by_answers, settings), _read(runs, index, settings)
        query_ids, ranks = first_hits(expected, passages, index, tables, largest_cutoff(by_answers))
        measured.append((query_ids, [{metric: _within(hits, metric) for metric in by_answers} for hits in ranks]))
    values = {name: _merged(measured, number, settings.metrics) for number, name in enumerate(settings.names)}
    for name, members in settings.averaged.items():
        values[name] = {
            metric: np.mean([values[run][metric] for run in members], axis=0) for metric in settings.metrics
        }
    query_ids_of = {metric: query_ids for query_ids, run_values in measured for metric in run_values[0]}
    _write(out / "queries.parquet", QUERIES, _by_query(values, query_ids_of))
    _write(out / "rows.parquet", ROWS, _means(values, settings))
    _write(out / "comparisons.parquet", COMPARISONS, compare(values, settings))


def _read(runs: Sequence[Artifact[Run]], passages: PassageIndex, settings: Evaluation) -> Iterator[Blocks]:
    """Yield the runs, each in blocks of complete lists."""
    for run in runs:
        blocks = query_blocks(run)
        yield (without_identical_ids(rows, passages) for rows in blocks) if settings.ignore_identical_ids else blocks


def _required(
    artifact: Artifact[Any] | None, table: type[Table], metrics: Sequence[str], settings: Evaluation
) -> pa.Table:
    """Return the judgements or answers that metrics need. Raises UserError where there are none."""
    rows = read_table(artifact, table) if artifact else None
    if not rows:
        what = "judged query" if table is Qrels else "query with answers"
        where = f" ({artifact.path})" if artifact else ""
        raise UserError(
            f"evaluate.metrics: {', '.join(metrics)}: no {what} in split {settings.split!r} of "
            f"{settings.dataset}{where}; name a split that has some, or other metrics"
        )
    return rows


def _within(ranks: Values, metric: str) -> Values:
    return (ranks <= parse(metric)[1]).astype(np.float64)


def _merged(measured: Sequence[RunValues], run: int, metrics: Sequence[str]) -> dict[str, Values]:
    """Return a run's values by metric, in the order of the metrics."""
    values = {metric: values for _, run_values in measured for metric, values in run_values[run].items()}
    return {metric: values[metric] for metric in metrics}


def compare(values: Mapping[str, Mapping[str, Values]], settings: Evaluation) -> list[dict[str, Any]]:
    """Return the tests of all pairs of the settings, metric by metric."""
    rows = []
    for metric in settings.metrics:
        family = []
        for pair in settings.comparisons:
            run, baseline = values[pair.run][metric], values[pair.baseline][metric]
            row: dict[str, Any] = {"run": pair.run, "baseline": pair.baseline, "metric": metric}
            row["difference"] = float(run.mean() - baseline.mean())
            row["p"] = paired_t_test(run, baseline)
            row["p_randomisation"] = randomisation_test(run, baseline, resamples=settings.resamples, seed=settings.seed)
            family.append(row)
        adjusted = holm([row["p"] for row in family])
        rows += [{**row, "p_holm": p} for row, p in zip(family, adjusted, strict=True)]
    return rows


def _means(values: Mapping[str, Mapping[str, Values]], settings: Evaluation) -> list[dict[str, Any]]:
    return [
        {
            "dataset": settings.dataset, "split": settings.split, "titles": settings.titles, "run": run,
            "metric": metric, "value": float(by_query.mean()), "queries": len(by_query),
            "spread": _spread([values[member][metric] for member in settings.averaged.get(run, [])]),
        }
        for run, metrics in values.items()
        for metric, by_query in metrics.items()
    ]  # fmt: skip


def _spread(members: Sequence[Values]) -> float | None:
    """Return the sample standard deviation of several runs' means; None for a row of one run."""
    return float(np.std([values.mean() for values in members], ddof=1)) if len(members) > 1 else None


def _by_query(values: Mapping[str, Mapping[str, Values]], query_ids_of: Mapping[str, pa.Array]) -> pa.Table:
    tables = [
        pa.table({
            "run": pa.repeat(pa.scalar(run), len(by_query)), "query_id": query_ids_of[metric],
            "metric": pa.repeat(pa.scalar(metric), len(by_query)), "value": np.asarray(by_query, np.float64),
        })
        for run, metrics in values.items()
        for metric, by_query in metrics.items()
    ]  # fmt: skip
    return pa.concat_tables(tables)


QUERIES = pa.schema([("run", pa.string()), ("query_id", pa.string()), ("metric", pa.string()), ("value", pa.float64())])
ROWS = pa.schema({
    "dataset": pa.string(), "split": pa.string(), "titles": pa.bool_(), "run": pa.string(), "metric": pa.string(),
    "value": pa.float64(), "queries": pa.int64(), "spread": pa.float64(),
})  # fmt: skip
COMPARISONS = pa.schema(
    [(name, pa.string()) for name in ("run", "baseline", "metric")]
    + [(name, pa.float64()) for name in ("difference", "p", "p_randomisation", "p_holm")]
)


def _write(path: Path, schema: pa.Schema, rows: pa.Table | list[dict[str, Any]]) -> None:
    table = rows.cast(schema) if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows, schema=schema)
    with writing(path) as temporary:
        pq.write_table(table, temporary)
