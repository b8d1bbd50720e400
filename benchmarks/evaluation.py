"""MRR@10, nDCG@10 and recall@1000 of a run; baselines: pytrec_eval, ranx and ir-measures.

Each contender has the run in its own form: ours as a table, pytrec_eval, ranx and ir-measures as dictionaries by query
and document. A second case begins with a file, which each contender reads. Ours does more: it numbers the complete
corpus, and reduces passages to documents, of which each has one here. Within a query no two scores are equal, because
ranx orders ties differently. pytrec_eval has no MRR@10, so its reciprocal rank is cut afterwards.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.contest import OURS, Case
from storage.artifact import Artifact
from storage.row_index import PassageIndex
from storage.rows import read_table, write_blocks, write_table
from storage.tables import Passages, Qrels, Run
from tasks.evaluation.metrics import measure_runs

DEVICES = ("cpu",)
METRICS = ["MRR@10", "nDCG@10", "recall@1000"]
THEIRS = {"recip_rank", "ndcg_cut.10", "recall.1000"}  # pytrec_eval's
RANX = ["mrr@10", "ndcg@10", "recall@1000"]
RUN = ["query_id", "passage_id", "score"]
Dicts = dict[str, dict[str, Any]]


def cases(device: str, *, small: bool) -> Iterator[Case]:
    """Yield a case with data in memory and one with Parquet files."""
    queries, depth, corpus = (20, 50, 400) if small else (1_000, 1_000, 100_000)
    what = f"{queries:,} queries x {depth:,} documents of {corpus:,}"
    with tempfile.TemporaryDirectory() as folder:
        tables = _written(Path(folder), queries, depth, corpus)
        qrels, run = _dicts(read_table(tables["qrels"], Qrels)), _dicts(read_table(tables["run"], Run))
        yield _case(f"{what}, in memory", _in_memory(tables, qrels, run), qrels, 5)
        yield _case(f"{what}, from Parquet", _from_files(tables), qrels, 3)


def _case(name: str, contenders: Mapping[str, Callable[[], Any]], qrels: Dicts, repeats: int) -> Case:
    compared, units = partial(_equal, order=sorted(qrels)), {"queries": len(qrels)}
    return Case(name, contenders, {"pytrec_eval": 2.0}, compared, repeats, units)


def _in_memory(tables: Mapping[str, Artifact[Any]], qrels: Dicts, run: Dicts) -> dict[str, Callable[[], Any]]:
    import ranx

    read = _read(tables)
    prebuilt = (ranx.Qrels(qrels), ranx.Run(run))
    return {
        OURS: lambda: _ours(*read),
        "pytrec_eval": lambda: _pytrec_eval(qrels, run),
        "ranx": lambda: _ranx(ranx.Qrels(qrels), ranx.Run(run)),
        "ranx, its run built before": lambda: _ranx(*prebuilt),
        "ir-measures": lambda: _ir_measures(qrels, run),
    }


def _from_files(tables: Mapping[str, Artifact[Any]]) -> dict[str, Callable[[], Any]]:
    def dicts() -> tuple[Dicts, Dicts]:
        return _dicts(read_table(tables["qrels"], Qrels)), _dicts(read_table(tables["run"], Run, RUN))

    def ranx_reads() -> tuple[Any, Any]:
        import ranx

        # It refuses the strings of pandas 3, and narrow numbers.
        kinds = {"query_id": object, "doc_id": object, "passage_id": object, "grade": "int64", "score": "float64"}
        frames = [pq.read_table(tables[name].path).to_pandas() for name in ("qrels", "run")]
        qrels, run = (frame.astype({name: kinds[name] for name in kinds if name in frame}) for frame in frames)
        return (
            ranx.Qrels.from_df(qrels, "query_id", "doc_id", "grade"),
            ranx.Run.from_df(run, "query_id", "passage_id", "score"),
        )

    return {
        OURS: lambda: _ours(*_read(tables)),
        "pytrec_eval": lambda: _pytrec_eval(*dicts()),
        "ranx": lambda: _ranx(*ranx_reads()),
        "ir-measures": lambda: _ir_measures(*dicts()),
    }


def _read(tables: Mapping[str, Artifact[Any]]) -> tuple[pa.Table, pa.Table, pa.Table]:
    return (
        read_table(tables["qrels"], Qrels),
        read_table(tables["passages"], Passages, ["passage_id", "doc_id"]),
        read_table(tables["run"], Run, RUN),
    )


def _ours(qrels: pa.Table, passages: pa.Table, run: pa.Table) -> dict[str, Any]:
    query_ids, (values,) = measure_runs(qrels, PassageIndex.of(passages), [[run]], METRICS, relevant_from=1)
    return {"ids": query_ids, "values": values}


def _pytrec_eval(qrels: Dicts, run: Dicts) -> Any:
    import pytrec_eval

    return pytrec_eval.RelevanceEvaluator(qrels, THEIRS).evaluate(run)


def _ranx(qrels: Any, run: Any) -> Any:
    import ranx

    return ranx.evaluate(qrels, run, RANX, return_mean=False, threads=1)


def _ir_measures(qrels: Any, run: Any) -> Any:
    import ir_measures
    from ir_measures import RR, R, nDCG

    return list(ir_measures.iter_calc([RR @ 10, nDCG @ 10, R @ 1000], qrels, run))


def _equal(values: Mapping[str, Any], *, order: list[str]) -> dict[str, Any]:
    """Return the largest difference of any query's value to ours; it must be below 1e-6."""
    ours = _by_query(values[OURS], order)
    largest = max(float(abs(_by_query(others, order) - ours).max()) for others in values.values())
    assert largest < 1e-6, largest
    means = dict(zip(METRICS, ours.mean(0).round(4).tolist(), strict=True))
    return {"largest difference of a query's value": largest, **means}


def _by_query(metrics: Any, order: list[str]) -> Any:
    """Return values by query, in this order, and metric: [queries, metrics]."""
    if isinstance(metrics, list):  # ir-measures'
        names, values = (
            ["RR@10", "nDCG@10", "R@1000"],
            {(measurement.query_id, str(measurement.measure)): measurement.value for measurement in metrics},
        )
        return np.array([[values[query, name] for name in names] for query in order])
    if "ids" in metrics:
        row_of = {query: row for row, query in enumerate(metrics["ids"].to_pylist())}
        return np.stack([metrics["values"][metric] for metric in METRICS], 1)[[row_of[query] for query in order]]
    if "mrr@10" in metrics:
        return np.stack([metrics[metric] for metric in RANX], 1)
    table = np.array(
        [[metrics[query][metric] for metric in ("recip_rank", "ndcg_cut_10", "recall_1000")] for query in order]
    )
    table[table[:, 0] < 1 / 10 - 1e-9, 0] = 0
    return table


def _written(folder: Path, queries: int, depth: int, corpus: int) -> dict[str, Artifact[Any]]:
    """Write random qrels and runs: of 20 documents that are judged for a query its run has ten, mostly at its top."""
    draw = np.random.default_rng(7)
    doc_ids = np.array([str(number) for number in draw.permutation(10 * corpus)[:corpus]])
    query_ids = [str(1_000_000 + 7 * number) for number in range(queries)]
    ranked = np.stack([draw.permutation(corpus)[: depth + 10] for _ in query_ids])
    towards_the_top = draw.gumbel(size=(queries, depth)) - np.log(np.arange(1, depth + 1))
    judged = np.concatenate([np.take_along_axis(ranked, towards_the_top.argsort(1)[:, -10:], 1), ranked[:, depth:]], 1)
    scores = np.sort(draw.permuted(np.tile(np.arange(4 * depth), (queries, 1)), axis=1)[:, :depth])[:, ::-1]
    artifacts = {name: Artifact[Any](name, name, folder / name) for name in ("qrels", "passages", "run")}
    whole = {"title": "", "text": "x", "start": 0, "end": 1, "num_tokens": 1}
    passages = {name: pa.repeat(value, corpus) for name, value in whole.items()}
    write_table(artifacts["passages"].path, Passages, _typed(Passages, passage_id=doc_ids, doc_id=doc_ids, **passages))
    write_table(artifacts["qrels"].path, Qrels, _typed(
        Qrels, query_id=np.repeat(query_ids, 20), doc_id=doc_ids[judged].ravel(),
        grade=draw.integers(0, 4, judged.size),
    ))  # fmt: skip
    write_blocks(artifacts["run"].path, Run, (
        _typed(
            Run, query_id=np.repeat(query, depth), passage_id=doc_ids[ranked[row, :depth]],
            view=np.repeat("dense", depth), rank=np.arange(1, depth + 1), score=scores[row] / 16,
        )
        for row, query in enumerate(query_ids)
    ))  # fmt: skip
    return artifacts


def _typed(table: type[Any], **columns: Any) -> pa.Table:
    return pa.table({name: pa.array(columns[name]) for name in table.schema.names}).cast(table.schema)


def _dicts(table: pa.Table) -> Dicts:
    """Return grades or scores by query and document; rows of a query are adjacent."""
    query_ids, values = table["query_id"].to_numpy(), table["grade" if "grade" in table.column_names else "score"]
    doc_ids = table["doc_id" if "doc_id" in table.column_names else "passage_id"].to_pylist()
    starts = np.flatnonzero(query_ids[1:] != query_ids[:-1]) + 1
    bounds, listed = [0, *starts.tolist(), len(query_ids)], values.to_pylist()
    return {
        query_ids[low]: dict(zip(doc_ids[low:high], listed[low:high], strict=True)) for low, high in pairwise(bounds)
    }
