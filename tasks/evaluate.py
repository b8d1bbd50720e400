"""Evaluate runs with ranx: metrics by query, their means, and paired tests between runs.

Runs are folded to documents (`tasks.fold`), in trec_eval's order, which ranx does not know: it gets the
documents in that order. Queries that a run lacks and queries without a relevant document count 0, and every
mean is over the queries of the qrels.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
from storage.settings import Settings
from storage.tables import Metrics, Passages, Qrels, Run
from tasks.fold import Matrix, fold, judged
from tasks.significance import Values, holm, paired_t_test, randomisation_test
from tasks.stage import stage

METRIC = re.compile(r"^(MRR|nDCG|recall|success)@([1-9][0-9]*)$")


class Comparison(Settings):
    """Two runs to test against each other."""

    run: str
    baseline: str


class Evaluation(Settings):
    """What to measure on which runs."""

    split: str
    metrics: list[str] = Field(min_length=1)
    """MRR@k, nDCG@k, recall@k or success@k."""
    names: list[str] = Field(min_length=1)
    """The runs' names, in the order in which they are given."""
    comparisons: list[Comparison]
    """Pairs to test; those of one metric are the family of Holm's correction."""
    averaged: dict[str, list[str]] = Field(default_factory=dict)
    """Rows that are the means of several runs, such as those of few-shot samples, query by query.

    Their `spread` is the sample standard deviation of the means of these runs.
    """
    seed: int
    resamples: int = Field(ge=10_000)
    """Draws of the randomisation test."""

    @field_validator("metrics")
    @classmethod
    def _known(cls, metrics: list[str]) -> list[str]:
        for metric in metrics:
            if not METRIC.fullmatch(metric):
                raise ValueError(f"{metric!r} is no metric; expected MRR@k, nDCG@k, recall@k or success@k")
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


@stage(version=2, table=Metrics)
def evaluate(
    out: Path,
    qrels: Artifact[Qrels],
    passages: Artifact[Passages],
    runs: Sequence[Artifact[Run]],
    *,
    settings: Evaluation,
) -> None:
    """Write `queries.parquet` (values by query), `rows.parquet` (their means) and `comparisons.parquet`."""
    judgements = read_table(qrels, Qrels)
    if not len(judgements):
        raise UserError(f"{qrels.path}: no judged query in split {settings.split!r}; name a split that has some")
    if len(settings.names) != len(runs):
        raise UserError(f"evaluate.names: expected a name for each of the {len(runs)} runs, found {settings.names}")
    known = judged(judgements, read_table(passages, Passages, ["passage_id", "doc_id"]))
    values: dict[str, dict[str, Values]] = {}
    for name, run in zip(settings.names, runs, strict=True):
        documents = fold(read_table(run, Run, ["query_id", "passage_id", "score"]), known, _deepest(settings.metrics))
        values[name] = measure(known.grades, documents, settings.metrics)
    for name, members in settings.averaged.items():
        values[name] = {each: np.mean([values[run][each] for run in members], axis=0) for each in settings.metrics}
    _write(out / "queries.parquet", QUERIES, _by_query(values, known.query_ids))
    _write(out / "rows.parquet", ROWS, _means(values, settings))
    _write(out / "comparisons.parquet", COMPARISONS, compare(values, settings))


def measure(grades: Matrix, documents: Matrix, metrics: Sequence[str]) -> dict[str, Values]:
    """Each metric's value for each query, by ranx. A grade of 1 or more is relevant; nDCG's gains are the grades."""
    found = {}
    for metric in metrics:
        name, cutoff = _parsed(metric)
        found[metric] = _ranx()[name](grades, documents, cutoff)
    return found


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
            "run": run, "split": settings.split, "metric": metric, "value": float(found.mean()),
            "queries": len(found), "spread": _spread([values[each][metric] for each in settings.averaged.get(run, [])]),
        }
        for run, metrics in values.items()
        for metric, found in metrics.items()
    ]  # fmt: skip


def _spread(members: Sequence[Values]) -> float | None:
    """The sample standard deviation of several runs' means; None for a run that is no mean of several."""
    return float(np.std([each.mean() for each in members], ddof=1)) if len(members) > 1 else None


def _by_query(values: Mapping[str, Mapping[str, Values]], query_ids: pa.Array) -> pa.Table:
    tables = [
        pa.table({
            "run": pa.repeat(pa.scalar(run), len(found)), "query_id": query_ids,
            "metric": pa.repeat(pa.scalar(metric), len(found)), "value": np.asarray(found, np.float64),
        })
        for run, metrics in values.items()
        for metric, found in metrics.items()
    ]  # fmt: skip
    return pa.concat_tables(tables)


QUERIES = pa.schema([("run", pa.string()), ("query_id", pa.string()), ("metric", pa.string()), ("value", pa.float64())])
ROWS = pa.schema(
    [(name, pa.string()) for name in ("run", "split", "metric")]
    + [("value", pa.float64()), ("queries", pa.int64()), ("spread", pa.float64())]
)
COMPARISONS = pa.schema(
    [(name, pa.string()) for name in ("run", "baseline", "metric")]
    + [(name, pa.float64()) for name in ("difference", "p", "p_randomisation", "p_holm")]
)


def _write(path: Path, schema: pa.Schema, rows: pa.Table | list[dict[str, Any]]) -> None:
    table = rows.cast(schema) if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows, schema=schema)
    with writing(path) as temporary:
        pq.write_table(table, temporary)
