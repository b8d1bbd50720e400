"""Measure adaptation on real queries that it never saw: start, candidates, BM25, and BM25 fused with a candidate.

    python -m benchmarks.adaptation FOLDER squad scifact --documents 400 --start bert_tiny_msmarco --seeds 1 2 3

A start is a model, or `random` or `masked_lm` (`benchmarks.adaptation_starts`). FOLDER keeps store and outputs; a run
that was interrupted resumes, and finished ones are not repeated. Collections are read from $PRETRIEVE_COLLECTIONS.
Results are in benchmarks/results/adaptation.json, a row for each collection, start, generator, teacher and seed, with
the keys that rebuild them, and in adaptation/ the values by query. `python -m benchmarks.adaptation_page` writes the
table of docs/adaptation.md.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import adaptation_starts
from benchmarks.adaptation_page import GIVEN, HYBRID, RESULTS, file_name, values_file
from flows.adapt.recipes import METRIC, SIZES, START
from flows.adapt.request import Request
from flows.adapt.results import encoding, suite
from flows.adapt.run import adapt, checkpoints_of, start_of
from flows.chain.rankers import Bm25System, IndexedBm25, IndexedRetriever, RetrieverSystem, System
from flows.chain.suites import evaluate_collection
from flows.evaluate.systems import by_name
from flows.recipe.suite_schema import Collection
from storage.artifact import Artifact
from storage.conversions.beir_files import per_mille, write_json_lines, write_qrels
from storage.datasets import beir
from storage.files import write_atomically
from storage.store.store import Store
from storage.tables import Passages, Queries, Run
from tasks.report.page.statistics import intervals
from tasks.retrieval.encode import Encoding, views_and_max_tokens
from tasks.retrieval.engines.exact import Exact
from tasks.retrieval.fuse import Fusion, fuse
from tasks.session import Execution, Session, session


@dataclass(frozen=True)
class Hybrid:
    """BM25 and a retriever, fused by the sum of reciprocal ranks."""

    bm25: Bm25System
    retriever: RetrieverSystem

    def on(self, passages: Artifact[Passages], limits: Encoding, exact: Exact) -> HybridRanker:
        """Return the ranker of these passages."""
        return HybridRanker(self.bm25.on(passages, limits, exact), self.retriever.on(passages, limits, exact))


@dataclass(frozen=True)
class HybridRanker:
    """The fusion of two rankers."""

    first: IndexedBm25
    second: IndexedRetriever

    def rank(self, queries: Artifact[Queries], documents: int, view: str | None = None) -> Artifact[Run]:
        """Return the fused ranking."""
        runs = [ranker.rank(queries, documents) for ranker in (self.first, self.second)]
        return fuse(runs=runs, settings=Fusion(kind="sum_rr", depth=documents))


def sliced(source: Path, folder: Path, documents: int) -> None:
    """Write a part of a collection, chosen by the hash of ids: at most half are documents of real queries.

    The queries are those whose relevant documents are in the part.
    """
    rows, judgements = list(beir.texts(source, "corpus")), list(beir.qrels(source, "dev"))
    by_hash = sorted((row["doc_id"] for row in rows), key=lambda name: (per_mille(name), name))
    relevant = {row["doc_id"] for row in judgements}
    chosen = [name for name in by_hash if name in relevant][: documents // 2]
    taken = set(chosen)
    names = set([*chosen, *(name for name in by_hash if name not in taken)][:documents])
    qrels = [row for row in judgements if row["doc_id"] in names]
    judged = {row["query_id"] for row in qrels}
    write_json_lines(folder / "corpus.jsonl.gz", ({"_id": r["doc_id"], **r} for r in rows if r["doc_id"] in names))
    queries = (row for row in beir.queries(source, "dev") if row["query_id"] in judged)
    write_json_lines(folder / "queries.jsonl.gz", ({"_id": row["query_id"], "text": row["text"]} for row in queries))
    write_qrels(folder / "qrels" / "dev.tsv", qrels)


def measured(request: Request, collection: Path, store: Store) -> tuple[dict[str, Any], Path]:
    """Adapt, and measure start, candidates, BM25 and the hybrid on the real queries; return a row, and the metrics."""
    done = adapt(request, store.root, print, with_server=False)
    report = json.loads((request.out / "report.json").read_text())
    size = next(size for size in SIZES if size.name == report["size"])
    checkpoints = checkpoints_of(request, store)
    start, judged = start_of(request), Collection(name="real", reader="beir", path=str(collection), eval_split="dev")
    settings = suite(start, [judged], request.name)
    retrievers = {START: retriever(request.start, store)}
    retrievers |= {name: retriever(checkpoints[name], store) for name in size.candidates(request.teacher)}
    returned, bm25 = done.decision.winner, Bm25System(settings.bm25)
    systems: dict[str, System] = {**retrievers, "bm25": bm25, HYBRID: Hybrid(bm25, retrievers[returned])}
    with session(Session(store, Execution(workers=1, threads=1, device="auto"), print_line=print)):
        metrics = evaluate_collection(settings, judged, systems)
    row = {
        "collection": collection.name.rpartition("-")[0], "documents": report["survey"]["documents"],
        "start": request.start, "seed": request.seed, "size": size.name, "train": report["counts"]["train"],
        "heldout": report["counts"]["heldout"], "cpu_seconds": _cpu_seconds(request, store),
        "winner": returned, "lengths": encoding(start).limits,
        "systems": _values(metrics.path, size.candidates(request.teacher), done.out),
        "keys": {"run": report["run"], "real": metrics.reference},
    }  # fmt: skip
    return row, metrics.path


def _cpu_seconds(request: Request, store: Store) -> int:
    """Return the CPU time of all stages that the training's report depends on."""
    report = json.loads((store.root / "reports" / request.name / "report.json").read_text())
    return round(sum(float(kind["cpu_seconds"]) for kind in report["costs"]["kinds"]))


def retriever(name: str, store: Store) -> RetrieverSystem:
    """Return the retriever of a folder, a hub name or a key of the store."""
    _, _, model = by_name(name, store)
    views, most = views_and_max_tokens(model.path)
    return RetrieverSystem(model, views, max_tokens=most)


def _values(folder: Path, candidates: list[str], out: Path) -> dict[str, Any]:
    """Return by system the value on real queries, its interval, and the tests on real and on pseudo-queries."""
    rows = [row for row in pq.read_table(folder / "rows.parquet").to_pylist() if row["metric"] == METRIC]
    spans = {row["run"]: row for row in intervals(pq.read_table(folder / "queries.parquet")) if row["metric"] == METRIC}
    tests = {row["run"]: row for row in pq.read_table(folder / "comparisons.parquet").to_pylist()
             if row["metric"] == METRIC}  # fmt: skip
    pseudo = {row["run"]: row for row in json.loads((out / "report.json").read_text())["tests"]}
    values = {}
    for row in rows:
        run = row["run"]
        values[run] = {
            "value": row["value"],
            "queries": row["queries"],
            "low": spans[run]["low"],
            "high": spans[run]["high"],
        }
        if run in tests:
            values[run] |= {"difference": tests[run]["difference"], "p_holm": tests[run]["p_holm"]}
        if run in pseudo and run in candidates:
            values[run] |= {"pseudo_difference": pseudo[run]["difference"], "pseudo_p_holm": pseudo[run]["p_holm"]}
    return values


def keep_values(metrics: Path, file: Path) -> None:
    """Write the values of `METRIC` by query, a column for each system."""
    rows = pq.read_table(metrics / "queries.parquet").to_pandas()
    by_system = rows[rows["metric"] == METRIC].pivot(index="query_id", columns="run", values="value")
    file.parent.mkdir(exist_ok=True)
    table = pa.Table.from_pandas(by_system.astype("float32").reset_index(), preserve_index=False)
    pq.write_table(table.replace_schema_metadata(None), file, compression="zstd")


def main() -> None:
    """Run what is missing, and add it to the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("collections", nargs="+")
    parser.add_argument("--documents", type=int, default=400)
    parser.add_argument("--start", default=Request.start)
    parser.add_argument("--generator", help="a query generator; without one, salient sentences")
    parser.add_argument("--teacher", help="a cross-encoder, whose scores are distilled")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--size", choices=[size.name for size in SIZES], default="medium")
    arguments = parser.parse_args()
    for seed in arguments.seeds:
        for name in arguments.collections:
            run(arguments, name, seed)


def run(arguments: argparse.Namespace, name: str, seed: int) -> None:
    """Run one collection and seed, unless its row is there."""
    rows: list[dict[str, Any]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    folder, title = arguments.folder.resolve(), f"{name}-{arguments.documents}"
    identity = identity_of(arguments, name, seed)
    if any(identity.items() <= (dict.fromkeys(GIVEN) | row).items() for row in rows):
        return
    collection = folder / "collections" / title
    sliced(Path(os.environ["PRETRIEVE_COLLECTIONS"]) / name, collection, arguments.documents)
    store = Store.open_or_new(folder / "store")
    start = adaptation_starts.start(arguments.start, seed, folder, store)
    request = Request(
        collection, folder / file_name(identity), start=start, seed=seed, size=arguments.size,
        generator=arguments.generator, teacher=arguments.teacher,
    )  # fmt: skip
    row, metrics = measured(request, collection, store)
    row |= identity
    keep_values(metrics, values_file(row))
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    rows = [other for other in rows if file_name(other) != file_name(row)]  # a start of equal name
    write_atomically(RESULTS, json.dumps([*rows, row], indent=1) + "\n")


def identity_of(arguments: argparse.Namespace, collection: str, seed: int) -> dict[str, Any]:
    """Return what tells the row of a run from all others."""
    return {
        "collection": collection, "start": arguments.start, "seed": seed, "requested_size": arguments.size,
        "requested": arguments.documents, "generator": arguments.generator, "teacher": arguments.teacher,
    }  # fmt: skip


if __name__ == "__main__":
    main()
