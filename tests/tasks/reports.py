"""A report with all of its parts, made by the stage from values that a test writes down."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage.artifact import Artifact
from storage.rows import write_rows
from storage.tables import Overlap, Queries
from tasks.evaluation.significance import holm, paired_t_test
from tasks.report.publish import publish
from tasks.report.report import Reporting, report

RUNS = {"bm25": 0.3, "retriever_1": 0.6, "retriever_2": 0.7}
QUERIES = 60
ROWS = [
    {"table": "Table 1", "system": "CoT-MAE", "variant": "w/ query-as-context (50K) - retriever 2"},
    {"table": "Table 2", "system": "CoT-MAE", "variant": "w/ query-as-context"},
    {"table": "Table 3", "system": "CoT-MAE", "variant": "5 queries/passage, retriever-2"},
]
SETTINGS = Reporting(
    recipe="cot_mae", title="CoT-MAE on <MS MARCO>", paper="cot_mae", dataset="MS MARCO", generator="doc2query",
    text="seed: 42\n", runs=dict.fromkeys(RUNS, "a run"), absent={}, main="retriever_2", baseline="bm25",
    metric="MRR@10", trained=["pre-training"], stored=["bm25", "retriever_2"],
    views={"retriever_2": ["retriever_1", "bm25"]},
    groups={"CQADupStack/a": "CQADupStack", "CQADupStack/b": "CQADupStack"},
    reported={"paper": "Query-as-context", "source": "Wu et al. 2022, tables 1 and 2",
              "bm25": {"row": {"table": "Table 1", "system": "BM25"}, "MRR@10": 0.187},
              "retriever_2": {"row": ROWS, "MRR@10": 0.402, "success@50": 0.888, "success@1000": 0.988,
                              "nDCG@10 on dl19": 0.715},
              "retriever_3": {"MRR@10": 0.1}, "mean nDCG@10 of 3 sets": 0.456,
              "mean nDCG@10 of 14 sets": 0.456},
)  # fmt: skip
BUILT = {
    "seconds": 60.0, "cpu_seconds": 110.0, "peak_memory_mib": 2048, "device": "NVIDIA H200",
    "energy_joules": {"GPUs": 7200.0}, "versions": {"torch": "2.13.0"},
    "machine": {"cores": 16, "system": "Linux", "python": "3.11.7"},
}  # fmt: skip
STAGES: list[dict[str, Any]] = [
    {"stage": "split_corpus", "round": "", "key": "a" * 24, "cached": True, "seconds": 30.0, "rows": 8841823,
     "inputs": ["source/0"], "built": {**BUILT, "device": "x86_64", "energy_joules": {}, "peak_memory_mib": 512}},
    {"stage": "train", "round": "retriever_2", "key": "b" * 24, "cached": False, "seconds": 60.0, "rows": None,
     "inputs": [f"split_corpus/{'a' * 24}", None], "built": BUILT},
    {"stage": "evaluate", "round": "", "key": "c" * 24, "cached": False, "seconds": 1.0, "rows": None,
     "inputs": [[f"train/{'b' * 24}"]], "built": {}},
]  # fmt: skip


def metrics(
    folder: Path, dataset: str, split: str, names: Sequence[str], runs: Mapping[str, float] = RUNS
) -> Artifact[Any]:
    """What `evaluate` writes: better runs have more queries with a relevant document first, or at rank 3."""
    folder.mkdir(parents=True)
    values = {(run, metric): _values(part) for metric in names for run, part in runs.items()}
    by_query = [
        {"run": run, "query_id": f"q{number}", "metric": metric, "value": value}
        for (run, metric), of_queries in values.items()
        for number, value in enumerate(of_queries.tolist())
    ]
    rows = [
        {"run": run, "dataset": dataset, "split": split, "titles": True, "metric": metric,
         "value": float(of_queries.mean()), "queries": QUERIES, "spread": None}
        for (run, metric), of_queries in values.items()
    ]  # fmt: skip
    tests = []
    for metric in names:
        family = [{"run": run, "baseline": "bm25", "metric": metric,
                   "difference": float(values[run, metric].mean() - values["bm25", metric].mean()),
                   "p": paired_t_test(values[run, metric], values["bm25", metric]), "p_randomisation": 0.001}
                  for run in runs if run != "bm25"]  # fmt: skip
        adjusted = holm([float(str(row["p"])) for row in family])
        tests += [{**row, "p_holm": p} for row, p in zip(family, adjusted, strict=True)]
    for name, table in (("queries", by_query), ("rows", rows), ("comparisons", tests)):
        pq.write_table(pa.Table.from_pylist(table), folder / f"{name}.parquet")
    return Artifact("evaluate", "m" * 24, folder)


def _values(part: float) -> np.ndarray:
    results = np.zeros(QUERIES)
    results[: int(part * QUERIES)] = 1 / 3
    results[: int(part * QUERIES / 2)] = 1.0
    return results


def case(query: str) -> dict[str, Any]:
    """A query as `wins` tells it."""
    first = {"doc_id": "d2", "passage_id": "d2-0", "relevant": False, "title": "A title", "text": "another text"}
    return {
        "query_id": "q1", "query": query, "values": {"retriever_2": 1.0, "bm25": 0.0},
        "ranks": {"retriever_2": 1, "bm25": None}, "relevant": {"doc_id": "d1", "title": "", "text": "<b>the text</b>"},
        "first": {"retriever_2": {**first, "doc_id": "d1", "relevant": True}, "bm25": first},
    }  # fmt: skip


def stored(folder: Path, file: str, content: Mapping[str, Any], stage: str = "index") -> Artifact[Any]:
    """A folder with one JSON file."""
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(json.dumps(content))
    return Artifact(stage, "i" * 24, folder)


def build_report(folder: Path) -> Artifact[Any]:
    """The report's artifact in `folder`."""
    splits = [metrics(folder / "dev", "msmarco", "dev", ["MRR@10", "success@50", "success@1000", "recall@1000"]),
              metrics(folder / "dl19", "msmarco", "dl19", ["nDCG@10"])]  # fmt: skip
    others = [metrics(folder / f"other-{number}", name, "test", ["nDCG@10"], {"bm25": 0.4, "retriever_2": part})
              for number, (name, part) in enumerate((("SciFact", 0.5), ("CQADupStack/a", 0.2), ("CQADupStack/b", 0.4),
                                                    ("Quora", 0.8)))]  # fmt: skip
    for table, rows in (
        (Queries, [{"query_id": f"q{number}", "text": f"query {number}"} for number in range(QUERIES)]),
        (Overlap, [{"run_a": "bm25", "run_b": "retriever_2", "queries": 60, "overlap_10": 0.25, "overlap_100": 0.5,
                    "overlap_1000": 0.75, "rbo": 0.6}]),
    ):  # fmt: skip
        (folder / table.__name__).mkdir()
        write_rows(folder / table.__name__, table, rows)
    log = folder / "trained" / "logs" / "metrics.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text(
        "".join(json.dumps({"step": step, "mlm": 10 / step, "context": 5.0}) + "\n" for step in range(1, 50))
    )
    sample = {"passage": "a passage", "queries": [{"query": "a query", "kept": True}]}
    quality = stored(
        folder / "quality", "quality.json", {"distinct_share": 0.75, "words": {"3": 6}, "samples": [sample]}
    )
    wins = {"run": "retriever_2", "baseline": "bm25", "metric": "MRR@10", "wins": [case(f"win {n}") for n in range(3)],
            "losses": [case("a loss")]}  # fmt: skip
    report.body(
        folder / "out", splits, Artifact("queries", "q" * 24, folder / "Queries"), quality,
        [Artifact("overlap", "o" * 24, folder / "Overlap")], [Artifact("train", "t" * 24, folder / "trained")],
        [stored(folder / "bm25", "index.json", {"engine": "bm25", "bytes_per_passage": 91.25}),
         stored(folder / "vectors", "vectors.json", {"bytes_per_passage": {"dense": 3072.0}})],
        stored(folder / "wins", "analysis.json", wins, "wins"), [], others, settings=SETTINGS,
    )  # fmt: skip
    return Artifact("report", "r" * 24, folder / "out")


def published(folder: Path) -> Path:
    """The page as people get it."""
    return publish(folder / "page", build_report(folder), STAGES)
