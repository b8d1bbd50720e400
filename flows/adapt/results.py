"""The results of an adaptation in its folder: the model, the index, the report."""

from __future__ import annotations

import json
import shutil
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flows.adapt.collections import HELDOUT
from flows.adapt.decision import Decision
from flows.adapt.recipes import METRIC, PASSAGE_TOKENS, QUERY_TOKENS, SPLIT_TOKENS, START, Start, threads
from flows.adapt.request import Request
from flows.adapt.survey import Survey, text_hash
from flows.adapted_folder import ADAPTED, MODEL, read_json
from flows.chain import collection
from flows.chain.rankers import Bm25System, RetrieverSystem
from flows.evaluate.systems import BM25
from flows.export.export import export_checkpoint, new_folder
from flows.export.model_card import Purpose
from flows.recipe.suite_schema import Collection, Suite
from flows.store.needs import keep
from storage.errors import UserError
from storage.files import write_atomically
from storage.store import sources
from storage.store.run_notes import noted
from storage.store.store import Store
from tasks.corpus.split_corpus import Splitting
from tasks.evaluation.significance import clustered_t_test, holm
from tasks.job import needed_references
from tasks.report.page.adaptation_page import page as report_page
from tasks.report.page.statistics import with_intervals
from tasks.retrieval.encode import Encoding
from tasks.retrieval.engines.bm25 import Bm25
from tasks.retrieval.engines.exact import Exact
from tasks.session import Session, session

CHOSEN = "chosen.json"
BM25_SETTINGS = Bm25(engine="bm25", k1=0.9, b=0.4)


def encoding(start: Start) -> Encoding:
    """Return the lengths at which texts are cut."""
    return Encoding(query_max_tokens=start.limit(QUERY_TOKENS), passage_max_tokens=start.limit(PASSAGE_TOKENS))


def splitting(start: Start, language: str) -> Splitting:
    """Return how documents are split."""
    return Splitting(max_tokens=start.limit(SPLIT_TOKENS), titles=True, language=language)


def suite(start: Start, collections: list[Collection], name: str, language: str = "en") -> Suite:
    """Return the suite that decides between the start and the candidates."""
    split = splitting(start, language)
    return Suite.model_validate({
        "title": f"Decision of {name}", "description": "held-out pseudo-queries, and judged queries if given",
        "seed": 42, "tokenizer": start.weights, "split": split.model_dump(),
        "encode": encoding(start).model_dump(), "bm25": BM25_SETTINGS.model_dump(),
        "index": {"engine": "exact"}, "search": {"documents": 100}, "metric": METRIC,
        "evaluate": {"metrics": [METRIC, "MRR@10", "recall@100"], "resamples": 10_000},
        "collections": [collection.model_dump() for collection in collections], "execution": {"threads": threads()},
    }, context={"seed": 42})  # fmt: skip


def write_model(request: Request, decision: Decision, checkpoints: Mapping[str, str], store: Store) -> Path:
    """Write the folder of the model that was chosen, which sentence-transformers opens; return it."""
    out, start = request.out, sources.weights(request.start)
    folder, chosen = out / MODEL, out / CHOSEN
    key = checkpoints[decision.winner] if decision.gained else start.key  # of the files' content
    purpose = _purpose(request, decision)
    about = {"model": key, "winner": decision.winner, "about": [purpose.title, purpose.text]}
    if folder.is_dir() and chosen.is_file():
        written, files = read_json(chosen), _files(folder)
        if written == about | {"files": files}:
            return folder
        if written.get("files", files) != files:  # the user's work may be in it
            folder.rename(folder.with_name(f"{MODEL}.changed-{time.time_ns()}"))
    chosen.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    if decision.gained:
        export_checkpoint(key, folder, store.root, purpose)
    else:
        with new_folder(folder) as copied:
            shutil.copytree(start.path, copied, dirs_exist_ok=True)
    write_atomically(chosen, json.dumps(about | {"files": _files(folder)}) + "\n")
    return folder


def _files(folder: Path) -> str | None:
    """Return the key of the content of a model's files; None where they are no model any more."""
    try:
        return sources.weights(str(folder.resolve())).key
    except UserError:
        return None


def _purpose(request: Request, decision: Decision) -> Purpose:
    """Return the head of the model card: what was adapted to what, and what was measured."""
    facts = [f"{decision.verdict} {decision.means}."] + [decision.advice] * bool(decision.advice)
    return Purpose(
        f"A retriever adapted to {request.collection.resolve().name}",
        f"Start: `{request.start}`. Chosen among the start and the candidates of `pretrieve adapt`.\n\n"
        + "\n\n".join(facts),
    )


def write_index(
    out: Path, model: Path, original: Collection, start: Start, survey: Survey, store: Store
) -> dict[str, Any]:
    """Index the original documents with the chosen model, the start and BM25; write and return the references.

    `search` reads the chosen model's, and `browse` compares all. Garbage collection keeps the indexes.
    """
    chosen = sources.weights(str(model.resolve()))
    with session(Session(store, planning=True)) as plan:
        indexed(original, chosen, start, survey.language)
    needed = needed_references(plan.jobs.values())
    with noted(store, "adapt", out.name, needed) as note, session(Session(store, note=note)):
        references = indexed(original, chosen, start, survey.language)
        keep(store, Path("adapt") / text_hash(str(out.resolve())), needed)
        note.finish()
    references["store"] = str(store.root)
    write_atomically(out / ADAPTED, json.dumps(references, indent=1) + "\n")
    return references


def indexed(original: Collection, chosen: Any, start: Start, language: str) -> dict[str, Any]:
    """Index the original documents with the chosen model, the start and BM25; return the references."""
    tokenizer, settings = sources.tokenizer(start.weights), splitting(start, language)
    passages = collection.split(original, "corpus", tokenizer, settings)

    def references(model: Any) -> dict[str, str]:
        retriever = RetrieverSystem(model, ("dense",), max_tokens=start.max_tokens)
        dense = retriever.on(passages, encoding(start), Exact(engine="exact"))
        return {"vectors": dense.vectors.reference, "index": dense.index.reference}

    return {
        "passages": passages.reference, **references(chosen), "start": references(sources.weights(start.weights)),
        "bm25": Bm25System(BM25_SETTINGS).on(passages, encoding(start), Exact(engine="exact")).index.reference,
    }  # fmt: skip


def deciding_tests(content: Mapping[str, Any], store: Store) -> list[dict[str, Any]]:
    """Return the comparisons of an evaluation, with p-values for the decision.

    On pseudo-queries the test takes documents as the sample, since those of one document are not independent; a query's
    id begins with that of its document. Holm's correction is over the candidates: that BM25 differs decides nothing.
    """
    rows = [dict(row) for row in content["comparisons"]]
    own = [row for row in rows if (row["dataset"], row["metric"]) == (HELDOUT, METRIC)]
    folder = store.folder("evaluate", content["inputs"][HELDOUT])
    table = pq.read_table(folder / "queries.parquet", filters=[("metric", "=", METRIC)]).sort_by("query_id")
    parts = {run: table.filter(pc.equal(table["run"], run)) for run in pc.unique(table["run"]).to_pylist()}
    documents = [query_id.rpartition("?")[0] for query_id in parts[START]["query_id"].to_pylist()]
    values = {run: np.asarray(part["value"].to_numpy(), np.float64) for run, part in parts.items()}
    for row in own:
        row["p"] = clustered_t_test(values[row["run"]], values[row["baseline"]], documents)
    families: dict[tuple[str, str, bool], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        families[row["dataset"], row["metric"], row["run"] == BM25].append(row)
    for family in families.values():
        for row, corrected in zip(family, holm([row["p"] for row in family]), strict=True):
            row["p_holm"] = corrected
    return rows


def write_report(
    out: Path,
    decision: Decision,
    content: Mapping[str, Any],
    facts: Mapping[str, Any],
    pages: Mapping[str, Path],
) -> Path:
    """Write report.html and report.json, and copies of the reports of training and evaluation; return the first."""
    for name, report in pages.items():
        write_atomically(out / f"{name}.html", report.read_bytes())
    rows = with_intervals((row for row in content["rows"] if row["metric"] == METRIC), content["intervals"])
    value = dict(facts) | {
        "verdict": decision.verdict, "winner": decision.winner, "gained": decision.gained, "start_name": START,
        "advice": decision.advice,
        "rejected": decision.rejected, "rows": rows,
        "tests": [row for row in content["comparisons"] if row["metric"] == METRIC],
    }  # fmt: skip
    write_atomically(out / "report.json", json.dumps(value, indent=1, ensure_ascii=False) + "\n")
    write_atomically(out / "report.html", report_page(value))
    return out / "report.html"
