"""The model card of an exported checkpoint: what it is, how to load it, its recipe, metrics, settings and lineage."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow.parquet as pq

from flows.lineage_tree import lineage_tree
from flows.terminal import Terminal
from storage.artifact import Manifest
from storage.store.manifest_checks import LOGS, MANIFEST
from storage.store.store import Store
from tasks.pretraining.initialise import additional_files
from tasks.retrieval.sentence_transformer_export import Exported

GENERATORS = ("train_generator", "finetune_generator")
SCORES = {
    "SentenceTransformer": "The similarity is the inner product, or the cosine where vectors are normalised.",
    "SparseEncoder": "The similarity is the inner product of the weights of the vocabulary.",
    "MultiVectorEncoder": "The similarity is MaxSim.",
}
IN_PYLATE = "`pylate.models.ColBERT(FOLDER)` has the same scores."


@dataclass(frozen=True)
class Purpose:
    """What a checkpoint was made for, by the command that exports it."""

    title: str
    text: str
    """Paragraphs of Markdown."""


def model_card(manifest: Manifest, store: Store, exported: Exported | None, purpose: Purpose | None = None) -> str:
    """Return Markdown for an exported folder; `exported` is None for a checkpoint that is no retriever."""
    title, text = (
        (f"{manifest.stage} {manifest.key}", "") if purpose is None else (purpose.title, f"\n{purpose.text}\n")
    )
    console = Terminal(width=120, color_system=None)
    with console.capture() as tree:
        console.print(lineage_tree(manifest, store))
    versions = ", ".join(f"{name} {version}" for name, version in manifest.built["versions"].items())
    library = "sentence-transformers" if exported and exported.name else "transformers"
    return f"""---
library_name: {library}
tags: [retrieval, pretrieve]
---
# {title}
{text}
Built by the `{manifest.stage}` stage of pretrieve {manifest.built["at"]} with {versions}.
{_opens(manifest, exported)}
{" ".join(additional_files(manifest.files))}
{_results(manifest, store)}
## Settings

```json
{json.dumps(dict(manifest.settings), indent=1, ensure_ascii=False)}
```

## Lineage

```
{tree.get()}```

`{MANIFEST}` and `{LOGS}/` of the artifact (hash {manifest.hash}) stay in the store it came from.
"""


def _opens(manifest: Manifest, exported: Exported | None) -> str:
    if manifest.stage in GENERATORS:
        return "Load it with `AutoModelForSeq2SeqLM.from_pretrained(FOLDER)`; recipes name it in `queries.model`."
    text = "Load it with `AutoModel.from_pretrained(FOLDER)`"
    if exported and exported.name:
        scores = " ".join([SCORES[exported.name], *([IN_PYLATE] if exported.in_pylate else [])])
        return f"""{text}, or as a retriever with sentence-transformers 6 or later,
which then ranks as `pretrieve search` does:

```python
from sentence_transformers import {exported.name}

model = {exported.name}(FOLDER)
scores = model.similarity(model.encode_query(queries), model.encode_document(documents))
```

{scores} A document is read as its title, a blank and its text."""
    if exported is None:
        return f"{text}."
    return f"""{text}. `pretrieve search` and `pretrieve evaluate` compute its scores,
sentence-transformers does not: {exported.reason}."""


def _results(manifest: Manifest, store: Store) -> str:
    """Return the recipes and the metrics of the checkpoint in the store; empty where it was never evaluated."""
    manifests = {other.reference: other for _, other in store.manifests() if other}
    checkpoint = manifest.reference
    measured = [other for other in manifests.values() if other.schema == "Metrics"]
    rows = [row for metrics in measured for row in _rows(metrics, checkpoint, manifests, store)]
    table = "\n".join(dict.fromkeys(rows))
    return f"""
## Results

| recipe | collection | split | run | metric | value |
|---|---|---|---|---|---|
{table}
""" if rows else ""  # fmt: skip


def _rows(metrics: Manifest, checkpoint: str, manifests: Mapping[str, Manifest], store: Store) -> Iterator[str]:
    """Yield the rows of an evaluation's table that are about the checkpoint's runs."""
    names = dict(zip(metrics.inputs["runs"] or [], metrics.settings["names"], strict=True))
    wanted = {name for run, name in names.items() if _is_of(checkpoint, run, manifests)}
    reference = metrics.reference
    reports = [other for other in manifests.values() if other.schema == "Report" and reference in other.references()]
    recipes = ", ".join(sorted({report.settings["recipe"] for report in reports})) or "–"
    for row in pq.read_table(store.folder(metrics.stage, metrics.key) / "rows.parquet").to_pylist() if wanted else []:
        if row["run"] in wanted:
            named = " | ".join(row[name] for name in ("dataset", "split", "run", "metric"))
            yield f"| {recipes} | {named} | {row['value']:.4f} |"


def _is_of(checkpoint: str, run: str, manifests: Mapping[str, Manifest]) -> bool:
    """Return whether a run is ranked by the checkpoint alone: searched, re-ranked, or fused from such runs."""
    if (manifest := manifests.get(run)) is None:
        return False
    if members := manifest.inputs.get("runs"):
        return all(_is_of(checkpoint, member, manifests) for member in members)
    return checkpoint in (manifest.inputs.get("checkpoint"), manifest.inputs.get("teacher"))
