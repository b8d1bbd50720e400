"""`pretrieve plan --gpu`: what each stage that runs an encoder or a generator needs of a GPU: memory and hours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from flows.plan.costs import CostEstimate, cost_key, costs_of_models, in_words_of_time, passes_texts
from flows.plan.generator_costs import GeneratorCosts, runs_generator
from flows.plan.gpus import Gpu
from tasks.estimates.capacity import Capacity
from tasks.estimates.memory import EncodingMemory, TrainingMemory
from tasks.finetuning.train import PLAIN
from tasks.pseudo_queries.generate_queries import NamedGeneration
from tasks.pseudo_queries.train_generator import GeneratorTraining
from tasks.retrieval.encode import LEXICAL_TOKENS_PER_BATCH
from tasks.runtime.device import ON_GPU, Precision
from tasks.runtime.formatting import in_units
from tasks.runtime.token_batches import TOKENS_PER_BATCH
from tasks.session import Done

Memory = TrainingMemory | EncodingMemory


@dataclass(frozen=True)
class Need:
    """The GPU memory and time that a stage needs."""

    stage: str
    round: str
    rows: int | None
    """Texts, queries or pairs that are in memory at a time; None for a generator, whose memory is not counted."""
    precision: Precision
    peak_bytes: int | None
    fits: bool | None
    """Whether it runs as the recipe states it: the memory suffices, and the GPU multiplies in this precision."""
    advice: str
    """The changes with which it fits, if it does not."""
    hours: float | None
    """Hours of one GPU; None where the number of texts is not known, or the GPU's peak in this precision."""

    def as_json(self) -> dict[str, Any]:
        """Return the need for programs; hours have three digits after the point."""
        return vars(self) | {"hours": None if self.hours is None else round(self.hours, 3)}


class GpuPlan:
    """Works out the needs of a recipe's stages; equal trainings are counted once."""

    def __init__(self, estimate: CostEstimate, gpu: Gpu) -> None:
        self.estimate, self.gpu = estimate, gpu
        self.capacity, self.teacher_capacity = map(Capacity, costs_of_models(estimate.recipe, with_dropout=True))
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
            batch, fit, key = pretraining.batch, pretraining.fit, "pretrain.fit"
            memory = self._once(f"{pretraining}", lambda: self.capacity.pretraining(pretraining))
        elif step.stage == "train_teacher":
            teaching = recipe.teacher.train if recipe.teacher else None
            assert teaching is not None
            batch, fit, key = teaching.batch_queries, teaching.fit, "teacher.train.fit"
            memory = self._once(f"{teaching}", lambda: self.teacher_capacity.teaching(teaching))
        else:
            training = self.estimate.training(step)
            batch, fit, key = training.batch_queries, training.fit, f"{self._round(step)}.train.fit"
            memory = self._once(cost_key(training), lambda: self.capacity.training(training))
        assert isinstance(memory, TrainingMemory)
        chunk = fit.chunk
        peak, advice = memory.peak(batch, chunk), self._other_precision(fit.precision, key)
        if peak > self.gpu.usable_bytes:
            largest = memory.largest_chunk(batch, self.gpu.usable_bytes)
            if largest is None:
                advice = "does not fit, even one row at a time"
            else:  # a power of two divides most batches, so that no last chunk is nearly empty
                advice += " and " * bool(advice) + f"{key}.chunk={1 << (largest.bit_length() - 1)} fits"
        number = self.estimate.number(step)
        moved = memory.moved(-(-number // batch), batch, chunk) if number is not None else 0.0
        rows = batch * memory.rows_per_text
        return self._need(step, min(rows, chunk or rows), fit.precision, peak, advice, moved)

    def _encoding(self, step: Done) -> Need:
        recipe = self.estimate.recipe
        memory: Memory
        if step.stage == "encode":
            trained, encoding = self.estimate.training_of_encoder(step), self.estimate.limits(step)
            length, precision, key = encoding.passage_max_tokens, encoding.precision, "encode"
            views = trained.retriever if trained else PLAIN
            tokens = (LEXICAL_TOKENS_PER_BATCH if "lexical" in views.views else TOKENS_PER_BATCH)["cuda"]
            memory = self._once(
                f"{views} {length} {precision}", lambda: self.capacity.encoding(views, length, precision)
            )
        else:
            assert recipe.teacher is not None
            scoring = recipe.teacher.score if step.stage == "score" else recipe.teacher.rerank
            precision, key = scoring.precision, f"teacher.{step.stage}"
            length, tokens = scoring.max_tokens, TOKENS_PER_BATCH["cuda"]
            memory = self._once(f"{scoring}", lambda: self.teacher_capacity.scoring(scoring))
        assert isinstance(memory, EncodingMemory)
        rows = max(1, tokens // length)
        peak, number = memory.peak(rows), self.estimate.number(step)
        advice = self._other_precision(precision, key) if peak <= self.gpu.usable_bytes else "does not fit"
        moved = memory.moved(number, rows) if number is not None else 0.0
        return self._need(step, rows, precision, peak, advice, moved)

    def _need(self, step: Done, rows: int, precision: Precision | None, peak: int, advice: str, moved: float) -> Need:
        cost, precision = self.estimate.of(step), precision or ON_GPU
        seconds = None if cost is None else self.gpu.seconds(cost.flops, moved, precision)
        hours = None if seconds is None else seconds / 3600
        return Need(step.stage, step.round, rows, precision, peak, not advice, advice, hours)

    def _other_precision(self, precision: Precision | None, key: str) -> str:
        """Return the change to float16 where the GPU only emulates the precision, else an empty text."""
        emulated = (precision or ON_GPU) == "bfloat16" and not self.gpu.bfloat16
        return f"it has no bfloat16; {key}.precision=float16" if emulated else ""

    def of_generator(self, step: Done, generators: GeneratorCosts) -> Need:
        """Return the hours of a stage that trains a generator or writes queries; its memory is not counted."""
        settings = generators.jobs[step.reference].settings
        seconds: float | None = None
        if isinstance(settings, NamedGeneration):
            precision = ON_GPU if settings.dtype == "auto" else settings.dtype
            if parts := generators.parts(step):
                read, written = (part.flops for part in parts)
                times = self.gpu.seconds(read, 0.0, precision), self.gpu.writing_seconds(written, precision)
                seconds = None if None in times else sum(time or 0.0 for time in times)
        else:
            assert isinstance(settings, GeneratorTraining)
            precision, cost = settings.fit.precision or ON_GPU, generators.of(step)
            seconds = None if cost is None else self.gpu.seconds(cost.flops, 0.0, precision)
        return Need(
            step.stage, step.round, None, precision, None, None, "", None if seconds is None else seconds / 3600
        )

    def _round(self, step: Done) -> str:
        """Return the key of a step's round: `rounds` and its position."""
        names = [[training.name for training in round_.trainings()] for round_ in self.estimate.recipe.rounds]
        return f"rounds.{next(number for number, trainings in enumerate(names) if step.round in trainings)}"

    def _once(self, key: str, count: Callable[[], Memory]) -> Memory:
        if key not in self._counted:
            self._counted[key] = count()
        return self._counted[key]


def gpu_needs(
    estimate: CostEstimate, generators: GeneratorCosts, steps: Sequence[Done], gpu: Gpu,
    report: Callable[[str], None] = lambda line: None,
) -> list[Need]:  # fmt: skip
    """Return what the stages that run an encoder or a generator and are still to build need, in the plan's order.

    `report` prints a line before each stage: counting one takes seconds.
    """
    plan, needs = GpuPlan(estimate, gpu), list[Need]()
    written = {step.reference for step in steps if runs_generator(generators.jobs[step.reference])}
    counted = [step for step in steps if not step.cached and (passes_texts(step) or step.reference in written)]
    for number, step in enumerate(counted, start=1):
        report(f"stage {number} of {len(counted)}: {step.stage} {step.round}".rstrip() + " …")
        needs.append(plan.of_generator(step, generators) if step.reference in written else plan.of(step))
    return needs


def gpu_table(name: str, needs: list[Need]) -> Table:
    """Return the needs as a table for the terminal."""
    table = Table(title=f"on one {name}", title_justify="left")
    for heading in ("stage", "round"):
        table.add_column(heading, no_wrap=True)
    for heading in ("rows at a time", "precision", "peak memory", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("fits")
    for need in needs:
        time = "?" if need.hours is None else f"~{in_words_of_time(need.hours)}"
        if need.rows is None or need.peak_bytes is None:
            rows, size, fits = "", "", "not counted"
        else:
            rows, size = f"{need.rows:,}", in_units(need.peak_bytes)
            fits = "yes" if need.fits else f"no: {need.advice}"
        table.add_row(need.stage, need.round, rows, need.precision, size, time, fits)
    return table


def gpu_total(name: str, needs: Sequence[Need], num_stages: int) -> str:
    """Return the time of all stages of the table in words, and what it leaves out; empty where none is known."""
    known = [need.hours for need in needs if need.hours is not None]
    if not known:
        return ""
    return (
        f"in total on one {name}: ~{in_words_of_time(sum(known))}, every text at its full length, for {len(known)} of "
        f"{num_stages} stages to build; the others run no encoder and no generator, such as search, or their number of "
        "texts is not known"
    )
