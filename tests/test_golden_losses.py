"""The first five losses of each small recipe's objective, as they were when its code was last looked over line by line.

The objective's settings are the recipe's; the network and its texts are small enough for a test. A change here is a
change of what an objective means: explain it in the commit, delete the recipe's file and run this test with
PRETRIEVE_WRITE_GOLDEN=1.
"""

import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from flows.recipe.load import load_recipe
from flows.recipe.shipped import shipped_recipes
from models.objective import Batch
from models.pretraining import Initialisation, RawBatch, TermCounts
from models.retrievers import towers
from models.retrievers.bi_encoder import DenseEncoder
from models.row_random import RowRandom
from models.tokens import Tokenizer
from storage.store.store import Store
from tasks.session import Execution, Session, session
from tasks.training.grad_cache import gradients
from tests.tiny import PIECES, save_tokenizer, tiny_bert

GOLDEN = Path(__file__).parent / "golden"
WITHOUT = "small/modern"  # it pre-trains nothing
SMALL = [name for name in shipped_recipes() if name == "quickstart" or (name.startswith("small/") and name != WITHOUT)]
STEPS, TEXTS = 5, 8
Step = dict[str, float]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return Tokenizer.load(folder)


@pytest.fixture(autouse=True)
def on_the_cpu(tmp_path: Path) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with session(Session(Store(tmp_path / "store"), Execution(workers=1, threads=1, device="cpu"))):
        yield
    torch.set_num_threads(threads)


def ids(random: np.random.Generator, longest: int) -> list[int]:
    return random.integers(5, len(PIECES), size=random.integers(3, longest)).tolist()


def drawn(step: int, reads: str) -> RawBatch:
    """Texts of a step, some longer than any model's positions, and contexts; for ICT sentences of the texts."""
    random = np.random.default_rng(step)
    texts = [ids(random, 200) for _ in range(TEXTS)]
    contexts = {"texts": [], "pairs": [ids(random, 10) for _ in texts], "sentences": [text[1:9] for text in texts]}
    return RawBatch(
        texts, contexts[reads], TermCounts(50, np.arange(len(PIECES)) % 50 + 1, np.arange(len(PIECES)) % 70 + 1)
    )


def objective_of(recipe: Any) -> nn.Module:
    """The recipe's pre-training of a tiny network with as many positions as its texts have tokens."""
    settings = recipe.pretrain
    encoder = DenseEncoder(tiny_bert(spread=0.05, max_position_embeddings=160), "cls")
    encoder = towers.build_encoders(encoder, recipe.backbone.towers)
    torch.manual_seed(0)
    paper = import_module(f"models.papers.{settings.paper}")
    built: nn.Module = paper.Pretraining(Initialisation(encoder, drawn(0, "texts").terms), settings.objective)
    return built.train()


def batch_of(recipe: Any, step: int, tokenizer: Tokenizer) -> Batch:
    settings = recipe.pretrain
    paper = import_module(f"models.papers.{settings.paper}")
    inputs = drawn(step, settings.objective.reads)
    built: Batch = paper.make_batch(inputs, tokenizer, settings.objective, RowRandom(7, step))
    return built


def trained(recipe: Any, tokenizer: Tokenizer, chunk: int | None, steps: int = STEPS) -> list[Step]:
    """The losses of the first steps of plain gradient descent."""
    built, results = objective_of(recipe), []
    optimiser = torch.optim.SGD(built.parameters(), lr=0.02)
    for step in range(steps):
        optimiser.zero_grad()
        losses = gradients(built, batch_of(recipe, step, tokenizer), chunk, (3, step))
        optimiser.step()
        results.append({name: losses[name].item() for name in sorted(losses)})
    return results


@pytest.mark.parametrize("name", SMALL)
def test_first_losses(name: str, tokenizer: Tokenizer) -> None:
    recipe, path = load_recipe(name)

    results = trained(recipe, tokenizer, recipe.pretrain.fit.chunk)

    file = GOLDEN / f"{path.stem}.txt"
    if os.environ.get("PRETRIEVE_WRITE_GOLDEN") and not file.exists():
        lines = (" ".join(f"{loss} {value:.6f}" for loss, value in step.items()) for step in results)
        file.write_text("".join(f"{line}\n" for line in lines))
    assert file.exists(), f"{file}: missing; write it by running this test with PRETRIEVE_WRITE_GOLDEN=1"
    expected = [line.split() for line in file.read_text().splitlines()]
    assert [list(step) for step in results] == [line[::2] for line in expected]
    values = [[float(value) for value in line[1::2]] for line in expected]
    # Six digits are written, and CPUs differ by less: at most 1e-6 with any instruction set of PyTorch, oneDNN and MKL.
    np.testing.assert_allclose([list(step.values()) for step in results], values, rtol=1e-5)


@pytest.mark.parametrize("name", SMALL)
def test_equal_seeds_give_equal_losses(name: str, tokenizer: Tokenizer) -> None:
    recipe, _ = load_recipe(name)

    assert trained(recipe, tokenizer, 4, 2) == trained(recipe, tokenizer, 4, 2)


@pytest.mark.parametrize("name", SMALL)
def test_bfloat16_is_near_and_finite(name: str, tokenizer: Tokenizer) -> None:
    """Mixed precision as on a GPU, here on the CPU: the same losses to about its two digits, finite gradients."""
    recipe, _ = load_recipe(name)
    built, batch = objective_of(recipe), batch_of(recipe, 0, tokenizer)

    def losses() -> dict[str, torch.Tensor]:
        torch.manual_seed(1)
        vectors, local = built.encode(batch)  # type: ignore[operator]
        return {**local, **built.compare(vectors, batch)}  # type: ignore[operator]

    exact = losses()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = losses()
    torch.stack([loss.float() for loss in mixed.values()]).sum().backward()

    for loss, value in mixed.items():
        assert value.item() == pytest.approx(exact[loss].item(), rel=0.05, abs=0.02), loss
    assert all(parameter.grad.isfinite().all() for parameter in built.parameters() if parameter.grad is not None)
