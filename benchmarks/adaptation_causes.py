"""Measure why an adaptation gains nothing: the same training with real queries, and with negatives mined by itself.

    python -m benchmarks.adaptation_causes FOLDER squad medquad --documents 400 --seeds 1 2 3

The collection is a part of one that has real queries of two splits: half of its documents are relevant to queries of
`train`, half to queries of `dev`. A plan of `pretrieve adapt` is run twice, on pseudo-queries and on real queries of
the same documents, with the same number of queries; `without pre-training` also trains with mined negatives. All models
are measured on the real queries of `dev`. So the queries' part, and that of the negatives, is seen with everything else
equal. FOLDER and the variable $PRETRIEVE_COLLECTIONS are those of `benchmarks.adaptation`. Results are in
benchmarks/results/adaptation_causes.json; `python -m benchmarks.adaptation_causes_page` writes the table of
docs/adaptation.md.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.adaptation import keep_values, retriever
from benchmarks.adaptation_causes_page import PSEUDO, REAL, RESULTS, values_file
from flows.adapt.collections import HELDOUT, TRAIN, of_salient_sentences
from flows.adapt.recipes import SIZES, START, Size, Start, recipe_content, sizes
from flows.adapt.request import DEFAULT_START, Request
from flows.adapt.results import suite
from flows.adapt.run import start_of
from flows.chain.suites import evaluate_collection
from flows.finished_runs import finished_run
from flows.recipe.suite_schema import Collection
from flows.reproduce import reproduced
from storage.conversions.beir_files import per_mille, query_line, relevant, text_line, write_json_lines, write_qrels
from storage.datasets import beir
from storage.files import write_atomically
from storage.formats.records import QrelRow, QueryRow, TextRow
from storage.store.store import Store
from tasks.session import Execution, Session, session


def by_hash(names: set[str]) -> list[str]:
    """Return names in the order of their hashes."""
    return sorted(names, key=lambda name: (per_mille(name), name))


def sliced(source: Path, documents: int) -> tuple[list[TextRow], dict[str, list[QrelRow]]]:
    """Return a part of a collection and its judgements by split: as many documents relevant to queries of both."""
    judged = {split: list(beir.qrels(source, split)) for split in ("train", "dev")}
    test = by_hash({row["doc_id"] for row in judged["dev"]})[: documents // 2]
    train = by_hash({row["doc_id"] for row in judged["train"]} - {row["doc_id"] for row in judged["dev"]})
    chosen = {"train": set(train[: documents - len(test)]), "dev": set(test)}
    rows = [row for row in beir.texts(source, "corpus") if row["doc_id"] in chosen["train"] | chosen["dev"]]
    return rows, {split: [row for row in judged[split] if row["doc_id"] in chosen[split]] for split in judged}


def write_trainings(source: Path, folder: Path, documents: int) -> dict[str, int]:
    """Write the collections of both trainings below a folder; return the numbers of their queries.

    Both have the same number of train queries, chosen by hash, and the real queries of `dev` as `heldout`.
    """
    rows, judged = sliced(source, documents)
    real = {split: list(beir.queries(source, split)) for split in judged}
    trained = {row["doc_id"] for row in judged["train"]}
    pseudo = of_salient_sentences(rows, "en")
    invented: list[QueryRow] = []
    invented_qrels: list[QrelRow] = []
    for document in pseudo:
        doc_id = document.row["doc_id"]
        for number, text in enumerate(document.queries if doc_id in trained else ()):
            invented.append({"query_id": f"{doc_id}?{number}", "text": text})
            invented_qrels.append(relevant(f"{doc_id}?{number}", doc_id))
    number = min(len(invented), len({row["query_id"] for row in judged["train"]}))
    options = {
        PSEUDO: ([document.row for document in pseudo], invented, invented_qrels),
        REAL: (rows, real["train"], judged["train"]),
    }
    for name, (texts, queries, qrels) in options.items():
        chosen = set(by_hash({row["query_id"] for row in qrels})[:number])
        tested = {row["query_id"] for row in judged["dev"]}
        listed = [row for row in queries if row["query_id"] in chosen]
        listed += [row for row in real["dev"] if row["query_id"] in tested]
        for file in ("corpus", "documents"):
            write_json_lines(folder / name / f"{file}.jsonl.gz", map(text_line, texts))
        write_json_lines(folder / name / "queries.jsonl.gz", map(query_line, listed))
        write_qrels(folder / name / "qrels" / f"{TRAIN}.tsv", (row for row in qrels if row["query_id"] in chosen))
        write_qrels(folder / name / "qrels" / f"{HELDOUT}.tsv", judged["dev"])
    return {"train": number, "test": len({row["query_id"] for row in judged["dev"]})}


def trained(
    name: str, collection: Path, start: Start, size: Size, seed: int, folder: Path, store: Store
) -> dict[str, str]:
    """Run the plan on a collection; return the keys of its checkpoints by candidate."""
    file = folder / f"{name}.yaml"
    content = recipe_content(name, collection.resolve(), start, size, "en") | {"seed": seed}
    write_atomically(file, yaml.safe_dump(content, sort_keys=False))
    page = reproduced(str(file), store.root, [], print_line=print, with_server=False)
    if page is None:
        raise TypeError("a complete run always has a report")
    report = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))["inputs"]["report"]
    checkpoints = finished_run(report, store).checkpoints
    return {candidate: checkpoints[candidate].partition("/")[2] for candidate in size.candidates(None)}


def measured(identity: dict[str, Any], source: Path, folder: Path) -> dict[str, Any]:
    """Train on both kinds of queries and measure all models on the real queries; return the row of the results."""
    store, (size,) = Store.open_or_new(folder / "store"), sizes(identity["size"])
    documents, start_name, seed = identity["documents"], identity["start"], identity["seed"]
    title = f"causes-{identity['collection']}-{documents}"
    counts = write_trainings(source, folder / title, documents)
    start = start_of(Request(folder / title, folder / title, start_name))
    keys = {
        kind: trained(
            f"{title}-{kind.replace(' ', '_')}-{seed}", folder / title / kind, start, size, seed, folder, store
        )
        for kind in (PSEUDO, REAL)
    }
    test = Collection(name="real", reader="beir", path=str((folder / title / REAL).resolve()), eval_split=HELDOUT)
    settings = suite(start, [test], title)
    systems = {START: retriever(start_name, store)}
    systems |= {f"{kind}, {candidate}": retriever(key, store) for kind in keys for candidate, key in keys[kind].items()}
    with session(Session(store, Execution(workers=1, threads=1, device="auto"), print_line=print)):
        metrics = evaluate_collection(settings, test, systems)
    row = identity | counts | {"keys": {"evaluate": metrics.reference, **keys}}
    keep_values(metrics.path, values_file(row))
    return row


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, and add it to the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("collections", nargs="+")
    parser.add_argument("--documents", type=int, default=400)
    parser.add_argument("--start", default=DEFAULT_START)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument(
        "--size", choices=[size.name for size in SIZES if not size.pretraining_steps], default="one round"
    )
    chosen = parser.parse_args(arguments)
    for seed in chosen.seeds:
        for name in chosen.collections:
            rows: list[dict[str, Any]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
            identity = {"collection": name, "documents": chosen.documents, "start": chosen.start, "seed": seed,
                        "size": chosen.size}  # fmt: skip
            if any(identity.items() <= row.items() for row in rows):
                continue
            source = Path(os.environ["PRETRIEVE_COLLECTIONS"]) / name
            row = measured(identity, source, chosen.folder.resolve())
            rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
            write_atomically(RESULTS, json.dumps([*rows, row], indent=1) + "\n")


if __name__ == "__main__":
    main()
