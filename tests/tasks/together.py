"""What processes of a test do together: bodies of stages, found by their names."""

import os
import signal
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from models.finetuning import Examples, Finetuning, Flops
from models.finetuning import Settings as Losses
from storage.errors import UserError
from storage.settings import Settings
from tasks import world
from tasks.gradients import gradients
from tests.models.test_finetuning import exclusions, random_tokens
from tests.tiny import tiny_retriever


class Asked(Settings):
    """Which objective, and how it is cut."""

    kinds: list[str]
    chunk: int | None


class Mixed(Finetuning):
    """A retriever's objective with a local loss beside it, and a parameter that only the comparison reads."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self.scale = torch.nn.Parameter(torch.tensor(1.5))

    def encode(self, batch: Examples) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
        vectors, _ = super().encode(batch)
        return vectors, {"local": vectors[0].flatten(1).pow(2).mean(1).mean()}

    def compare(self, vectors: tuple[torch.Tensor, ...], batch: Examples) -> dict[str, torch.Tensor]:
        return {name: self.scale * loss for name, loss in super().compare(vectors, batch).items()}


def write_gradients(out: Path, *, settings: Asked) -> None:
    """What a step's gradients and losses are, for each kind; every process writes to its own folder."""
    for kind in settings.kinds:
        save_file(found_gradients(kind, settings.chunk), out / f"{kind}.safetensors")


def found_gradients(kind: str, chunk: int | None) -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    retriever = tiny_retriever(kind, dropout=0.2, spread=0.1).train()
    flops = Flops(queries=0.3, passages=0.2, ramp=0.0) if "lexical" in retriever.views else None
    objective = Mixed(retriever, Losses(contrasts=["sum"], temperature=2.0, flops=flops))
    queries, group = 7, 2
    batch = Examples(
        random_tokens(queries, 1), random_tokens(queries * group, 2), group, exclusions(queries, group), progress=0.5
    )
    losses = gradients(objective, batch, chunk, (3, 5))
    found = {name: each.grad for name, each in objective.named_parameters() if each.grad is not None}
    return found | {f"loss {name}": loss.detach().float() for name, loss in losses.items()}


def complain(out: Path, *, settings: Asked) -> None:
    """One finds that the user can mend something, the other waits for it."""
    if world.rank() == 1:
        raise UserError("expected something else")
    world.wait_for_all()


def break_down(out: Path, *, settings: Asked) -> None:
    """One has an error of ours."""
    if world.rank() == 1:
        raise ZeroDivisionError("nothing to divide by")
    world.wait_for_all()


def vanish(out: Path, *, settings: Asked) -> None:
    """One is killed."""
    if world.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    world.wait_for_all()


def linger(out: Path, *, settings: Asked) -> None:
    """All tell their numbers, and stay."""
    parent = Path(os.environ["TELL"])
    (parent / f"{world.rank()}.pid").write_text(str(os.getpid()))
    time.sleep(60)
