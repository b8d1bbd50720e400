"""Metrics of ranked documents by query, computed by ranx: MRR@k, nDCG@k, recall@k and success@k."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from storage.row_index import PassageIndex, RowIndex
from tasks.evaluation.max_passage import Matrix, fold_blocks, graded
from tasks.evaluation.significance import Values

METRIC = re.compile(r"^(MRR|nDCG|recall|success|answer)@([1-9][0-9]*)$")

Blocks = Iterable[pa.Table]
"""The rows of a run, block by block."""

RunValues = tuple[pa.Array, list[dict[str, Values]]]
"""The ids of the queries, and for each run its values by metric, in the order of these ids."""


def parse(metric: str) -> tuple[str, int]:
    """Return the name and the cutoff of a metric."""
    name, _, cutoff = metric.partition("@")
    return name, int(cutoff)


def largest_cutoff(metrics: Sequence[str]) -> int:
    """Return the greatest k of several metrics."""
    return max(parse(metric)[1] for metric in metrics)


def measure_runs(
    qrels: pa.Table, passages: PassageIndex, runs: Iterable[Blocks], metrics: Sequence[str], relevant_from: int
) -> RunValues:
    """Return each run's values by the judgements, in the order in which the judgements first name a query.

    A run comes in blocks of queries, each with all its rows.
    """
    queries = RowIndex(qrels["query_id"].unique())
    grades, cutoff = graded(qrels, queries, passages), largest_cutoff(metrics)

    def values_of(run: Blocks) -> dict[str, Values]:
        values = {metric: np.zeros(len(queries)) for metric in metrics}
        for rows, documents in fold_blocks(run, queries, passages, cutoff):
            for metric, values_of_block in measure(grades[rows], documents, metrics, relevant_from).items():
                values[metric][rows] = values_of_block
        return values

    return queries.ids, [values_of(run) for run in runs]


def measure(grades: Matrix, documents: Matrix, metrics: Sequence[str], relevant_from: int) -> dict[str, Values]:
    """Return the values of each metric by query. Gains of nDCG are all grades above 0."""
    values = {}
    for metric in metrics:
        name, cutoff = parse(metric)
        values[metric] = _ranx()[name](grades, documents, cutoff, 1 if name == "nDCG" else relevant_from)
    return values


@cache
def _ranx() -> dict[str, Any]:
    """Return ranx's functions on arrays; its own classes of ids and dictionaries would be compiled for, and copied."""
    from ranx.metrics import hit_rate, ndcg, recall, reciprocal_rank

    return {"MRR": reciprocal_rank, "nDCG": ndcg, "recall": recall, "success": hit_rate}
