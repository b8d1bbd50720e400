"""Steps of the papers' recipes on a GPU: their time and peak memory, as counted beforehand and as measured.

`python -m benchmarks.gpu_steps count` works out, without a GPU, what `pretrieve plan --gpu` says of a step: FLOPs,
bytes moved and peak memory. `python -m benchmarks.gpu_steps measure` runs the steps on the GPU that is here.
Both write `benchmarks/results/gpu_steps.cuda.json`, from which `docs/scale.md` is made.

Weights are random, of BERT-base's shape; all texts have their full length. A step has its copy to the GPU, both passes
under bfloat16's autocast with the recipe's dropout, clipping, and AdamW. It has `ROWS` rows, or as many as fit.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import results
from benchmarks.encoders import on_one_thread
from flows.plan.gpus import find_gpu
from flows.recipe.load import load_recipe
from models.layers.bert_layers import SelfAttention
from models.objective import Batch
from models.retrievers.retriever_settings import RetrieverSettings
from models.tokens import pad
from storage.files import write_atomically
from tasks.estimates.capacity import Capacity, TrainingStep
from tasks.estimates.flops import Costs
from tasks.retrieval.encode import LEXICAL_TOKENS_PER_BATCH
from tasks.runtime.device import autocast
from tasks.runtime.token_batches import TOKENS_PER_BATCH
from tasks.training.grad_cache import gradients
from tasks.training.optimiser import OptimisationSettings, Optimiser

PATH = results.path_of("gpu_steps", "cuda")
RECIPES = (
    "cot_mae_query_as_context", "co_condenser_query_as_context", "cot_mote", "retro_mae", "dup_mae", "cpdae", "came",
)  # fmt: skip
GPU = "h100-80"
ROWS = 256  # texts of a pre-training step, passages of a retriever's
TURNS, FIRST_TURNS = 5, 2  # those that are measured, and those before them that are not
PACKAGES = ("torch", "transformers", "numpy")
SEED = (1, 1)


@dataclass(frozen=True)
class Work:
    """A step of a stage, or a batch that is encoded."""

    recipe: str
    stage: str
    retriever: str
    """The representations, for a retriever."""
    rows: int
    """Texts, queries with their passages, or passages."""
    step: Callable[[], TrainingStep]
    """Builds the objective, and its batches; an encoder for `encode`."""
    fit: OptimisationSettings | None
    dropout: float
    memory: Callable[[], Any]
    cost: Callable[[], Any]
    """The cost of one row."""

    @property
    def name(self) -> str:
        """The stage with its recipe and representations."""
        return " ".join(filter(None, (self.recipe, self.stage, self.retriever)))


def works() -> Iterator[Work]:
    """Yield the pre-training of each recipe, and each kind of retriever's training and encoding once."""
    known: set[str] = set()
    for name in RECIPES:
        recipe, _ = load_recipe(name, ["dataset.path=nowhere"])
        costs = Costs(Path("nowhere"), recipe.backbone, dropout=recipe.backbone.dropout)
        capacity = Capacity(costs)
        dropout = recipe.backbone.dropout
        if pretraining := recipe.pretrain:
            yield Work(
                name, "pretrain", "", min(pretraining.batch, ROWS), partial(capacity.pretraining_step, pretraining),
                pretraining.fit, dropout, partial(capacity.pretraining, pretraining),
                partial(costs.pretraining, pretraining),
            )  # fmt: skip
        for training in (round_.train for round_ in recipe.rounds if round_.train):
            views, towers = " + ".join(training.retriever.views), recipe.backbone.towers
            kind = views if towers == "siamese" else f"{views}, {towers}"
            if kind in known:
                continue
            known.add(kind)
            yield Work(
                name, "train", kind, min(training.batch_queries, ROWS // training.passages_per_query),
                partial(capacity.training_step, training), training.fit, dropout,
                partial(capacity.training, training), partial(costs.training, training),
            )  # fmt: skip
            length, retriever = recipe.encode.passage_max_tokens, training.retriever
            limits = LEXICAL_TOKENS_PER_BATCH if "lexical" in retriever.views else TOKENS_PER_BATCH
            yield Work(
                name, "encode", kind, limits["cuda"] // length, partial(_encoder, costs, retriever, length), None, 0.0,
                partial(capacity.encoding, retriever, length), partial(costs.encoding, retriever, length),
            )  # fmt: skip


def _encoder(costs: Costs, retriever: RetrieverSettings, length: int) -> TrainingStep:
    """Return a retriever, and batches of passages."""
    tokens = costs.ids(length)
    return TrainingStep(costs.retriever(retriever).eval(), lambda rows: pad([tokens] * rows))


def count() -> None:
    """Write what is counted of every step; what was measured before is dropped."""
    gpu = find_gpu(GPU)
    rows: dict[str, Any] = {}
    for work in works():
        memory, cost, number = work.memory(), work.cost(), work.rows
        if work.fit is None:
            peak, moved = memory.peak(number), memory.moved(number, number)
        else:
            while memory.peak(number, None) > gpu.usable_bytes:
                number //= 2
            peak, moved = memory.peak(number, None), memory.moved(1, number, None)
        flops = number * cost.flops
        rows[work.name] = {
            "recipe": work.recipe, "stage": work.stage, "retriever": work.retriever, "rows": number,
            "tokens": number * cost.tokens, "flops": flops, "moved_bytes": moved, "peak_bytes": peak,
        }  # fmt: skip
        print(work.name, json.dumps(rows[work.name]), flush=True)
    _write({"gpu": GPU, "counted": rows})


def measure() -> None:
    """Measure every counted step on the GPU that is here, and the GPU's own rates; each is written at once."""
    result = results.read(PATH)
    device = torch.device("cuda")
    result["machine"] = results.machine("cuda", PACKAGES)
    result["rates"] = {"products": products_per_second(), "bytes": bytes_per_second()}
    result["measured"] = {}
    with on_one_thread("cuda"):
        for work in works():
            rows = result["counted"][work.name]["rows"]
            measured = result["measured"][work.name] = _measured(work, rows, device)
            print(work.name, json.dumps(measured), flush=True)
            _write(result)


def _measured(work: Work, rows: int, device: torch.device) -> dict[str, Any]:
    """Return the median time of a step with its range, and its peak memory."""
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.manual_seed(0)
    built = work.step()
    module, batch = built.objective.to(device), built.batch_of(rows)
    run = _encoding(module, batch, device) if work.fit is None else _training(module, batch, work, device)
    seconds = []
    for turn in range(FIRST_TURNS + TURNS):
        if turn == FIRST_TURNS:
            torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        started = time.perf_counter()
        run()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    kept, peak = seconds[FIRST_TURNS:], torch.cuda.max_memory_allocated() - before
    module.to("cpu")  # the next step may share its encoder
    return {"seconds": statistics.median(kept), "fastest": min(kept), "slowest": max(kept), "peak_bytes": peak}


def _encoding(module: Any, batch: Any, device: torch.device) -> Callable[[], object]:
    def run() -> object:
        with torch.inference_mode(), autocast(device, None):
            return module(batch.to(device), "passage")

    return run


def _training(module: Any, batch: Batch, work: Work, device: torch.device) -> Callable[[], object]:
    assert work.fit
    module.train()
    for part in module.modules():  # counts leave it out
        if isinstance(part, SelfAttention):
            part.dropout = work.dropout
    optimiser = Optimiser(module, work.fit, 1000, device)

    def run() -> None:
        optimiser.begin(500)
        gradients(module, batch, None, SEED, work.fit.precision if work.fit else None)
        optimiser.clip()
        optimiser.step()

    return run


def products_per_second() -> float:
    """Return the FLOPs a second of a large matrix product in bfloat16, of random numbers."""
    first, second = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * 8192**3 / _seconds(lambda: first @ second)


def bytes_per_second() -> float:
    """Return the bytes that are read and written a second where a large tensor is copied."""
    source = torch.randn(1 << 29, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / _seconds(lambda: target.copy_(source))


def _seconds(work: Callable[[], object]) -> float:
    """Return the median of ten timings, after three that are not counted."""
    times = []
    for _ in range(13):
        torch.cuda.synchronize()
        started = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times[3:])


def _write(result: dict[str, Any]) -> None:
    write_atomically(PATH, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    {"count": count, "measure": measure}[sys.argv[1]]()
