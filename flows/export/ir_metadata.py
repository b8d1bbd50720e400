"""The header of a run file after ir_metadata (https://www.ir-metadata.org, schema 0.1).

YAML in comments before the run, by PRIMAD (Breuer, Keller and Schaer 2022): platform, research goal, implementation,
method, actor, data. Only facts of the manifests are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

import yaml

from flows.finished_runs import FinishedRun, Measurement
from storage.artifact import Manifest
from storage.store.lookup import lineage, must_exist
from tasks.finetuning.label_positives import label_passages

START, END = "# ir_metadata.start", "# ir_metadata.end"
TREC_NAMES = {
    "MRR": "recip_rank_{}", "nDCG": "ndcg_cut_{}", "recall": "recall_{}", "success": "success_{}",
    "answer": "answer_{}",
}  # fmt: skip
TOOLKITS = ("pyserini", "faiss-cpu", "faiss-gpu-cu12", "pyseismic-lsr")


def header(run: FinishedRun, measured: Measurement, row: str, actor: str | None) -> Iterator[str]:
    """Yield the lines of the header, with line ends."""
    text = yaml.safe_dump(metadata(run, measured, row, actor), sort_keys=False, allow_unicode=True, width=1000)
    yield f"{START}\n"
    for line in text.splitlines():
        yield f"# {line}\n"
    yield f"{END}\n"


def metadata(run: FinishedRun, measured: Measurement, row: str, actor: str | None) -> dict[str, Any]:
    """Return the metadata of one row of a run."""
    reference = dict(zip(measured.manifest.settings["names"], measured.manifest.inputs["runs"], strict=True))[row]
    manifest = must_exist(reference, run.store)
    name = {"name": actor} if actor else {}
    return {
        "schema-version": 0.1,
        "run-version": 1.0,
        "tag": row,
        "platform": platform(manifest.built),
        "research goal": {"evaluation": evaluation(measured, run.report.settings["baseline"])},
        "implementation": {
            "executable": {"cmd": f"pretrieve reproduce {run.report.settings['recipe']}", "report": run.report.key},
            "source": {"lang": ["python"]},
        },
        "method": {
            "automatic": True,
            "score ties": "document id, descending",
            "retrieval": [retrieval(run, measured, row, manifest)],
        },
        "actor": {**name, "role": "reproducer" if run.recipe["reported"] else "experimenter"},
        "data": data(run, measured, reference),
    }


def platform(built: Mapping[str, Any]) -> dict[str, Any]:
    """Return the machine and the packages that built the run."""
    machine = built["machine"]
    names = [f"{name}=={number}" for name, number in built["versions"].items()]
    return {
        "hardware": {"cpu": {"number of cores": machine["cores"]}, "device": built["device"]},
        "operating system": {"kernel": machine["system"]},
        "software": {
            "libraries": {"python": [f"python=={machine['python']}", f"pretrieve=={version('pretrieve')}", *names]},
            "retrieval toolkit": [name for name in names if name.partition("==")[0] in TOOLKITS],
        },
    }


def evaluation(measured: Measurement, baseline: str) -> dict[str, Any]:
    """Return the measures, by trec_eval's names, and the tests."""
    metrics = (metric.partition("@") for metric in measured.manifest.settings["metrics"])
    return {
        "reported measures": [TREC_NAMES[name].format(cutoff) for name, _, cutoff in metrics],
        "baseline": [baseline],
        "significance test": [
            {"name": "paired t-test, two-sided", "correction method": "Holm"},
            {"name": "paired randomisation test, two-sided"},
        ],
    }


def retrieval(run: FinishedRun, measured: Measurement, row: str, manifest: Manifest) -> dict[str, Any]:
    """Return how the run was retrieved, with the settings of its index."""
    names = {reference: name for name, reference in zip(
        measured.manifest.settings["names"], measured.manifest.inputs["runs"], strict=True)}  # fmt: skip
    inputs = manifest.references()
    earlier = [names[reference] for reference in inputs if reference in names]
    searched = [must_exist(reference, run.store) for reference in inputs if reference.startswith(("index/", "train/"))]
    method = {
        "name": row, "method": run.report.settings["runs"].get(row, manifest.stage),
        "params": {manifest.stage: dict(manifest.settings)} | {index.stage: dict(index.settings) for index in searched},
        "artifact": manifest.reference, "hash": manifest.hash,
    }  # fmt: skip
    if earlier:
        method["interpolates" if manifest.stage == "fuse" else "reranks"] = earlier
    return method


def data(run: FinishedRun, measured: Measurement, reference: str) -> dict[str, Any]:
    """Return the test collection, and the training data where the ranking's lineage has learned from judgements."""
    own = run.report.settings["dataset"]
    name = own if run.is_own(measured) else measured.dataset
    collection: dict[str, Any] = {"name": name, "split": measured.split}
    for parameter in ("qrels", "answers"):
        if (given := measured.input(parameter)) is not None:
            collection[parameter] = f"{given.reference}, {given.rows} rows, hash {given.hash}"
    stages = {earlier.partition("/")[0] for earlier in lineage(reference, run.store)}
    trained = run.recipe["dataset"]["train_split"] if label_passages.name in stages else None
    learned = [{"name": own, "split": trained}] if trained else []
    return {"test collection": collection, "training data": learned}
