"""`pretrieve plan --gpu`: what each stage that runs an encoder needs of a GPU: memory and hours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from flows.gpus import Gpu
from flows.plan_costs import CostEstimate, passes_texts
from storage.store import sources
from tasks.capacity import Capacity
from tasks.finetuning.train import PLAIN
from tasks.flops import Costs
from tasks.memory import EncodingMemory, TrainingMemory
from tasks.retrieval.encode import LEXICAL_TOKENS_PER_BATCH
from tasks.runtime.formatting import in_units
from tasks.runtime.token_batches import TOKENS_PER_BATCH
from tasks.session import Done

Memory = TrainingMemory | EncodingMemory


@dataclass(frozen=True)
class Need:
    """What a stage needs of a GPU."""

    stage: str
    round: str
    rows: int
    """Texts, queries or pairs that are in memory at a time."""
    peak_bytes: int
    fits: bool
    advice: str
    """A chunk with which it fits, if it does not."""
    hours: float | None
    """Of one GPU; None where the number of texts is not known."""

    def as_json(self) -> dict[str, Any]:
        """Return the need for programs; hours have three digits after the point."""
        return vars(self) | {"hours": None if self.hours is None else round(self.hours, 3)}


class GpuPlan:
    """Works out the needs of a recipe's stages; equal trainings are counted once."""

    def __init__(self, estimate: CostEstimate, gpu: Gpu) -> None:
        backbone = estimate.recipe.backbone
        costs = Costs(sources.weights(backbone.weights).path, backbone, dropout=backbone.dropout)
        self.estimate, self.gpu, self.capacity = estimate, gpu, Capacity(costs)
        self._counted: dict[str, Memory] = {}

    def of(self, step: Done) -> Need:
        """Return the needs of a stage that runs an encoder."""
        return self._encoding(step) if step.stage in ("encode", "score", "rerank") else self._training(step)

    def _training(self, step: Done) -> Need:
        recipe = self.estimate.recipe
        memory: Memory
        if step.stage == "pretrain":
            pretraining = recipe.pretrain
            assert pretraining is not None
            batch, chunk, key = pretraining.batch, pretraining.fit.chunk, "pretrain.fit.chunk"
            memory = self._once(f"{pretraining}", lambda: self.capacity.pretraining(pretraining))
        elif step.stage == "train_teacher":
            teaching = recipe.teacher.train if recipe.teacher else None
            assert teaching is not None
            batch, chunk, key = teaching.batch_queries, teaching.fit.chunk, "teacher.train.fit.chunk"
            memory = self._once(f"{teaching}", lambda: self.capacity.teaching(teaching))
        else:
            training = self.estimate.training(step)
            batch, chunk, key = training.batch_queries, training.fit.chunk, "train.fit.chunk of the round"
            once = f"{training.model_copy(update={'epochs': 1, 'steps': None, 'seed': 0})}"
            memory = self._once(once, lambda: self.capacity.training(training))
        assert isinstance(memory, TrainingMemory)
        peak = memory.peak(batch, chunk)
        fits, advice = peak <= self.gpu.usable_bytes, ""
        if not fits:
            largest = memory.largest_chunk(batch, self.gpu.usable_bytes)
            advice = "does not fit, even one row at a time"
            if largest is not None:
                advice = f"{key}={1 << (largest.bit_length() - 1)} fits"
        number = self.estimate.number(step)
        moved = memory.moved(-(-number // batch), batch, chunk) if number is not None else 0.0
        rows = batch * memory.rows_per_text
        return Need(step.stage, step.round, min(rows, chunk or rows), peak, fits, advice, self._hours(step, moved))

    def _encoding(self, step: Done) -> Need:
        recipe = self.estimate.recipe
        memory: Memory
        if step.stage == "encode":
            trained, length = self.estimate.training_of_encoder(step), self.estimate.limits(step).passage_max_tokens
            views = trained.retriever if trained else PLAIN
            tokens = (LEXICAL_TOKENS_PER_BATCH if "lexical" in views.views else TOKENS_PER_BATCH)["cuda"]
            memory = self._once(f"{views} {length}", lambda: self.capacity.encoding(views, length))
        else:
            assert recipe.teacher is not None
            scoring = recipe.teacher.score if step.stage == "score" else recipe.teacher.rerank
            length, tokens = scoring.max_tokens, TOKENS_PER_BATCH["cuda"]
            memory = self._once(f"{scoring}", lambda: self.capacity.scoring(scoring))
        assert isinstance(memory, EncodingMemory)
        rows = max(1, tokens // length)
        peak, number = memory.peak(rows), self.estimate.number(step)
        fits = peak <= self.gpu.usable_bytes
        advice = "" if fits else "does not fit"
        moved = memory.moved(number, rows) if number is not None else 0.0
        return Need(step.stage, step.round, rows, peak, fits, advice, self._hours(step, moved))

    def _hours(self, step: Done, moved: float) -> float | None:
        cost = self.estimate.of(step)
        return None if cost is None else self.gpu.seconds(cost.flops, moved) / 3600

    def _once(self, key: str, count: Callable[[], Memory]) -> Memory:
        if key not in self._counted:
            self._counted[key] = count()
        return self._counted[key]


def gpu_needs(estimate: CostEstimate, steps: Sequence[Done], gpu: Gpu) -> list[Need]:
    """Return what the stages that run an encoder need, in the plan's order."""
    plan = GpuPlan(estimate, gpu)
    return [plan.of(step) for step in steps if passes_texts(step)]


def gpu_table(name: str, needs: list[Need]) -> Table:
    """Return the needs as a table for the terminal."""
    table = Table(title=f"on one {name}", title_justify="left")
    for heading in ("stage", "round"):
        table.add_column(heading, no_wrap=True)
    for heading in ("rows at a time", "peak memory", "hours ≤"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("fits")
    for need in needs:
        hours = "?" if need.hours is None else f"{need.hours:,.1f}" if need.hours >= 1 else f"{need.hours:.3f}"
        fits = "yes" if need.fits else f"no: {need.advice}"
        table.add_row(need.stage, need.round, f"{need.rows:,}", in_units(need.peak_bytes), hours, fits)
    return table
