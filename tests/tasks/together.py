"""What processes of a test do together: bodies of stages, found by their names."""

import json
import os
import signal
import time
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from safetensors.torch import save_file

from models.objective import Batch
from models.papers import cot_mae
from models.pretraining import RawBatch
from models.retrievers.examples import Examples
from models.retrievers.objective import Finetuning, Flops, ObjectiveSettings
from models.row_random import RowRandom
from storage.errors import UserError
from storage.settings import Settings
from tasks.runtime import distributed
from tasks.training.checkpoints import weights
from tasks.training.grad_cache import gradients
from tasks.training.loop import fit
from tasks.training.optimiser import OptimisationSettings
from tests.models.retrievers.random_examples import exclusions, random_tokens
from tests.tiny import start, tiny_retriever, tiny_tokenizer


class TrainingSettings(Settings):
    """Which objective, and how it is cut."""

    kinds: list[str]
    chunk: int | None


class Mixed(Finetuning):
    """A retriever's objective with a local loss beside it, and a comparison with parameter and chance of its own."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self.scale = torch.nn.Parameter(torch.tensor(1.5))

    def encode(self, batch: Examples) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
        vectors, _ = super().encode(batch)
        return vectors, {"local": vectors[0].flatten(1).pow(2).mean(1).mean()}

    def compare(self, vectors: tuple[torch.Tensor, ...], batch: Examples) -> dict[str, torch.Tensor]:
        chance = 1 + torch.rand(())
        return {name: chance * self.scale * loss for name, loss in super().compare(vectors, batch).items()}


def write_gradients(out: Path, *, settings: TrainingSettings) -> None:
    """What a step's gradients and losses are, for each kind; every process writes to its own folder."""
    for kind in settings.kinds:
        save_file(found_gradients(kind, settings.chunk), out / f"{kind}.safetensors")


def found_gradients(kind: str, chunk: int | None) -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    objective, batch = pretraining() if kind == "cot_mae" else training(kind)
    losses = gradients(objective, batch, chunk, (3, 5))
    results = {name: parameter.grad for name, parameter in objective.named_parameters() if parameter.grad is not None}
    return results | {f"loss {name}": loss.detach().float() for name, loss in losses.items()}


def pretraining() -> tuple[torch.nn.Module, Batch]:
    """Local losses alone, each a mean over as many positions as are masked."""
    settings = cot_mae.Settings(
        decoder="ae", decoder_layers=1, window=None, text_mask_rate=0.3, context_mask_rate=0.45, symmetric=False,
        max_tokens=24, context_max_tokens=12,
    )  # fmt: skip
    texts, contexts = ([[5 + n] * (3 + 4 * n) for n in range(7)] for _ in range(2))
    batch = cot_mae.make_batch(RawBatch(texts, contexts), tiny_tokenizer(), settings, RowRandom(1, 0))
    return cot_mae.Pretraining(start(dropout=0.2, spread=0.1), settings).train(), batch


def training(kind: str) -> tuple[torch.nn.Module, Batch]:
    """What a retriever's comparison says, with a local loss beside it."""
    retriever = tiny_retriever(kind, dropout=0.2, spread=0.1).train()
    flops = Flops(queries=0.3, passages=0.2, ramp=0.0) if "lexical" in retriever.views else None
    objective = Mixed(retriever, ObjectiveSettings(contrasts=["sum"], temperature=2.0, flops=flops))
    queries, group = 7, 2
    batch = Examples(
        random_tokens(queries, 1), random_tokens(queries * group, 2), group, exclusions(queries, group), progress=0.5
    )
    return objective, batch


def complain(out: Path, *, settings: TrainingSettings) -> None:
    """One finds that the user can mend something, the other waits for it."""
    if distributed.rank() == 1:
        raise UserError("expected something else")
    dist.barrier()


def break_down(out: Path, *, settings: TrainingSettings) -> None:
    """One has other weights than the other, which both notice; then it has an error of ours, and the other waits."""
    line, message = torch.nn.Linear(2, 2), ""
    for parameter in line.parameters():
        torch.nn.init.ones_(parameter)
    distributed.check_replicas_equal(line)
    if distributed.rank() == 1:
        line.weight.data[1, 1] += 1e-7
    try:
        distributed.check_replicas_equal(line)
    except distributed.ReplicasDiffer as different:
        message = str(different)
    if distributed.rank() == 1:
        raise ZeroDivisionError(message)
    dist.barrier()


def write_gradients_and_vanish(out: Path, *, settings: TrainingSettings) -> None:
    """Write gradients and the addresses that the processes listen on; then one process is killed."""
    write_gradients(out, settings=settings)
    (out / "listening.json").write_text(json.dumps(listening_addresses()))
    dist.barrier()
    if distributed.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def listening_addresses() -> list[str]:
    """The addresses on which this process, its parent and all descendants of the parent accept TCP connections."""
    parent = psutil.Process(os.getppid())
    connections = [
        connection for process in (parent, *parent.children(recursive=True)) for connection in process.net_connections()
    ]
    return sorted({connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN})


def linger(out: Path, *, settings: TrainingSettings) -> None:
    """All tell their numbers, and stay."""
    parent = Path(os.environ["TELL"])
    (parent / f"{distributed.rank()}.pid").write_text(str(os.getpid()))
    time.sleep(600)


def twenty_steps(out: Path, *, settings: TrainingSettings) -> None:
    """Train for twenty."""
    train_for(20, out, settings)


def train_for(steps: int, out: Path, settings: TrainingSettings) -> None:
    """Train, and write the weights and the steps that this process has done."""
    torch.manual_seed(3)
    objective, batch = training(settings.kinds[0])
    fitting = OptimisationSettings(
        learning_rate=1e-3, warmup_ratio=0.0, weight_decay=0.0, max_gradient_norm=1.0, chunk=settings.chunk
    )
    visited: list[int] = []

    def batch_of(step: int) -> Batch:
        visited.append(step)
        return batch

    fit(objective, batch_of, steps, out=out, settings=fitting, seed=3)
    save_file(weights(objective), out / "weights.safetensors")
    (out / "visited.json").write_text(json.dumps(visited))
