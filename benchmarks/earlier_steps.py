"""Training steps compared with earlier ones: with a discarded forward pass, and with a loop over texts.

RetroMAE is trained by two processes with one chunk each, and the CPU time is that of one of them, with the sum of the
gradients and AdamW. The baseline encodes each chunk once more without a graph, as every objective without vectors once
did. CoT-MoTE's retriever is trained on a query with 16 passages; the baseline has `benchmarks/loop_over_texts.py`.
Weights are random, so that nearly every WordPiece token of the vocabulary has a positive weight and thus a gradient.
The last cases have the maxima themselves, also where few have a gradient, as with a trained head.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks import loop_over_texts
from benchmarks.contest import OURS, Case
from benchmarks.encoders import on_one_thread
from benchmarks.pretraining import RETRO_MAE, Size
from benchmarks.random_texts import texts, word_pieces
from models.layers import max_logits
from models.layers.bert import BertForMaskedLM
from models.objective import Losses, Vectors
from models.papers import retro_mae
from models.pretraining import Initialisation, RawBatch
from models.retrievers import towers
from models.retrievers.bi_encoder import DenseEncoder
from models.retrievers.examples import Examples
from models.retrievers.objective import Finetuning, ObjectiveSettings
from models.retrievers.retriever import Retriever
from models.retrievers.retriever_settings import RetrieverSettings
from models.retrievers.views import lexical
from models.retrievers.views.dense import DenseSettings
from models.retrievers.views.lexical import LexicalSettings
from models.row_random import RowRandom
from tasks.training.grad_cache import gradients
from tasks.training.optimiser import OptimisationSettings, Optimiser
from tasks.training.step_batch import StepBatches, own_spans

DEVICES = ("cpu",)
DISCARDED, LOOP = "with a discarded pass", "a loop over texts"
PROCESSES, GROUP = 2, 16
COT_MOTE = RetrieverSettings(
    dense=DenseSettings(dim=None),
    lexical=LexicalSettings(
        activation="log1p_relu", head="mlm", pool_specials=True, top_passages=None, top_queries=None
    ),
)
TOLERANCE = 1e-3  # of the norm of all gradients
Step = Callable[[], Losses]
Gradients = dict[str, Tensor]


def cases(device: str, *, small: bool) -> Iterator[Case]:
    """Yield steps of RetroMAE and of CoT-MoTE's retriever, and lexical maxima of which all or few have a gradient."""
    torch.set_num_threads(1)
    size = Size(1, 64, 4, 1000) if small else Size(6, 384, 8)
    with tempfile.TemporaryDirectory() as folder, on_one_thread(device):
        yield from _retro_mae(Path(folder), size)
        yield _retriever(size, queries=1)
        for share in (1.0, 0.05):
            yield _maxima(2 if small else 4, 64 if small else 768, size.vocabulary, share)


class EncodesTwice(nn.Module):
    """An objective that encodes each batch once more without a graph, and discards the result."""

    def __init__(self, objective: Any) -> None:
        super().__init__()
        self.objective, self.compare = objective, objective.compare

    def encode(self, batch: Any) -> tuple[Vectors, Losses]:
        """Return what the objective returns, with equal dropout."""
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            self.objective.encode(batch)
        encoded: tuple[Vectors, Losses] = self.objective.encode(batch)
        return encoded


def _retro_mae(folder: Path, size: Size) -> Iterator[Case]:
    """Yield the case of a step that this process and another take together."""
    context = get_context("spawn")
    here, there = context.Pipe()
    other = context.Process(target=_take_steps, args=(there, folder / "rendezvous", size), daemon=True)
    other.start()
    with _joined(folder / "rendezvous", rank=0):
        steps = _retro_mae_steps(size)

        def together(name: str) -> Step:
            def step() -> Losses:
                here.send(name)
                return steps[name]()

            return step

        yield Case(
            f"RetroMAE, {PROCESSES} processes, {size} each", {name: together(name) for name in steps},
            {DISCARDED: 1.3}, _equal_losses, repeats=2, units={"texts": float(PROCESSES * size.texts)},
        )  # fmt: skip
        here.send(None)
    other.join()


def _take_steps(orders: Connection, rendezvous: Path, size: Size) -> None:
    """Take the steps that the first process names, as the second."""
    torch.set_num_threads(1)
    with on_one_thread("cpu"), _joined(rendezvous, rank=1):
        steps = _retro_mae_steps(size)
        while (name := orders.recv()) is not None:
            steps[name]()


@contextlib.contextmanager
def _joined(rendezvous: Path, rank: int) -> Iterator[None]:
    """Train together with the other process in the block; the two meet in a file."""
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=PROCESSES)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _retro_mae_steps(size: Size) -> dict[str, Step]:
    """Return this process's step and the baseline's, each with weights of its own that start equal."""
    tokenizer, num_rows = word_pieces(size.vocabulary), PROCESSES * size.texts
    drawn = texts(num_rows, size.vocabulary, full=False)

    def build(step: int, start: int, stop: int) -> retro_mae.Batch:
        return retro_mae.make_batch(RawBatch(drawn.texts[start:stop]), tokenizer, RETRO_MAE, RowRandom(1, step, start))

    batch_of = StepBatches(build, num_rows, own_spans(num_rows, size.texts))
    settings = OptimisationSettings(
        learning_rate=1e-4, warmup_ratio=0.1, weight_decay=0.01, max_gradient_norm=1.0, chunk=size.texts
    )

    def stepping(wrap: Callable[[nn.Module], nn.Module]) -> Step:
        torch.manual_seed(0)
        initial = Initialisation(DenseEncoder(BertForMaskedLM(size.config()), "cls"))
        objective = wrap(retro_mae.Pretraining(initial, RETRO_MAE)).train()
        optimiser, numbers = Optimiser(objective, settings, 1000, torch.device("cpu")), itertools.count()

        def step() -> Losses:
            number = next(numbers)
            optimiser.begin(number)
            losses = gradients(objective, batch_of(number), size.texts, (1, number))
            optimiser.clip()
            optimiser.step()
            return losses

        return step

    return {OURS: stepping(lambda objective: objective), DISCARDED: stepping(EncodesTwice)}


def _equal_losses(results: Mapping[str, Any]) -> dict[str, Any]:
    """Check that the losses of the last step, which follow from all earlier ones, are equal; return them."""
    losses = {name: {loss: value.item() for loss, value in result.items()} for name, result in results.items()}
    assert losses[OURS] == losses[DISCARDED], losses
    return {"losses of the last step": losses[OURS]}


def _retriever(size: Size, *, queries: int) -> Case:
    """Return the case of the gradients of a step of CoT-MoTE's retriever, dense and lexical."""
    tokenizer = word_pieces(size.vocabulary)
    torch.manual_seed(0)
    encoder = towers.build_encoders(DenseEncoder(BertForMaskedLM(size.config()), "cls"), "mixture")
    objective = Finetuning(
        Retriever(encoder, COT_MOTE, tokenizer).train(), ObjectiveSettings(contrasts=["sum"], temperature=1.0)
    )
    drawn = texts(queries * GROUP, size.vocabulary, full=False)
    rows = [
        tokenizer.pad_batch([[tokenizer.cls, *ids, tokenizer.sep] for ids in side])
        for side in (drawn.contexts[:queries], drawn.texts)
    ]
    examples = Examples(rows[0], rows[1], GROUP, None)

    def stepping(module: ModuleType) -> Callable[[], tuple[float, Gradients]]:
        def step() -> tuple[float, Gradients]:
            objective.zero_grad()
            with patch.object(lexical, "max_logits", module.max_logits):
                losses = gradients(objective, examples, None, (1, 1))
            return losses["contrastive"].item(), _gradients_of(objective)

        return step

    name = f"CoT-MoTE's retriever, {queries * GROUP} passages of {queries} query, {size.layers} x {size.hidden}"
    return Case(
        name, {OURS: stepping(max_logits), LOOP: stepping(loop_over_texts)}, {LOOP: 2.0}, _equal_gradients, repeats=2,
        units={"passages": float(queries * GROUP)},
    )  # fmt: skip


def _maxima(passages: int, hidden: int, vocabulary: int, share: float) -> Case:
    """Return the case of the lexical maxima of passages, forward and backward, a share of which have a gradient."""
    lengths = [len(ids) + 2 for ids in texts(passages, vocabulary, full=False).texts]
    pool_BL = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    random = torch.Generator().manual_seed(0)
    states_NH = torch.randn(sum(lengths), hidden, generator=random).requires_grad_()
    words_VH = (0.02 * torch.randn(vocabulary, hidden, generator=random)).requires_grad_()
    gradient_BV = torch.randn(passages, vocabulary, generator=random)
    gradient_BV *= torch.rand(passages, vocabulary, generator=random) < share

    def work(module: ModuleType) -> Callable[[], tuple[float, Gradients]]:
        def step() -> tuple[float, Gradients]:
            maxima_BV = module.max_logits(states_NH, words_VH, pool_BL)
            to_states, to_words = torch.autograd.grad(maxima_BV, (states_NH, words_VH), gradient_BV)
            return maxima_BV.sum().item(), {"states": to_states, "words": to_words}

        return step

    return Case(
        f"lexical maxima of {passages} passages, {hidden} dimensions, {share:.0%} with a gradient",
        {OURS: work(max_logits), LOOP: work(loop_over_texts)}, {}, _equal_gradients, repeats=3,
        units={"passages": float(passages)},
    )  # fmt: skip


def _gradients_of(module: nn.Module) -> Gradients:
    """Return the gradients by the names of the parameters."""
    return {name: value.grad for name, value in module.named_parameters() if value.grad is not None}


def _equal_gradients(results: Mapping[str, Any]) -> dict[str, Any]:
    """Check that value and gradients are equal up to rounding; return the value and the difference of the gradients."""
    (value, own), (other_value, other) = results[OURS], results[LOOP]
    assert own.keys() == other.keys(), own.keys() ^ other.keys()
    norm = torch.stack([gradient.norm() for gradient in other.values()]).norm()
    difference = torch.stack([(own[name] - gradient).norm() for name, gradient in other.items()]).norm() / norm
    assert difference < TOLERANCE, difference
    assert abs(value - other_value) <= 1e-5 * abs(other_value), (value, other_value)
    return {"difference of the gradients, as a share of their norm": float(f"{difference:.1g}")}
