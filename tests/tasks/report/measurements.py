"""Measurements of two runs on four queries, and the stages of a report."""

from typing import Any

import pyarrow as pa

from tasks.report.report import Reporting

SETTINGS = Reporting(
    recipe="tiny", title="A tiny <run> & more", paper="cot_mae", dataset="Leads of an encyclopedia, CC BY-SA",
    generator="a small T5", text="paper: cot_mae\nseed: 42\n", runs={"bm25": "Lucene", "dense": "A bi-encoder"},
    absent={"bm25_doc2query": "queries.for lacks retrieve"}, main="dense", baseline="bm25", metric="MRR@10",
    reported={"source": "Table 1", "MRR@10": 0.394, "bm25": {"MRR@10": 0.187}}, trained=["dense"],
    stored=["bm25", "dense"], views={"both": ["dense", "bm25"], "dense": []},
)  # fmt: skip


VALUES = {"bm25": [0.0, 0.5, 1.0, 0.25], "dense": [1.0, 0.5, 1.0, 0.5]}


def by_query(values: dict[str, list[float]] = VALUES) -> pa.Table:
    rows = [
        {"run": run, "query_id": f"q{number}", "metric": "MRR@10", "value": value}
        for run, results in values.items()
        for number, value in enumerate(results)
    ]
    return pa.Table.from_pylist(rows)


def comparison(**changes: Any) -> dict[str, Any]:
    row = {"run": "dense", "baseline": "bm25", "metric": "MRR@10", "difference": 0.3125}
    return {**row, "p": 0.01, "p_randomisation": 0.02, "p_holm": 0.03, **changes}


BUILT = {
    "seconds": 61.0, "cpu_seconds": 100.0, "peak_memory_mib": 1024, "device": "a processor",
    "machine": {"cores": 2, "system": "Linux", "python": "3.11"}, "versions": {"torch": "2.13.0"},
}  # fmt: skip


STAGES = [
    {
        "stage": "train",
        "round": "dense",
        "key": "c" * 24,
        "cached": False,
        "seconds": 61.0,
        "rows": None,
        "inputs": ["source/0"],
        "built": BUILT,
    },
    {
        "stage": "evaluate",
        "round": "",
        "key": "m" * 24,
        "cached": True,
        "seconds": 2.0,
        "rows": None,
        "inputs": [[f"train/{'c' * 24}"]],
        "built": {**BUILT, "peak_memory_mib": 2048},
    },
]
