"""Every paper's objective on the simulated device: the CPU's results, one copy of the batch, no synchronisation."""

import pytest
import torch

from flows.recipe.load import load_recipe
from models.tokens import Tokenizer
from tests import test_golden_losses as golden
from tests.simulated_device.comparison import assert_equal, assert_moved_once, on_cpu, on_device
from tests.simulated_device.registration import is_real
from tests.simulated_device.tensor import traffic
from tests.tiny import tiny_tokenizer

CHUNK = 3  # of 4 texts
RECIPES = {load_recipe(name)[0].pretrain.paper: name for name in golden.SMALL}
if is_real():
    del RECIPES["sim_cse"]  # it compares two draws of dropout, and a GPU draws other numbers than a CPU


@pytest.fixture(autouse=True)
def few_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden, "TEXTS", 4)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tiny_tokenizer()


@pytest.mark.parametrize("paper", RECIPES)
@pytest.mark.usefixtures("full_precision")
def test_a_step_in_chunks_equals_that_of_the_cpu(paper: str, tokenizer: Tokenizer, simulated: torch.device) -> None:
    recipe, _ = load_recipe(RECIPES[paper])
    batch = golden.batch_of(recipe, 0, tokenizer)

    step = on_device(golden.objective_of(recipe), batch, CHUNK, simulated)

    assert_equal(step, on_cpu(golden.objective_of(recipe), batch, CHUNK), tolerance=1e-3)


@pytest.mark.parametrize("paper", RECIPES)
@pytest.mark.parametrize("chunk", [None, CHUNK])
def test_a_step_in_bfloat16_copies_the_batch_and_never_waits(
    paper: str, chunk: int | None, tokenizer: Tokenizer, simulated: torch.device
) -> None:
    recipe, _ = load_recipe(RECIPES[paper])
    batch = golden.batch_of(recipe, 0, tokenizer)

    step = on_device(golden.objective_of(recipe), batch, chunk, simulated, "bfloat16")

    if chunk is None:
        assert_moved_once(batch)
    assert set(traffic.to_device) == {"models/batch.py:moved"}
    assert not traffic.synchronisations
    expected = on_cpu(golden.objective_of(recipe), batch, chunk)
    assert step[0] != expected[0]
    assert_equal(step, expected, tolerance=0.05)
