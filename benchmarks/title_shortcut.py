"""Measure how titles in pre-training spans change the losses between a span and its context.

Run `python -m benchmarks.title_shortcut`.

coCondenser contrasts two random spans of a document, CoT-MAE decodes one from the vector of the other. If every span
begins with its document's title, both begin alike. This trains both on SciFact's abstracts with titles in no span, in
the first span of a document, and in every span: the same steps, seeds and backbone. It reports the mean loss of the
last steps, and the loss on held-out documents without titles, which shows what the vectors say beyond the title. For
CoT-MAE it also reports by how much the loss over the same masked contexts rises with the vector of another span: what
the decoder reads from the vector. It counts the spans that are longer than what is read, for titles within and in
addition to the limit.

Needs the collection `scifact` in $PRETRIEVE_COLLECTIONS and `data/bert_tiny_msmarco`. 20 minutes of CPU time for
CoT-MAE, a quarter of it for coCondenser; a repeated run with the same --store continues. `--papers` replaces only the
rows of some papers. Writes `benchmarks/results/title_shortcut.json`; prints Markdown tables.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from flows.chain.backbone import tokenizer
from flows.chain.pretraining import contexts, pretrained, pretraining_spans
from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from models.pretraining import Initialisation
from models.retrievers import towers
from storage.artifact import Artifact
from storage.conversions.beir_files import text_line
from storage.datasets import beir
from storage.files import write_atomically
from storage.rows import num_rows, read_rows
from storage.store import sources
from storage.store.store import Store
from storage.tables import Checkpoint, Pairs, Passages, passage_text
from tasks.corpus.sentence_packing import count_tokens
from tasks.corpus.split_corpus import load_tokenizer
from tasks.pretraining.heads import continue_heads, heads_of
from tasks.pretraining.initialise import initialise
from tasks.pretraining.pretrain import PretrainingBatches
from tasks.session import Execution, Session, session

RESULT = Path(__file__).parent / "results" / "title_shortcut.json"
PAPERS = {"co_condenser": "contrast", "cot_mae": "context"}
"""The loss between a span and its context, by paper."""
STEPS = {"co_condenser": 200, "cot_mae": 400}
TITLES = ("never", "once", "every")
MAX_TOKENS = 62  # of a span, without [CLS] and [SEP]
BATCH, LAST, HELD_OUT_BATCHES, HELD_OUT = 16, 50, 20, 5  # every fifth document is held out
COT_MAE = [  # the decoder that the paper prints, with the released mask rate
    "pretrain.objective.decoder=ae", "pretrain.objective.window=null", "pretrain.objective.context_mask_rate=0.45",
    f"pretrain.objective.context_max_tokens={MAX_TOKENS + 2}",
]  # fmt: skip
Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, measure, write the result and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], help="seeds of the pre-training (default: 1 2)")
    parser.add_argument("--papers", nargs="+", choices=PAPERS, default=list(PAPERS), help="default: both")
    parser.add_argument("--store", type=Path, help="keep the trainings in this folder, and take what it has")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.store or Path(temporary)
        write_collections(folder)
        execution = Execution(threads=1, workers=1, device="cpu")
        with session(Session(Store.open_or_new(folder / "store"), execution, print_line=print)):
            rows = [
                measured(folder, paper, titles, seed)
                for seed in given.seeds
                for paper in given.papers
                for titles in TITLES
            ]
            kept = [] if set(given.papers) == set(PAPERS) else json.loads(RESULT.read_text())["runs"]
            rows = [row for row in kept if row["paper"] not in given.papers] + rows
            result = {"setting": setting(), "spans": list(lengths(folder)), "runs": rows}
    write_atomically(RESULT, json.dumps(result, indent=1) + "\n")
    print("\n".join(tables(result)))


def setting() -> Row:
    """Return what the figures depend on."""
    return {
        "collection": "scifact", "held_out": f"1 of {HELD_OUT} documents", "max_tokens": MAX_TOKENS, "steps": STEPS,
        "batch": BATCH, "last_steps": LAST, "held_out_batches": HELD_OUT_BATCHES, "torch": torch.__version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, 1 thread",
    }  # fmt: skip


def write_collections(folder: Path) -> None:
    """Write the documents that are trained on and those that are held out as two collections below a folder."""
    parts: dict[str, list[str]] = {"train": [], "held_out": []}
    for number, row in enumerate(beir.texts(sources.locate("scifact", "beir"), "corpus")):
        parts["train" if number % HELD_OUT else "held_out"].append(json.dumps(text_line(row)) + "\n")
    for name, lines in parts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        write_atomically(folder / name / "corpus.jsonl", "".join(lines))


def recipe_of(folder: Path, paper: str, titles: str | None, seed: int = 1) -> Recipe[Any]:
    """Return the study's small recipe of a paper with random spans of the same document as contexts.

    `titles` is split.pretrain_titles; None puts the title into every span in addition to the limit.
    """
    recipe, _ = load_recipe(f"study/{paper}_passage", [
        f"dataset.path={folder.resolve()}", "corpora.pretrain=corpus", f"split.max_tokens={MAX_TOKENS}",
        "split.titles=true", f"split.pretrain_titles={titles or 'null'}", "contexts.passages=[random]",
        "contexts.alone=leave_out", f"pretrain.objective.max_tokens={MAX_TOKENS + 2}", "backbone.vocabulary=null",
        f"pretrain.steps={STEPS[paper]}", f"pretrain.batch={BATCH}", f"seed={seed}",
        *(COT_MAE if paper == "cot_mae" else []),
    ])  # fmt: skip
    return recipe


def measured(folder: Path, paper: str, titles: str, seed: int) -> Row:
    """Return the losses of one pre-training at its end, and on held-out spans without titles."""
    recipe = recipe_of(folder / "train", paper, titles, seed)
    spans = pretraining_spans(recipe)
    pairs = contexts(recipe, spans, None)
    backbone = initialise(sources.weights(recipe.backbone.weights), settings=recipe.backbone)
    checkpoint = pretrained(recipe, backbone, spans, pairs)
    assert checkpoint is not None
    assert pairs is not None
    untitled = held_out_pairs(folder, paper, "never")
    name = PAPERS[paper]
    log = [json.loads(line) for line in (checkpoint.path / "logs" / "metrics.jsonl").read_text().splitlines()]
    return {
        "paper": paper, "titles": titles, "seed": seed, "pairs": num_rows(pairs.path), "loss": name,
        "first_step": log[0][name], "last_steps": mean(row[name] for row in log[-LAST:]),
        "held_out_without_titles": held_out_loss(recipe, checkpoint, untitled),
    } | (read_from_vector(folder, recipe, checkpoint, titles) if paper == "cot_mae" else {})  # fmt: skip


def held_out_pairs(folder: Path, paper: str, titles: str) -> Artifact[Pairs]:
    """Return the spans of the documents that are not trained on, with their contexts."""
    recipe = recipe_of(folder / "held_out", paper, titles)
    pairs = contexts(recipe, pretraining_spans(recipe), None)
    assert pairs is not None
    return pairs


def read_from_vector(folder: Path, recipe: Recipe[Any], checkpoint: Artifact[Checkpoint], titles: str) -> Row:
    """Return by how much the loss over held-out contexts rises where each has the vector of another span."""
    rises = {}
    for name, held_out in (("as_trained", titles), ("without_titles", "never")):
        pairs = held_out_pairs(folder, "cot_mae", held_out)
        own, other = (held_out_loss(recipe, checkpoint, pairs, shift=shift) for shift in (0, 1))
        rises[f"read_from_vector_{name}"] = other - own
    return rises


def held_out_loss(
    recipe: Recipe[Any], checkpoint: Artifact[Checkpoint], pairs: Artifact[Pairs], shift: int = 0
) -> float:
    """Return the mean of a trained objective's loss between span and context, on the same batches for every run.

    With `shift` the contexts stay, and each is paired with the span `shift` rows before its own.
    """
    assert recipe.pretrain is not None
    settings = recipe.pretrain.model_copy(update={"seed": 0})
    paper, encoder = import_module(f"models.papers.{settings.paper}"), towers.load(checkpoint.path)
    objective = paper.Pretraining(Initialisation(encoder), settings.objective)
    continue_heads(heads_of(objective, encoder), checkpoint.path)
    objective.eval()
    losses: list[float] = []
    with tempfile.TemporaryDirectory() as out, torch.no_grad():
        data = PretrainingBatches.read(Path(out), pairs, None, checkpoint, settings)
        for step in range(HELD_OUT_BATCHES):
            batch: Any = data.rows(step, 0, data.num_rows)
            if shift:
                text = batch.text
                rolled = replace(text, ids=text.ids.roll(shift, 0), mask=text.mask.roll(shift, 0))
                batch = replace(batch, text=rolled)
            vectors, local = objective.encode(batch)
            losses.append((local | objective.compare(vectors, batch))[PAPERS[settings.paper]].item())
    return mean(losses)


def lengths(folder: Path) -> Iterator[Row]:
    """Yield, for each position of titles, the number of spans, and how many are longer than what is read."""
    for titles in (*TITLES, None):
        recipe = recipe_of(folder / "train", "co_condenser", titles)
        pieces = load_tokenizer(str(tokenizer(recipe).path / "tokenizer.json"))
        rows = read_rows(pretraining_spans(recipe), Passages)
        counts = count_tokens([passage_text(row["title"], row["text"]) for row in rows], pieces)
        longer = sum(count > MAX_TOKENS for count in counts)
        yield {"titles": titles or "every, in addition to the limit", "spans": len(counts), "longer": longer}


def tables(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of Markdown tables: losses as means over seeds with their range, their rises, and lengths."""
    groups = defaultdict(list)
    for row in result["runs"]:
        groups[row["paper"], row["titles"]].append(row)
    yield from ("| loss | titles | last steps | held out, without titles |", "|---|---|---|---|")
    for (paper, titles), rows in groups.items():
        cells = [spread([row[name] for row in rows]) for name in ("last_steps", "held_out_without_titles")]
        yield f"| {paper}, {rows[0]['loss']} | {titles} | {' | '.join(cells)} |"
    yield from (
        "",
        "| titles | read from the vector, held out as trained | held out, without titles |",
        "|---|---|---|",
    )
    for (paper, titles), rows in groups.items():
        if paper == "cot_mae":
            cells = [
                spread([row[f"read_from_vector_{name}"] for row in rows]) for name in ("as_trained", "without_titles")
            ]
            yield f"| {titles} | {' | '.join(cells)} |"
    yield from ("", "| titles | spans | longer than what is read |", "|---|---|---|")
    for row in result["spans"]:
        yield f"| {row['titles']} | {row['spans']:,} | {row['longer'] / row['spans']:.1%} |"


def spread(values: Sequence[float]) -> str:
    """Return a mean with the smallest and the largest value."""
    return f"{mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


if __name__ == "__main__":
    main()
