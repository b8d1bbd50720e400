"""How many queries of a batch an adaptation trains at a time, by the memory of this machine."""

from __future__ import annotations

from pathlib import Path

from flows.plan.costs import cost_key, costs_of_models
from flows.recipe.load import load_recipe
from flows.recipe.round_schema import expanded
from tasks.estimates.capacity import Capacity
from tasks.machine import free_memory, num_gpus

CHUNK = 16  # queries; a batch has 32
SHARE_OF_MEMORY = 0.5  # of what is free; the rest is for others, and for what the estimate does not count


def chunk_that_fits(file: Path) -> int | None:
    """Return the `chunk` of a recipe's trainings: None, the complete batch, where half of the free memory suffices.

    Every chunk but the first is encoded twice, so two chunks take about a fifth more time. The memory of a GPU is not
    read, so with a GPU a batch always has two chunks.
    """
    memory = free_memory()
    if memory is None or num_gpus():
        return CHUNK
    recipe = load_recipe(str(file))[0]
    capacity = Capacity(costs_of_models(recipe, with_dropout=True)[0], default="float32")
    trainings = [round_.train for round_ in expanded(recipe.rounds) if round_.train is not None]
    different = {cost_key(training): training for training in trainings}.values()
    peak = max(capacity.training(training).peak(training.batch_queries, None) for training in different)
    return None if peak <= SHARE_OF_MEMORY * memory else CHUNK
