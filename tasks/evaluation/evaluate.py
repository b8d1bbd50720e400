"""Evaluate runs with ranx: metrics by query, their means, and paired tests between runs.

Runs are folded to documents (`tasks.evaluation.max_passage`), in trec_eval's order, which ranx does not know: it gets
the documents in that order. Queries that a run lacks and queries without a relevant document count 0, and every mean is
over the queries of the qrels. `answer@k` is DPR's accuracy (`tasks.evaluation.answer_match`): there passages are judged
by whether they have an answer, and the mean is over the queries that have answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, field_validator, model_validator

from storage.artifact import Artifact
from storage.errors import UserError
from storage.files import writing
from storage.rows import read_table
from storage.settings import Seed, Settings
from storage.tables import Answers, Metrics, Passages, Qrels, Run, Table
from tasks.evaluation.answer_match import first_hits
from tasks.evaluation.max_passage import Matrix, fold, graded, numbered, without_identical_ids
from tasks.evaluation.significance import Values, holm, paired_t_test, randomisation_test
from tasks.stage import stage

METRIC = re.compile(r"^(MRR|nDCG|recall|success|answer)@([1-9][0-9]*)$")


class Comparison(Settings):
    """Two runs to test against each other."""

    run: str
    baseline: str


class Evaluation(Settings):
    """What to measure on which runs."""

    dataset: str
    """The collection's name, which every row has beside its numbers."""
    split: str
    titles: bool
    """Whether the passages have titles, which changes every number: rows say it."""
    relevant_from: int = Field(ge=1)
    """The lowest grade that counts as relevant; nDCG's gains are all grades."""
    ignore_identical_ids: bool
    """Whether a document with the query's own id is the query, which no run finds."""
    metrics: list[str] = Field(min_length=1)
    """MRR@k, nDCG@k, recall@k or success@k of documents that are judged; answer@k of passages that have an answer."""
    names: list[str] = Field(min_length=1)
    """The runs' names, in the order in which they are given."""
    comparisons: list[Comparison]
    """Pairs to test; those of one metric are the family of Holm's correction."""
    averaged: dict[str, list[str]] = Field(default_factory=dict)
    """Rows that are the means of several runs, such as those of few-shot samples, query by query.

    Their `spread` is the sample standard deviation of the means of these runs.
    """
    seed: Seed
    resamples: int = Field(ge=10_000)
    """Draws of the randomisation test."""

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
        for each in self.comparisons:
            if unknown := {each.run, each.baseline} - {*self.names, *self.averaged}:
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
    ids = read_table(passages, Passages, ["passage_id", "doc_id"])
    by_answers = [each for each in settings.metrics if _parsed(each)[0] == "answer"]
    by_grades = [each for each in settings.metrics if each not in by_answers]
    measured: list[Measured] = []
    if by_grades:
        judgements = _there(qrels, Qrels, by_grades, settings)
        measured.append(by_judgements(judgements, ids, _read(runs, ids, settings), by_grades, settings))
    if by_answers:
        known = _there(answers, Answers, by_answers, settings)
        asked, first = first_hits(known, passages, ids["passage_id"], _read(runs, ids, settings), _deepest(by_answers))
        measured.append((asked, [{each: _within(ranks, each) for each in by_answers} for ranks in first]))
    values = {name: _joined(measured, place, settings.metrics) for place, name in enumerate(settings.names)}
    for name, members in settings.averaged.items():
        values[name] = {each: np.mean([values[run][each] for run in members], axis=0) for each in settings.metrics}
    asked_by = {metric: query_ids for query_ids, found in measured for metric in found[0]}
    _write(out / "queries.parquet", QUERIES, _by_query(values, asked_by))
    _write(out / "rows.parquet", ROWS, _means(values, settings))
    _write(out / "comparisons.parquet", COMPARISONS, compare(values, settings))


Measured = tuple[pa.Array, list[dict[str, Values]]]
"""The ids of the queries that were asked, and for each run its values by metric, in the order of these."""


def by_judgements(
    qrels: pa.Table, ids: pa.Table, runs: Iterator[pa.Table], metrics: Sequence[str], settings: Evaluation
) -> Measured:
    """What judged documents say of each run."""
    known = numbered(qrels["query_id"], ids, qrels["doc_id"])
    grades, deepest = graded(qrels, known), _deepest(metrics)
    found = [measure(grades, fold(run, known, deepest), metrics, settings.relevant_from) for run in runs]
    return known.query_ids, found


def measure(grades: Matrix, documents: Matrix, metrics: Sequence[str], relevant_from: int) -> dict[str, Values]:
    """Each metric's value for each query, by ranx; nDCG's gains are all grades above 0."""
    found = {}
    for metric in metrics:
        name, cutoff = _parsed(metric)
        found[metric] = _ranx()[name](grades, documents, cutoff, 1 if name == "nDCG" else relevant_from)
    return found


def _read(runs: Sequence[Artifact[Run]], ids: pa.Table, settings: Evaluation) -> Iterator[pa.Table]:
    """The runs, one after the other."""
    for run in runs:
        found = read_table(run, Run, ["query_id", "passage_id", "score"])
        yield without_identical_ids(found, ids) if settings.ignore_identical_ids else found


def _there(given: Artifact[Any] | None, table: type[Table], metrics: Sequence[str], settings: Evaluation) -> pa.Table:
    """The judgements or answers that metrics need."""
    found = read_table(given, table) if given else None
    if not found:
        what = "judged query" if table is Qrels else "query with answers"
        where = f" ({given.path})" if given else ""
        raise UserError(
            f"evaluate.metrics: {', '.join(metrics)}: no {what} in split {settings.split!r} of "
            f"{settings.dataset}{where}; name a split that has some, or other metrics"
        )
    return found


def _within(ranks: Values, metric: str) -> Values:
    return (ranks <= _parsed(metric)[1]).astype(np.float64)


def _joined(measured: Sequence[Measured], run: int, metrics: Sequence[str]) -> dict[str, Values]:
    """A run's values by metric, in the order of the metrics."""
    found = {metric: values for _, runs in measured for metric, values in runs[run].items()}
    return {metric: found[metric] for metric in metrics}


def compare(values: Mapping[str, Mapping[str, Values]], settings: Evaluation) -> list[dict[str, Any]]:
    """The tests of every pair that the settings name, by metric."""
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


def _parsed(metric: str) -> tuple[str, int]:
    name, _, cutoff = metric.partition("@")
    return name, int(cutoff)


def _deepest(metrics: Sequence[str]) -> int:
    return max(_parsed(metric)[1] for metric in metrics)


@cache
def _ranx() -> dict[str, Any]:
    """ranx's functions on arrays: ids and dictionaries, which it would compile for and copy, never reach it."""
    from ranx.metrics import hit_rate, ndcg, recall, reciprocal_rank

    return {"MRR": reciprocal_rank, "nDCG": ndcg, "recall": recall, "success": hit_rate}


def _means(values: Mapping[str, Mapping[str, Values]], settings: Evaluation) -> list[dict[str, Any]]:
    return [
        {
            "dataset": settings.dataset, "split": settings.split, "titles": settings.titles, "run": run,
            "metric": metric, "value": float(found.mean()), "queries": len(found),
            "spread": _spread([values[each][metric] for each in settings.averaged.get(run, [])]),
        }
        for run, metrics in values.items()
        for metric, found in metrics.items()
    ]  # fmt: skip


def _spread(members: Sequence[Values]) -> float | None:
    """The sample standard deviation of several runs' means; None for a run that is no mean of several."""
    return float(np.std([each.mean() for each in members], ddof=1)) if len(members) > 1 else None


def _by_query(values: Mapping[str, Mapping[str, Values]], asked_by: Mapping[str, pa.Array]) -> pa.Table:
    tables = [
        pa.table({
            "run": pa.repeat(pa.scalar(run), len(found)), "query_id": asked_by[metric],
            "metric": pa.repeat(pa.scalar(metric), len(found)), "value": np.asarray(found, np.float64),
        })
        for run, metrics in values.items()
        for metric, found in metrics.items()
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
