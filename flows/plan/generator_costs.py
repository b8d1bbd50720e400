"""The tokens and FLOPs of a plan's stages that train a query generator or write queries with one; upper bounds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flows.plan.costs import CostEstimate, in_powers
from storage.artifact import Source
from tasks.estimates.flops import Cost
from tasks.estimates.generation import T5_BASE, T5Shape
from tasks.job import Job
from tasks.pseudo_queries.generate_queries import NamedGeneration
from tasks.pseudo_queries.train_generator import GeneratorTraining
from tasks.session import Done

WRITING = ("generate_queries", "fill_ledger")
STAGES = (*WRITING, "train_generator")
T5S = ("t5", "mt5")


@dataclass(frozen=True)
class Writing:
    """The work of a stage that writes queries."""

    shape: T5Shape
    settings: NamedGeneration
    passages: float | None
    """How many passages it reads; None where it is not known yet."""


class GeneratorCosts:
    """Counts the stages of a plan that run a generator; the models are T5s, or their cost is not known."""

    def __init__(self, estimate: CostEstimate, jobs: Mapping[str, Job]) -> None:
        """`jobs` are those of the plan, by their references."""
        self.estimate, self.jobs = estimate, jobs

    def of(self, step: Done) -> Cost | None:
        """Return the most that a stage can cost; None where its model or its number of passages is not known."""
        settings = self.jobs[step.reference].settings
        if isinstance(settings, GeneratorTraining):
            one = _shape_of(settings).training(settings.input_max_tokens, settings.query_max_tokens)
            return one.times(settings.steps * settings.batch)
        if (parts := self.parts(step)) is None:
            return None
        read, written = parts
        return Cost(read.tokens + written.tokens, read.flops + written.flops)

    def parts(self, step: Done) -> tuple[Cost, Cost] | None:
        """Return the cost of reading all passages, and of writing all queries; None where it is not known."""
        if (work := self.work(step)) is None:
            return None
        length, settings = work.settings.input_max_tokens, work.settings
        read = work.shape.reading(length)
        written = work.shape.writing(length, settings.max_new_tokens).times(settings.queries_per_passage)
        if work.passages is None:
            tokens, flops = read.tokens + written.tokens, in_powers(read.flops + written.flops)
            cost = f"{tokens:,.0f} tokens and {flops} FLOPs at most"
            self.estimate.note(f"{step.stage}: the number of passages is not known yet; each has {cost}")
            return None
        return read.times(work.passages), written.times(work.passages)

    def work(self, step: Done) -> Writing | None:
        """Return what a stage that writes queries does; None where its model is no T5."""
        job = self.jobs[step.reference]
        settings = job.settings
        assert isinstance(settings, NamedGeneration)
        if (shape := self._shape(job)) is None:
            return None
        passages = self.estimate.number_of_passages(str(job.references["passages"]))
        return Writing(shape, settings, None if passages is None else passages / settings.share[1])

    def _shape(self, job: Job) -> T5Shape | None:
        """Return the shape of the model that writes; None where it is no T5."""
        trained = self.jobs.get(str(job.references["generator"]))
        if trained is not None and isinstance(trained.settings, GeneratorTraining):
            return _shape_of(trained.settings)
        source = job.inputs[job.stage.parameters.index("generator")]
        if not isinstance(source, Source):
            return None
        if (source.path / "config.json").is_file():
            return read_shape(source.path)
        self.estimate.note(
            f"FLOPs of {job.stage.name}: its model is not here; it is taken to have the shape of T5-base"
        )
        return T5_BASE


def runs_generator(job: Job) -> bool:
    """Return whether a stage's work is to train a generator or to write with one.

    Where shares of the queries are written by stages of their own, the last stage only joins them.
    """
    return job.stage.name in STAGES and not job.references.get("filled")


def _shape_of(settings: GeneratorTraining) -> T5Shape:
    """Return the shape of a T5 that is trained from the start, as `tasks.pseudo_queries.train_generator` builds it."""
    width = settings.hidden_size
    return T5Shape(
        settings.layers, settings.layers, width, width, 4 * width, gated=False, vocabulary=settings.vocabulary
    )


def read_shape(folder: Path) -> T5Shape | None:
    """Return the shape in a model's config.json; None where it is no T5, or a file that the stage will refuse."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if config["model_type"] not in T5S:
            return None
        layers, heads = config["num_layers"], config["num_heads"] * config["d_kv"]
        return T5Shape(
            layers, config.get("num_decoder_layers") or layers, config["d_model"], heads, config["d_ff"],
            gated=str(config.get("feed_forward_proj", "relu")).startswith("gated"), vocabulary=config["vocab_size"],
        )  # fmt: skip
    except (ValueError, KeyError, TypeError):
        return None
