"""Every paper's objective on the simulated device: the CPU's results, no copies, and no more synchronisations."""

import pytest
import torch

from flows.recipe.load import load_recipe
from models.tokens import Tokenizer
from tests import test_golden_losses as golden
from tests.simulated_device.comparison import assert_equal, on_cpu, on_device
from tests.simulated_device.tensor import traffic
from tests.tiny import tiny_tokenizer

RECIPES = {load_recipe(name)[0].pretrain.paper: name for name in golden.SMALL}
MOST_SYNCHRONISATIONS: dict[str, dict[int | None, int]] = {
    "cot_mae": {None: 8, 3: 24},
    "masked_lm": {None: 4, 3: 12},
    "co_condenser": {None: 8, 3: 38},
    "condenser": {None: 7, 3: 22},
    "cot_mote": {None: 30, 3: 84},
    "cpdae": {None: 4, 3: 15},
    "dup_mae": {None: 17, 3: 41},
    "ict": {None: 2, 3: 6},
    "prop": {None: 7, 3: 22},
    "retro_mae": {None: 14, 3: 35},
    "seed": {None: 8, 3: 24},
    "sim_cse": {None: 2, 3: 6},
}  # fmt: skip
"""In a step with the complete batch of 4 texts, and with chunks of 3; lower them when a step waits less."""


@pytest.fixture(autouse=True)
def few_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden, "TEXTS", 4)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tiny_tokenizer()


@pytest.mark.parametrize("paper", RECIPES)
@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.usefixtures("full_precision")
def test_a_step_equals_that_of_the_cpu(
    paper: str, chunk: int | None, tokenizer: Tokenizer, simulated: torch.device
) -> None:
    recipe, _ = load_recipe(RECIPES[paper])
    batch = golden.batch_of(recipe, 0, tokenizer)

    step = on_device(golden.objective_of(recipe), batch, chunk, simulated)

    assert_equal(step, on_cpu(golden.objective_of(recipe), batch, chunk), tolerance=1e-3)


@pytest.mark.parametrize("paper", RECIPES)
@pytest.mark.parametrize("chunk", [None, 3])
def test_a_step_in_bfloat16_copies_nothing_and_rarely_waits(
    paper: str, chunk: int | None, tokenizer: Tokenizer, simulated: torch.device
) -> None:
    recipe, _ = load_recipe(RECIPES[paper])
    batch = golden.batch_of(recipe, 0, tokenizer)

    step = on_device(golden.objective_of(recipe), batch, chunk, simulated)

    assert not traffic.to_device
    assert traffic.synchronisations.total() <= MOST_SYNCHRONISATIONS[paper][chunk], traffic.synchronisations
    assert_equal(step, on_cpu(golden.objective_of(recipe), batch, chunk), tolerance=0.05)
