"""Two weak starts of `benchmarks.adaptation` that no package has: random weights, and a masked language model.

Both have the shape of the tiny BERT that `make data` fetches, 2 layers of 128 numbers, and are used with the [CLS]
vector.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoTokenizer, BertConfig, BertModel

from flows.export.export import export_checkpoint, new_folder
from flows.plan.plan import planned
from flows.recipe.load import load_recipe
from flows.reproduce import reproduced
from storage.store.sources import PROJECT_DATA
from storage.store.store import Store

RANDOM, MASKED_LM = "random", "masked_lm"
SHAPE = PROJECT_DATA / "bert_tiny_msmarco"
RECIPE = "study/wikipedia_masked_lm"


def start(name: str, seed: int, folder: Path, store: Store) -> str:
    """Return the start that is meant: a folder below `folder` for the two that are made here, else the name itself.

    Each seed has its own random weights, and its own masked language model.
    """
    made = folder / "starts" / f"{name}-{seed}"
    if name not in (RANDOM, MASKED_LM):
        return name
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        if name == RANDOM:
            write_random(made, seed)
        else:
            write_masked_lm(made, seed, store)
    return str(made)


def write_random(folder: Path, seed: int) -> None:
    """Write a BERT of random weights, with the vocabulary of the tiny BERT."""
    torch.manual_seed(seed)
    with new_folder(folder) as made:
        BertModel(BertConfig.from_pretrained(SHAPE)).save_pretrained(made)
        AutoTokenizer.from_pretrained(SHAPE).save_pretrained(made)


def write_masked_lm(folder: Path, seed: int, store: Store) -> None:
    """Write the masked language model of a recipe of the study: the tiny BERT after 2,000 steps on Wikipedia's leads.

    Only the recipe's pre-training is run, not its retrievers.
    """
    changes = [f"seed={seed}", "execution.threads=1"]
    reproduced(RECIPE, store.root, changes, until="pretrain", print_line=print, with_server=False)
    (step,) = [
        step
        for step in planned(load_recipe(RECIPE, changes)[0], RECIPE, store).done.values()
        if step.stage == "pretrain"
    ]
    export_checkpoint(step.key, folder, store.root)
