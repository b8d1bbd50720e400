"""Rows of batches that one core builds for the GPUs, from the token cache to masked and padded tensors.

The settings are those of the papers' full recipes, the vocabulary has BERT's size, and every text is longer than is
read. The baseline of CoT-MAE is the earlier code, which masked row after row (`benchmarks/row_by_row.py`). The number
of cores that feed a GPU is in [scale.md](scale.md).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from benchmarks import row_by_row
from benchmarks.contest import OURS, Case
from benchmarks.random_texts import SPECIALS, VOCABULARY, word_pieces
from benchmarks.recipe_costs import in_steps
from flows.recipe.load import load_recipe
from models.masking import IGNORED
from models.pretraining import TermCounts
from models.tokens import Tokenizer
from tasks.pretraining.pretrain import PretrainingBatches
from tasks.pretraining.token_cache import TokenCache

DEVICES = ("cpu",)
ROWS_AT_ONCE = 256  # a chunk of a process, built by one call
EARLIER = "row by row"
TARGET = 5.0
RECIPES = {
    "cot_mae_query_as_context": "queries", "cot_mae": "passages", "co_condenser_query_as_context": "queries",
    "cot_mote": "queries", "retro_mae": "passages", "dup_mae": "passages", "cpdae": "passages",
}  # fmt: skip
"""The recipes with a pre-training, and the kind of their contexts."""
QUERY_TOKENS = 12  # at most


def cases(device: str, *, small: bool) -> Iterator[Case]:
    """Yield a case for each recipe: the batches of some steps."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for recipe, contexts in RECIPES.items():
            yield _case(Path(folder), recipe, contexts, 32 if small else 2048, 1_000 if small else VOCABULARY)


def _case(folder: Path, name: str, contexts: str, rows: int, vocabulary: int) -> Case:
    recipe, _ = load_recipe(name, ["dataset.path=nowhere"])
    assert recipe.pretrain
    settings = recipe.pretrain if recipe.pretrain.steps else in_steps(recipe).pretrain
    assert settings
    assert settings.steps
    assert settings.batch
    num_texts = settings.steps * settings.batch
    tokenizer = word_pieces(vocabulary)
    cache = TokenCache([_token_file(folder / f"{name}.arrow", contexts, rows, vocabulary)])
    counts = np.arange(1, vocabulary + 1)
    terms = TermCounts(rows, counts, counts) if settings.objective.counts_terms else None
    batches = PretrainingBatches(cache, terms, tokenizer, settings.model_copy(update={"batch": rows}))

    def build() -> list[Any]:
        size = batches.num_rows
        return [batches.rows(0, first, min(size, first + ROWS_AT_ONCE)) for first in range(0, size, ROWS_AT_ONCE)]

    contenders: dict[str, Any] = {OURS: build}
    if name == "cot_mae_query_as_context":
        contenders[EARLIER] = lambda: row_by_row.cot_mae_batch(batches)
    return Case(
        f"{name}, {rows:,} texts", contenders, {EARLIER: TARGET} if EARLIER in contenders else {},
        lambda built: _compared(built, tokenizer) | {"texts in the pre-training": num_texts},
        units={"texts": float(rows)},
    )  # fmt: skip


def _compared(built: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """Check that both mask equal shares of the tokens and replace them alike, and return the shares."""
    if EARLIER not in built:
        return {}
    shares = {}
    columns: tuple[Callable[[Any], torch.Tensor], ...] = (
        lambda batch: batch.text.ids,
        lambda batch: batch.text_labels,
        lambda batch: batch.text.mask,
    )
    for contender, batches in built.items():
        ids, labels, mask = (np.concatenate([column(batch).numpy().ravel() for batch in batches]) for column in columns)
        labelled = labels != IGNORED
        shares[contender] = (labelled.sum() / mask.sum(), (ids[labelled] == tokenizer.mask).mean())
        tolerance = 5 * np.sqrt(2 * 0.25 / labelled.sum())  # five standard errors of a difference of two shares
    assert np.allclose(shares[OURS], shares[EARLIER], rtol=0, atol=tolerance), shares
    return {"share of tokens masked": {name: float(share) for name, (share, _) in shares.items()}}


def _token_file(path: Path, contexts: str, rows: int, vocabulary: int) -> Path:
    """Write a file of a token cache with random tokens: texts of 600 tokens, one context each."""
    draws = np.random.default_rng(0)
    lengths = draws.integers(5, QUERY_TOKENS + 1, size=rows) if contexts == "queries" else np.full(rows, 600)

    def lists(sizes: Any) -> pa.ListArray:
        ids = draws.integers(len(SPECIALS), vocabulary, size=int(sizes.sum()), dtype=np.uint16)
        return pa.ListArray.from_arrays(pa.array(np.append(0, sizes.cumsum()).astype(np.int32)), pa.array(ids))

    one_each = pa.array(np.arange(rows + 1, dtype=np.int32))
    none = pa.array(np.zeros(rows + 1, dtype=np.int32))
    given = lists(lengths)
    columns = {
        "text": lists(np.full(rows, 600)),
        "queries": pa.ListArray.from_arrays(one_each if contexts == "queries" else none, given),
        "passages": pa.ListArray.from_arrays(none if contexts == "queries" else one_each, given),
    }
    batch = pa.record_batch(columns)
    with pa.ipc.new_file(str(path), batch.schema) as file:
        file.write_batch(batch)
    return path
